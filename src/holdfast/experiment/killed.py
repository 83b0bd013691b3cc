"""The run that the `recovery` experiment kills: a query on an input that arrives at a fixed rate, whoever reads it.

`python -m holdfast.experiment.killed SETTINGS` where SETTINGS is the `VictimSettings` of chaos as JSON, with the file
of a pickled source as `input` and the seconds in which an epoch's rows arrive as `pause`. Like the victim of chaos it
tells what happens in a file of JSON lines; beyond that, of the steps of its start, of its recovery and of every take.
"""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.chaos.process import VictimProcess
from holdfast.chaos.telling import Tell, commit_facts, recovery_facts, telling_run
from holdfast.chaos.victim import VictimSettings
from holdfast.connect.base import Chunk, Position, Slice, Source, Take
from holdfast.connect.file_sink import parquet
from holdfast.epoch.driver import PipelineRun, RunOptions
from holdfast.state.policy import DELTA
from holdfast.workloads.queries import query

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["ArrivingSource", "KilledProcess", "epoch_options"]


class ArrivingSource(Source):
    """Whole takes of `rows` rows of another source; the n-th is there n times `pause` seconds after the first, and the
    first `ahead` are there at the start.

    What arrives while nobody reads waits. A rate of the source itself would cut epochs by the clock; these are the same
    in every run, so that sums of floats are too. `on_take` hears the number of each take, from 1, and when its rows
    arrived; it stays in the process that plans.
    """

    def __init__(
        self,
        inner: Source,
        rows: int,
        pause: float,
        on_take: Callable[[int, float], None] = lambda number, arrived: None,
        clock: Callable[[], float] = time.time,
        ahead: int = 0,
    ) -> None:
        self.inner = inner
        self.rows = rows
        self.ahead = ahead
        self.pause = pause
        self.schema = inner.schema
        self.bounded = inner.bounded
        self._on_take = on_take
        self._clock = clock

    def __getstate__(self) -> dict[str, Any]:
        return {"inner": self.inner, "schema": self.schema, "bounded": self.bounded}

    def start(self) -> Position:
        return {"inner": self.inner.start(), "taken": 0}

    def take(self, position: Position, rows: int, pieces: int) -> Take:
        since, taken = position.get("since"), int(position["taken"])
        if since is None:
            since = self._clock() - self.ahead * self.pause
        if self._clock() < since + taken * self.pause:
            return Take((), position)
        found = self.inner.take(position["inner"], self.rows, pieces)
        self._on_take(taken + 1, since + taken * self.pause)
        return Take(found.slices, {"inner": found.position, "taken": taken + 1, "since": since}, found.done)

    def read(self, piece: Slice) -> Iterator[Chunk]:
        return self.inner.read(piece)

    def lag(self, position: Position) -> int | None:
        return self.inner.lag(position["inner"])


def epoch_options(store: Path, rows: int) -> RunOptions:
    """Epochs of exactly so many rows."""
    return RunOptions(store=store, least_rows=rows, most_rows=rows, poll=0.005, checkpoint=DELTA)


class KilledProcess(VictimProcess):
    """The process as its parent sees it; started, watched and killed like a victim of chaos."""

    def start(self) -> None:
        with self._log.open("ab") as log:
            self.started_at = time.time()
            self._process = subprocess.Popen(
                [sys.executable, "-m", "holdfast.experiment.killed", self.settings.to_json()],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, "TMPDIR": str(self._temporary)},
                start_new_session=True,
            )


def main(settings: VictimSettings) -> int:
    """Run the query to the end of its input, wherever an earlier process has left it."""

    def prepare(tell: Tell) -> Callable[[SparkSession], object]:
        source = ArrivingSource(
            pickle.loads(Path(settings.input).read_bytes()),
            settings.epoch_rows,
            settings.pause,
            on_take=lambda number, arrived: tell("taken", number=number, arrived=arrived),
        )
        pipeline = query(settings.query).build(source, parquet(settings.output), pipeline_name="victim")
        return lambda spark: PipelineRun(
            pipeline,
            spark,
            epoch_options(settings.store, settings.epoch_rows),
            on_epoch=lambda report: tell("commit", **commit_facts(report)),
            on_recovery=lambda report: tell("recovered", **recovery_facts(report)),
        ).run()

    return telling_run(settings.events, prepare, app="holdfast recovery", warm=Path(settings.home) / "warm")


if __name__ == "__main__":
    sys.exit(main(VictimSettings(**json.loads(sys.argv[1]))))
