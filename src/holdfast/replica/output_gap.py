"""The gap in the output around a takeover: what a reader notices of a failure. Pure.

It lasts from the last commit before the failure to the first one after it. Clocks of two hosts may differ, and no
commit is due while there is no input. So the gap is computed from what the host that takes over has seen on its own
clock, and of the time between the two commits, only the part that can belong to the gap is added.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

__all__ = ["CommitTimes", "FirstOutput", "Takeover"]

_IDLE_SECONDS = 0.25
"""A source is looked at that often, roughly: an epoch that begins later after the one before had no input."""


def _idle(before: float, started: float) -> float:
    """For how long there was nothing to do between a commit and the beginning of the next epoch."""
    return max(0.0, started - before - _IDLE_SECONDS)


@dataclass(frozen=True, slots=True)
class FirstOutput:
    """The first commit under a new primary: by its own clock that never is set (`at`), and by the wall clocks of
    whoever has written it and the one before."""

    at: float
    started: float
    committed: float
    before: float | None


@dataclass(frozen=True, slots=True)
class Takeover:
    """`silence` is how long nothing was heard of the primary before when the seat was taken, at `seated_at`. At
    `ready_at`, by the wall clock, there was nothing left to recover."""

    silence: float
    seated_at: float
    ready_at: float
    replayed: int

    def gap(self, first: FirstOutput, most_before: float) -> float:
        """`most_before` is how long before its last sign the primary may have committed, at most."""
        idle = _idle(self.ready_at, first.started)
        own = max(0.0, self.silence + first.at - self.seated_at - idle)
        if first.before is None:
            return own + most_before
        between = first.committed - first.before - idle
        return own + min(most_before, max(0.0, between - own))


@dataclass(slots=True)
class CommitTimes:
    """The commits that a host has seen of a fragment that both hosts emit: then nothing has to be taken over."""

    _seen: deque[tuple[float, float]] = field(default_factory=lambda: deque(maxlen=256))
    _last: float | None = None

    def add(self, started: float, committed: float) -> None:
        if self._last is not None:
            self._seen.append((committed, committed - self._last - _idle(self._last, started)))
        self._last = committed

    def longest(self, since: float) -> float:
        """The longest time between two of them, the later one after `since`."""
        return max((gap for at, gap in self._seen if at >= since), default=0.0)
