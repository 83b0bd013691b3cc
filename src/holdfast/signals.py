"""What Ctrl-C and SIGTERM do.

A command that runs no pipeline unwinds at once. A running pipeline is asked to stop, and aborted at the second time.
Ctrl-C reaches every process of the terminal's group: Java is started with it ignored, and the Python workers are a
group of their own, so the epochs in flight can be committed.

Only the main thread may set handlers; anywhere else these do nothing.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any

__all__ = ["StopSignals", "abort_on_termination", "are_unhandled", "stop_on_signals", "undisturbed"]

_BOTH = (signal.SIGINT, signal.SIGTERM)
_SPARKS = "pyspark.core.context"  # whose handler of Ctrl-C cancels the epochs in flight


@contextmanager
def _handled(handle: Callable[[int, FrameType | None], None], *numbers: int) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, handle) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def abort_on_termination() -> Iterator[None]:
    """Let SIGTERM unwind the program as Ctrl-C does, so that it ends what it has started."""

    def abort(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    with _handled(abort, signal.SIGTERM):
        yield


@contextmanager
def undisturbed() -> Iterator[None]:
    """Signals change nothing inside: the program is ending already, and must not leave processes behind."""
    with _handled(lambda number, frame: None, *_BOTH):
        yield


class StopSignals:
    """The first Ctrl-C or SIGTERM calls `stop`, or raises KeyboardInterrupt where there is nothing to stop yet. The
    second one raises it in any case. A context manager."""

    def __init__(self, stop: Callable[[], None] | None = None) -> None:
        self.stop = stop
        self.first: int | None = None
        """The number of the first signal."""
        self.aborted = False
        """Whether there was a second one."""
        self._handling: Any = None

    def __enter__(self) -> StopSignals:
        self._handling = _handled(self._handle, *_BOTH)
        self._handling.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._handling.__exit__(None, None, None)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self.aborted = self.first is not None
        self.first = self.first or number
        if self.aborted or self.stop is None:
            raise KeyboardInterrupt
        self.stop()


@contextmanager
def stop_on_signals(stop: Callable[[], None], say: Callable[[], None]) -> Iterator[None]:
    """The first Ctrl-C or SIGTERM calls `stop` and `say`, the second one raises KeyboardInterrupt."""

    def stop_and_say() -> None:
        stop()
        say()

    with StopSignals(stop_and_say):
        yield


def are_unhandled() -> bool:
    """Whether the program leaves signals as Python and Spark set them: then a run may see to them."""
    interrupt, terminate = (signal.getsignal(number) for number in _BOTH)
    usual = interrupt is signal.default_int_handler or getattr(interrupt, "__module__", None) == _SPARKS
    return usual and terminate is signal.SIG_DFL
