"""A pipeline that runs in the background: `holdfast.start(pipeline)` returns a handle on it.

The run has a thread of its own. Several can run in one process; those that are not given a Spark session share one,
which is closed with the last of them.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from types import TracebackType

from holdfast.engine.summary import RunSummary, Tally
from holdfast.errors import HoldfastError

__all__ = ["Running"]

_LOOK_EVERY = 0.2


class Running:
    """A handle on a run. As a context manager it stops the run at the end of the block, and waits for it."""

    def __init__(
        self,
        tally: Tally,
        work: Callable[[], RunSummary],
        stop: Callable[[], None],
        resources: contextlib.AbstractContextManager[object],
    ) -> None:
        """Start the thread. The `resources` are closed when the run has ended, however it did."""
        from pyspark import InheritableThread  # noqa: PLC0415 - Spark is slow to import

        self._tally = tally
        self._error: BaseException | None = None
        self._stop = stop
        self._ended = threading.Event()

        def run() -> None:
            try:
                with resources:
                    work()
            except BaseException as error:  # noqa: BLE001 - `wait` raises it
                self._error = error
                tally.fail(str(error) if isinstance(error, HoldfastError) else repr(error))
            finally:
                self._ended.set()

        InheritableThread(target=run, name=f"run-{tally.summary().pipeline}", daemon=True).start()

    def stop(self) -> None:
        """Ask the run to end, and return at once: the epochs in flight are committed first."""
        self._stop()

    def status(self) -> RunSummary:
        """How far the run is now."""
        return self._tally.summary()

    def _repr_html_(self) -> str:
        return self.status()._repr_html_()

    def wait(self, timeout: float | None = None) -> RunSummary:
        """Wait until the run has ended. Returns what it has done, or raises the error of the run; TimeoutError if it
        still runs after `timeout` seconds."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while not self._ended.wait(_LOOK_EVERY):  # in short steps, so that Ctrl-C is seen
            if deadline is not None and time.monotonic() >= deadline:
                raise TimeoutError(f"pipeline '{self.status().pipeline}' still runs after {timeout:g} s")
        if self._error is not None:
            raise self._error
        return self.status()

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
