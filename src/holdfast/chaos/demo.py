"""The story of the demo: a pipeline is killed in the middle, started again, and ends with the right result.

What the result must be is computed by the query's oracle over all of the input at once, in a loop over windows that
shares nothing with the engine.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from holdfast.chaos.compare import Difference, compare
from holdfast.chaos.faults import CommitSeen, Strike
from holdfast.chaos.process import VictimProcess
from holdfast.chaos.victim import VictimSettings, bounded_input
from holdfast.connect.base import Slice
from holdfast.connect.file_sink import published_epochs, read_output
from holdfast.errors import EpochFailedError
from holdfast.workloads.oracle import oracle
from holdfast.workloads.queries import query

__all__ = ["Demo", "Scene"]

QUERY = "YSB"
EPOCHS = 32
ROWS_PER_EPOCH = 250_000
PAUSE = 0.15
KILL_AFTER = 0.5
"""The share of the input after which the kill comes."""

_POLL = 0.02
_PATIENCE = 120.0


@dataclass(frozen=True, slots=True)
class Scene:
    """How the run stands: for whoever shows it."""

    epoch: int
    ready: bool
    """Whether Spark is up."""

    @property
    def rows(self) -> int:
        return self.epoch * ROWS_PER_EPOCH


class Demo:
    """Runs the pipeline in a process of its own under `place`."""

    def __init__(self, place: Path, show: Callable[[Scene], None]) -> None:
        self.settings = VictimSettings(
            query=QUERY,
            rows=EPOCHS * ROWS_PER_EPOCH,
            epoch_rows=ROWS_PER_EPOCH,
            pause=PAUSE,
            home=str(place / "run"),
            input=str(place / "input"),
        )
        self._victim = VictimProcess(self.settings, place / "t")
        self._show = show
        self._scene = Scene(0, False)
        self._strike: Strike | None = None

    def start(self) -> None:
        """Start the process."""
        self._scene = Scene(self._scene.epoch, False)
        self._victim.start()

    def until(self, share: float) -> None:
        """Watch until this share of the input is committed; at 1, until the process has ended."""
        wanted = EPOCHS * share
        progress = time.monotonic()
        while True:
            ended = self._victim.ended()
            if self._listen():
                progress = time.monotonic()
            if ended or (share < 1 and self._scene.epoch >= wanted):
                return
            if time.monotonic() - progress > _PATIENCE:
                raise EpochFailedError(
                    f"nothing happened for {_PATIENCE:.0f} s:\n{self._victim.log_tail()}",
                    cure="try again when the machine is less busy",
                )
            time.sleep(_POLL)

    def kill(self) -> Strike:
        """kill -9 of the driver, Java and all workers."""
        self._strike = Strike("driver", time.time(), self._victim.pid)
        self._victim.kill_all()
        self._listen()
        return self._strike

    def end(self) -> None:
        """Leave nothing running."""
        self._victim.kill_all()

    def published(self) -> int:
        """How many epochs readers of the output see."""
        return len(published_epochs(self.settings.output))

    def check(self) -> tuple[Difference, int]:
        """Compare with the oracle's result; also how many rows it has."""
        asked = query(QUERY)
        source = bounded_input(asked, self.settings.rows, Path(self.settings.input))
        whole = Slice(base=0, rows=self.settings.rows, where={"start": 0, "stop": self.settings.rows})
        time_column = pl.col(asked.dataset.event_time)
        events = pl.concat([chunk.frame.with_columns(time_column + chunk.shift) for chunk in source.read(whole)])
        expected = oracle(QUERY, events)
        actual = read_output(self.settings.output, "parquet")
        return compare(actual.select(expected.columns), expected), expected.height

    def _listen(self) -> bool:
        events = self._victim.events()
        scene = self._scene
        for event in events:
            if event["event"] == "session":
                scene = Scene(scene.epoch, True)
                if self._strike is not None:
                    self._strike.on_session(event["pid"], event["at"])
            elif event["event"] == "commit":
                commit = CommitSeen(event["pid"], event["epoch"], event["started"], event["committed"])
                scene = Scene(commit.epoch, True)
                if self._strike is not None:
                    self._strike.on_commit(commit)
        self._scene = scene
        self._show(scene)
        return bool(events)
