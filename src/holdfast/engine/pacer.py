"""When the next epoch starts and how many rows it takes: large enough to be fast, small enough for the latency target,
or as the user's trigger says."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from holdfast.plan.partition_count import SHORT_LATENCY, USUAL_PARTITIONS
from holdfast.plan.program import Program
from holdfast.state.routing import Routing

__all__ = ["MeasuredPace", "Pace", "Pacer", "Readers", "Trigger", "Widening"]

_GROWTH = 4.0
_GROWTH_OF_SHORT_EPOCHS = 64.0
"""Of epochs that take a small part of the target: what they cost is mostly not the rows."""
_SHORT = 0.1
_ALONE = 0.5
_TOO_SLOW, _SLOW_BEFORE_WIDENING = 2.0, 8
_SMOOTHING = 0.5
_LONGEST_GROWN = 1.0
"""Seconds up to which epochs grow under overload, where less was asked for."""
_FULL_BEFORE_ANOTHER_TRY = 64
_WORTH_GROWING = 1.1


@dataclass(slots=True)
class Pacer:
    """Aims at epochs of `target` seconds between `least` and `most` rows. Pure: time comes in as measurements.

    An epoch takes what there is: `rows` is the most of it. While the source has more than that, epochs grow beyond the
    target, as long as larger ones get more rows through in a second; then they come back.
    """

    target: float
    least: int
    most: int
    rows: int = 0
    _speed: float | None = None
    _needed: int = 0
    """What epochs are to take at least because of overload."""
    _full: int = 0
    """How many epochs took all they might since the speeds were last forgotten."""
    _speeds: dict[int, float] = field(default_factory=dict)
    """The greatest speed of epochs by their size, in powers of two: what else the machine does makes epochs slower,
    never faster."""

    def __post_init__(self) -> None:
        self.least = min(self.least, self.most)
        self.rows = self.rows or self.least

    def measured(self, rows: int, seconds: float) -> None:
        """Learn from an epoch that has read `rows` rows and kept its stages busy for `seconds`."""
        if rows <= 0 or seconds <= 0:
            return
        if rows < self.rows / 2:
            # The source had no more to give; a small epoch says little about how large one may be.
            if self._needed:
                self.rows = max(self.least, self.rows // 2)
            self._needed //= 2
            return
        speed = rows / seconds
        known = self._speed
        self._speed = speed if known is None or speed > known else _SMOOTHING * (speed + known)
        self._see_to_overload(rows, seconds)
        growth = _GROWTH_OF_SHORT_EPOCHS if seconds < _SHORT * self.target else _GROWTH
        wanted = min(max(self._speed * self.target, self._needed), self.rows * growth)
        self.rows = int(max(self.least, min(self.most, wanted)))

    def _see_to_overload(self, rows: int, seconds: float) -> None:
        """Epochs of twice the size are tried at once: rows wait meanwhile."""
        self._full += 1
        if self._full % _FULL_BEFORE_ANOTHER_TRY == 0:
            self._speeds.clear()
        size = rows.bit_length()
        speed = self._speeds[size] = max(rows / seconds, self._speeds.get(size, 0.0))
        smaller, larger = self._speeds.get(size - 1), self._speeds.get(size + 1)
        if smaller is not None and speed < _WORTH_GROWING * smaller:
            self._needed //= 2
        elif larger is not None and larger < _WORTH_GROWING * speed:
            self._needed = self._needed // 2 if smaller is None else rows
        elif 2 * seconds <= _LONGEST_GROWN:
            self._needed = 2 * rows


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


@dataclass(slots=True)
class Readers:
    """How many tasks read an epoch. Where a short latency is asked for, one task does it alone as long as that takes a
    small part of the `target`: what a second one saves is less than what it costs to run it."""

    target: float
    _reading: float | None = None
    """Seconds of all tasks together, of the epochs so far."""
    _last: int = 1

    def tasks(self, most: int) -> int:
        known = self.target <= SHORT_LATENCY and self._reading is not None
        alone = known and self._reading < _ALONE * self.target  # type: ignore[operator]
        self._last = 1 if alone else most
        return self._last

    def measured(self, seconds: float) -> None:
        """The tasks of an epoch have read for so long."""
        work = seconds * self._last
        self._reading = work if self._reading is None else _SMOOTHING * (work + self._reading)


@dataclass(slots=True)
class Widening:
    """When operators that began with one partition get more: as soon as epoch after epoch takes much longer than the
    `target`, and more than half of that to assemble, which is what partitions share out. None get fewer again: what is
    one partition was in the memory of several workers. Who is scaled to one partition by a command keeps it."""

    target: float
    _slow: int = 0
    """How many epochs in a row."""
    _were_wide: set[str] = field(default_factory=set)

    def measured(self, seconds: float, reading: float) -> None:
        """An epoch has taken so long, with its reading."""
        slow = seconds > _TOO_SLOW * self.target and seconds - reading > seconds / 2
        self._slow = self._slow + 1 if slow else 0

    def routing(self, program: Program, routing: Mapping[str, Routing]) -> Mapping[str, Routing]:
        self._were_wide.update(name for name, way in routing.items() if way.partitions > 1)
        if self._slow < _SLOW_BEFORE_WIDENING:
            return routing
        alone = [
            node.name
            for node in program.stateful
            if node.keys and node.partitions is None and node.name not in self._were_wide
        ]
        return {**routing, **dict.fromkeys(alone, Routing.even(USUAL_PARTITIONS))}


class Pace(Protocol):
    """What is decided about an epoch before its input is looked for. A run has a pace of its own, which only learns."""

    def is_due(self, now: float) -> bool:
        """Whether an epoch that takes input may begin."""

    def rows(self, epoch: int, program: Program) -> int:
        """How many rows the epoch may take from all sources; 0 for an epoch without input."""

    def tasks(self, most: int) -> int:
        """How many tasks read the epoch."""

    def routing(self, epoch: int, program: Program, routing: Mapping[str, Routing]) -> Mapping[str, Routing]:
        """Where the keys of each operator go in the epoch; `routing` is that of the epoch before."""

    def began(self, now: float) -> None:
        """An epoch that takes input has begun."""

    def measured(self, rows: int, seconds: float, reading: float | None) -> None:
        """An epoch has read so many rows, and kept its stages busy for so long; how long its tasks were reading, where
        that is known."""


@dataclass(slots=True)
class MeasuredPace:
    """As large as the latency target allows by what was measured, in the user's rhythm. Routing changes by commands,
    and where operators began with one partition."""

    pacer: Pacer
    trigger: Trigger
    readers: Readers
    widening: Widening | None = None

    def is_due(self, now: float) -> bool:
        return self.trigger.is_due(now)

    def rows(self, epoch: int, program: Program) -> int:
        return self.trigger.rows(self.pacer.rows)

    def tasks(self, most: int) -> int:
        return self.readers.tasks(most)

    def routing(self, epoch: int, program: Program, routing: Mapping[str, Routing]) -> Mapping[str, Routing]:
        return routing if self.widening is None else self.widening.routing(program, routing)

    def began(self, now: float) -> None:
        self.trigger.began(now)

    def measured(self, rows: int, seconds: float, reading: float | None) -> None:
        self.pacer.measured(rows, seconds)
        if reading is not None:
            self.readers.measured(reading)
            if self.widening is not None:
                self.widening.measured(seconds, reading)
