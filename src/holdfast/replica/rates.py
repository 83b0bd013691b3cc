"""The rate at which input comes, from the epochs that took it. Pure."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from itertools import pairwise

__all__ = ["RateMonitor", "Taken"]

_WINDOW_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class Taken:
    """An epoch that began at some time took so many rows from outside, and so many of p-streams."""

    began: float
    entered: int
    streamed: int


@dataclass(slots=True)
class RateMonitor:
    """Rows that an epoch takes have come since the one before began, so what counts is from one beginning to another.

    A source that falls silent makes no epochs: its rate falls with the time that passes. `since` is when one began to
    look. Times are of a clock that is never set.
    """

    since: float
    window: float = _WINDOW_SECONDS
    _epochs: deque[Taken] = field(default_factory=deque)

    def took(self, taken: Taken) -> None:
        """An epoch has begun; called by the thread that runs it."""
        self._epochs.append(taken)
        while len(self._epochs) > 2 and self._epochs[1].began <= taken.began - self.window:
            self._epochs.popleft()

    def rates(self, now: float) -> tuple[float, float] | None:
        """Rows per second from outside, and from p-streams; None before there is anything to tell."""
        epochs = tuple(self._epochs)
        if len(epochs) < 2:
            seconds = now - self.since
            if seconds <= 2 * self.window:
                return None
            return sum(each.entered for each in epochs) / seconds, sum(each.streamed for each in epochs) / seconds
        first, last = epochs[0], epochs[-1]
        # An epoch that takes long is no silence, if those before took as long.
        longest = 2 * max(after.began - before.began for before, after in pairwise(epochs))
        until = now if now - last.began > max(self.window, longest) else last.began
        seconds = max(until - first.began, 1e-3)
        return sum(each.entered for each in epochs[1:]) / seconds, sum(each.streamed for each in epochs[1:]) / seconds
