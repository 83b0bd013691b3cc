"""What Ctrl-C and SIGTERM do to a command.

A command that runs no pipeline unwinds at once. A running pipeline is asked to stop, and aborted at the second time.
Ctrl-C reaches every process of the terminal's group: Java is started with it ignored, and the Python workers are a
group of their own, so the epochs in flight can be committed.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

__all__ = ["abort_on_termination", "stop_on_signals"]


@contextmanager
def abort_on_termination() -> Iterator[None]:
    """Let SIGTERM unwind the program as Ctrl-C does, so that it ends what it has started."""

    def abort(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, abort)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def stop_on_signals(stop: Callable[[], None], told: Callable[[], None]) -> Iterator[None]:
    """The first Ctrl-C or SIGTERM calls `stop`, the second one raises KeyboardInterrupt."""
    asked = False

    def handle(number: int, frame: FrameType | None) -> None:
        nonlocal asked
        if asked:
            raise KeyboardInterrupt
        asked = True
        stop()
        told()

    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
