"""When the next epoch begins and how many rows it takes: large enough to be fast, small enough for the latency target,
or as the user's own rhythm says."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from holdfast.plan.program import Program
from holdfast.state.routing import Routing

__all__ = ["MeasuredPace", "Pace", "Pacer", "Trigger"]

_GROWTH = 4.0
_SMOOTHING = 0.5


@dataclass(slots=True)
class Pacer:
    """Aims at epochs of `target` seconds between `least` and `most` rows. Pure: time comes in as measurements."""

    target: float
    least: int
    most: int
    rows: int = 0
    _speed: float | None = None

    def __post_init__(self) -> None:
        self.rows = self.rows or self.least

    def measured(self, rows: int, seconds: float) -> None:
        """Learn from an epoch that has read `rows` rows and kept its stages busy for `seconds`."""
        if rows <= 0 or seconds <= 0:
            return
        speed = rows / seconds
        self._speed = speed if self._speed is None else _SMOOTHING * speed + (1 - _SMOOTHING) * self._speed
        wanted = self._speed * self.target
        if rows < self.rows / 2:
            # The source had no more to give; a short epoch says little about how large one may be.
            wanted = max(wanted, self.rows)
        self.rows = int(max(self.least, min(self.most, wanted, self.rows * _GROWTH)))


@dataclass(slots=True)
class Trigger:
    """A trigger: an epoch begins at most every `seconds`, and takes all that has come. Without one, whenever there is
    input, and as much as the pacer says."""

    seconds: float | None
    most: int
    _next: float = 0.0

    def is_due(self, now: float) -> bool:
        return self.seconds is None or now >= self._next

    def began(self, now: float) -> None:
        """An epoch that takes input has begun. One that takes longer than the interval is followed at once."""
        self._next = now + (self.seconds or 0.0)

    def rows(self, paced: int) -> int:
        return paced if self.seconds is None else self.most


class Pace(Protocol):
    """What is decided about an epoch before its input is looked for. A run has a pace of its own, which only learns."""

    def is_due(self, now: float) -> bool:
        """Whether an epoch that takes input may begin."""

    def rows(self, epoch: int, program: Program) -> int:
        """How many rows the epoch may take from all sources; 0 for an epoch without input."""

    def routing(self, epoch: int, program: Program, routing: Mapping[str, Routing]) -> Mapping[str, Routing]:
        """Where the keys of each operator go in the epoch; `routing` is that of the epoch before."""

    def began(self, now: float) -> None:
        """An epoch that takes input has begun."""

    def measured(self, rows: int, seconds: float) -> None:
        """An epoch has read so many rows, and kept its stages busy for so long."""


@dataclass(slots=True)
class MeasuredPace:
    """As large as the latency target allows by what was measured, in the user's rhythm. Routing changes by commands."""

    pacer: Pacer
    trigger: Trigger

    def is_due(self, now: float) -> bool:
        return self.trigger.is_due(now)

    def rows(self, epoch: int, program: Program) -> int:
        return self.trigger.rows(self.pacer.rows)

    def routing(self, epoch: int, program: Program, routing: Mapping[str, Routing]) -> Mapping[str, Routing]:
        return routing

    def began(self, now: float) -> None:
        self.trigger.began(now)

    def measured(self, rows: int, seconds: float) -> None:
        self.pacer.measured(rows, seconds)
