"""A pipeline that runs beside the program: `holdfast.start(pipeline)` returns a handle on it.

The run has a thread of its own. Several can run in one process; those that are not given a Spark session share one,
which is closed with the last of them.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType, TracebackType
from typing import TYPE_CHECKING, Literal

from holdfast.errors import HoldfastError

if TYPE_CHECKING:
    from holdfast.epoch.record import EpochRecord
    from holdfast.epoch.report import EpochReport

__all__ = ["RunStatus", "Running"]

_LOOK_EVERY = 0.2


@dataclass(frozen=True, slots=True)
class RunStatus:
    """How far a run is. `epochs` has the last committed epoch of each fragment that has committed one here; the rows
    are those since the run was started; `committed` is when the last commit was, in seconds of the wall clock."""

    pipeline: str
    state: Literal["running", "stopping", "ended", "failed"]
    epochs: Mapping[str, int] = field(default_factory=dict)
    rows: int = 0
    output_rows: int = 0
    late_rows: int = 0
    bad_rows: int = 0
    committed: float | None = None
    problem: str | None = None
    """What went wrong, where it failed."""


class Running:
    """A handle on a run. As a context manager it stops the run at the end of the block, and waits for it."""

    def __init__(self, pipeline: str) -> None:
        self._lock = threading.Lock()
        self._status = RunStatus(pipeline, "running")
        self._records: dict[str, EpochRecord] = {}
        self._error: BaseException | None = None
        self._stop: Callable[[], None] = lambda: None
        self._ended = threading.Event()

    def begin(
        self, work: Callable[[], dict[str, EpochRecord]], stop: Callable[[], None], close: Callable[[], None]
    ) -> None:
        """Start the thread; `close` is called when the run has ended, however it did."""
        from pyspark import InheritableThread

        self._stop = stop

        def run() -> None:
            try:
                try:
                    self._records = work()
                finally:
                    close()
            except BaseException as error:  # noqa: BLE001 - `wait` raises it
                self._error = error
            finally:
                self._ended.set()

        InheritableThread(target=run, name=f"run-{self._status.pipeline}", daemon=True).start()

    def committed(self, report: EpochReport) -> None:
        """An epoch was committed."""
        with self._lock:
            now = self._status
            self._status = replace(
                now,
                epochs=MappingProxyType({**now.epochs, report.fragment: report.epoch}),
                rows=now.rows + report.entered,
                output_rows=now.output_rows + report.output_rows,
                late_rows=now.late_rows + report.late_rows,
                bad_rows=now.bad_rows + report.bad_rows,
                committed=report.committed,
            )

    def stop(self) -> None:
        """Ask the run to end, and return at once: the epochs in flight are committed first."""
        with self._lock:
            self._status = replace(self._status, state="stopping")
        self._stop()

    def status(self) -> RunStatus:
        """How far the run is now."""
        with self._lock:
            if not self._ended.is_set():
                return self._status
            if self._error is None:
                return replace(self._status, state="ended")
            problem = str(self._error) if isinstance(self._error, HoldfastError) else repr(self._error)
            return replace(self._status, state="failed", problem=problem)

    def wait(self, timeout: float | None = None) -> dict[str, EpochRecord]:
        """Wait until the run has ended. Returns the last record of each fragment, or raises the error of the run;
        TimeoutError if it still runs after `timeout` seconds."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while not self._ended.wait(_LOOK_EVERY):  # in short steps, so that Ctrl-C is seen
            if deadline is not None and time.monotonic() >= deadline:
                raise TimeoutError(f"pipeline '{self._status.pipeline}' still runs after {timeout:g} s")
        if self._error is not None:
            raise self._error
        return self._records

    def __enter__(self) -> Running:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
        if error is None:
            self.wait()
        else:  # what the block has raised is the better news
            self._ended.wait()
