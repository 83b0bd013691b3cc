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

    A source that falls silent makes no epochs: its rate falls with the time that passes.
    """

    window: float = _WINDOW_SECONDS
    _epochs: deque[Taken] = field(default_factory=deque)

    def took(self, taken: Taken) -> None:
        if self._epochs and taken.began <= self._epochs[-1].began:
            return  # two epochs in flight may be told in any order; a clock may be set back
        self._epochs.append(taken)
        while len(self._epochs) > 2 and self._epochs[1].began <= taken.began - self.window:
            self._epochs.popleft()

    def rates(self, now: float) -> tuple[float, float] | None:
        """Rows per second from outside, and from p-streams; None before two epochs were seen."""
        if len(self._epochs) < 2:
            return None
        first, last = self._epochs[0], self._epochs[-1]
        until = now if now - last.began > max(self.window, self._longest()) else last.began
        seconds = max(until - first.began, 1e-3)
        later = list(self._epochs)[1:]
        return sum(each.entered for each in later) / seconds, sum(each.streamed for each in later) / seconds

    def _longest(self) -> float:
        """An epoch that takes long is no silence, if those before took as long."""
        return 2 * max(after.began - before.began for before, after in pairwise(self._epochs))
