"""The run of the demo: `holdfast run` in a process of its own, watched, killed and started again on the same store."""

from __future__ import annotations

import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from holdfast.connect.sinks.file_sink import published_epochs, read_output
from holdfast.demo import ad_views
from holdfast.errors import EpochFailedError
from holdfast.laar.epoch_journal import EpochWork, read_journals
from holdfast.process_session import ProcessSession

__all__ = ["DemoRun", "RecoveryTime", "RunProgress"]

_LATENCY = "0.25"
_LOG_LINES = 15


@dataclass(frozen=True, slots=True)
class RunProgress:
    """How far the run is. `started`: the process that runs now has committed an epoch."""

    epochs: int
    rows: int
    started: bool


@dataclass(frozen=True, slots=True)
class RecoveryTime:
    """Seconds from the kill to the start of the next epoch, and from there to its commit."""

    start: float
    epoch: float


class DemoRun:
    """Everything it writes is under `place`, which the caller removes."""

    def __init__(self, place: Path) -> None:
        self._place = place
        self._store = place / "store"
        self._log = place / "log"
        self._session: ProcessSession | None = None
        self._started_at = 0.0
        self._killed_at = 0.0
        (place / "tmp").mkdir()

    def start(self) -> None:
        """Start the process, or start it again: the command is the same."""
        pipeline = f"{Path(ad_views.__file__).resolve()}:{ad_views.build.__name__}"
        options = ["--store", str(self._store), "--volatile", str(self._place / "volatile"), "--latency", _LATENCY]
        environment = {**os.environ, "TMPDIR": str(self._place / "tmp")}
        self._started_at = time.time()
        self._session = ProcessSession(
            [sys.executable, "-m", "holdfast", "run", pipeline, *options], self._log, environment, self._place
        )

    def progress(self) -> RunProgress:
        epochs = self._epochs()
        started = bool(epochs) and epochs[-1].started > self._started_at
        return RunProgress(len(epochs), sum(epoch.read for epoch in epochs), started)

    def ended(self) -> bool:
        """Whether the process has ended well; an error if it has ended badly."""
        assert self._session is not None
        code = self._session.exit_code()
        if code:
            raise EpochFailedError(
                f"the pipeline ended with code {code}:\n{self.log_tail()}",
                cure="see the end of its log above; if it names no cure, please report it",
            )
        return code == 0

    def kill(self) -> None:
        """kill -9 of the driver, Java and all workers."""
        self._killed_at = time.time()
        self.end()

    def end(self) -> None:
        """Leave nothing running."""
        if self._session is not None:
            self._session.kill()

    def recovery(self) -> RecoveryTime | None:
        """None while no epoch is committed since the kill."""
        after = [epoch for epoch in self._epochs() if epoch.started > self._killed_at]
        if not self._killed_at or not after:
            return None
        return RecoveryTime(after[0].started - self._killed_at, after[0].committed - after[0].started)

    def published(self) -> int:
        """How many epochs readers of the output see."""
        return len(published_epochs(self._place / ad_views.OUTPUT))

    def output(self) -> pl.DataFrame:
        return read_output(self._place / ad_views.OUTPUT, "parquet")

    def log_tail(self) -> str:
        lines = self._log.read_text(errors="replace").splitlines() if self._log.exists() else []
        return "\n".join(f"  {line}" for line in lines[-_LOG_LINES:])

    def _epochs(self) -> list[EpochWork]:
        return [epoch for fragment in read_journals(self._store, ad_views.NAME) for epoch in fragment.epochs]
