"""The input rate, computed from what epochs took and from what they left waiting. Pure.

When hosts are saturated, epochs take as much as they can, which says nothing about how much arrived. Then the backlog
grows, and its growth is part of the rate: the estimate must never be too low.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from itertools import pairwise

__all__ = ["EpochIntake", "RateMonitor"]

_WINDOW_SECONDS = 2.0
_PARTS = 4
_EPOCHS_BEHIND = 2
"""As many epochs' rows may wait without anything being wrong: the next epoch is in flight, and one is being filled."""


@dataclass(frozen=True, slots=True)
class EpochIntake:
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
    _epochs: deque[EpochIntake] = field(default_factory=deque)
    _behind: deque[tuple[float, int]] = field(default_factory=deque)

    def took(self, taken: EpochIntake) -> None:
        """An epoch has begun; called by the thread that runs it."""
        self._epochs.append(taken)
        while len(self._epochs) > 2 and self._epochs[1].began <= taken.began - self.window:
            self._epochs.popleft()

    def waits(self, at: float, rows: int) -> None:
        """So many rows were waiting when an epoch had ended."""
        self._behind.append((at, rows))
        while len(self._behind) > _PARTS and self._behind[1][0] <= at - 2 * self.window:
            self._behind.popleft()

    def rates(self, now: float) -> tuple[float, float] | None:
        """Rows per second from outside, and from p-streams; None before anything is known."""
        taken = self._taken(now)
        return None if taken is None else (taken[0] + self._growth(now), taken[1])

    def _growth(self, now: float) -> float:
        """Rows per second by which more and more wait, if that is so: part after part of the last seconds, and more
        than epochs in flight are going to take."""
        seen = tuple(self._behind)
        size = len(seen) // _PARTS
        if not size or not self._epochs:
            return 0.0
        parts = [seen[len(seen) - at * size :][:size] for at in range(_PARTS, 0, -1)]
        least = [min(rows for _, rows in part) for part in parts]
        seconds = parts[-1][0][0] - parts[0][0][0]
        longest = 2 * max(after - before for (before, _), (after, _) in pairwise(seen))
        silent = now - seen[-1][0] > max(self.window, longest)
        few = least[-1] <= _EPOCHS_BEHIND * (self._epochs[-1].entered + self._epochs[-1].streamed)
        if silent or few or seconds < self.window / 2 or any(after <= before for before, after in pairwise(least)):
            return 0.0
        return (least[-1] - least[0]) / seconds

    def _taken(self, now: float) -> tuple[float, float] | None:
        epochs = tuple(self._epochs)
        if len(epochs) < 2:
            seconds = now - self.since
            if seconds <= 2 * self.window:
                return None
            return sum(epoch.entered for epoch in epochs) / seconds, sum(epoch.streamed for epoch in epochs) / seconds
        first, last = epochs[0], epochs[-1]
        # An epoch that takes long is no silence, if those before took as long.
        longest = 2 * max(after.began - before.began for before, after in pairwise(epochs))
        until = now if now - last.began > max(self.window, longest) else last.began
        seconds = max(until - first.began, 1e-3)
        return sum(epoch.entered for epoch in epochs[1:]) / seconds, sum(
            epoch.streamed for epoch in epochs[1:]
        ) / seconds
