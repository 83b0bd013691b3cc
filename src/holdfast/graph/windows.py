"""Windows: how a stream is cut into finite pieces.

Time windows are aligned to zero on the event-time axis: `tumbling("10s")` has windows [0, 10), [10, 20), ...
A window is half-open, `[start, end)`, and is emitted once, when the watermark reaches its end.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

from holdfast.errors import WrongTypeError
from holdfast.graph.durations import Duration, EventTime, parse_duration

__all__ = [
    "CountWindow",
    "SessionWindow",
    "TimeWindow",
    "Window",
    "count",
    "session",
    "sliding",
    "tumbling",
]


class Window(ABC):
    """The part of a kind of window that declarations need; its operator has the rest."""

    __slots__ = ()

    timed: ClassVar[bool] = True
    """Whether event time decides which rows it holds. Then rows may be late, and its results have an event time."""
    aligned: ClassVar[bool] = False
    """Whether windows lie at the same times for all keys, so that two streams can be joined in them."""
    bounds: ClassVar[tuple[str, ...]] = ("window_start", "window_end")
    """The columns of a result that say which window it is of."""

    @property
    @abstractmethod
    def durations(self) -> tuple[Duration, ...]:
        """The times it is declared with; by the first, results may lie behind their rows."""

    def reach(self, time: EventTime | None) -> int:
        """By how many ticks the time of a result may exceed those of its rows."""
        return time.ticks(self.durations[0]) if time is not None and self.durations else 0

    def check(self, time: EventTime, operator: str) -> None:
        """Refuse times that are not a whole number of ticks."""
        for duration in self.durations:
            time.ticks(duration, operator=operator)


@dataclass(frozen=True, slots=True)
class TimeWindow(Window):
    """Windows of `size` that start every `slide`."""

    size: Duration
    slide: Duration
    aligned: ClassVar[bool] = True

    @property
    def durations(self) -> tuple[Duration, ...]:
        return self.size, self.slide

    def __str__(self) -> str:
        if self.size == self.slide:
            return f"tumbling {self.size}"
        return f"sliding {self.size}/{self.slide}"


@dataclass(frozen=True, slots=True)
class SessionWindow(Window):
    """A session of a key ends when no row came for `gap`. Rows behind the watermark are late."""

    gap: Duration

    @property
    def durations(self) -> tuple[Duration, ...]:
        return (self.gap,)

    def __str__(self) -> str:
        return f"session gap {self.gap}"


@dataclass(frozen=True, slots=True)
class CountWindow(Window):
    """Windows of `size` rows of a key in order of arrival, starting every `slide` rows."""

    size: int
    slide: int
    timed: ClassVar[bool] = False
    bounds: ClassVar[tuple[str, ...]] = ("window_index",)

    @property
    def durations(self) -> tuple[Duration, ...]:
        return ()

    def __str__(self) -> str:
        return f"count {self.size}/{self.slide}"


def tumbling(size: Duration) -> TimeWindow:
    """Adjacent windows of `size`."""
    return sliding(size, size)


def sliding(size: Duration, slide: Duration) -> TimeWindow:
    """Windows of `size` that start every `slide`; a row is in `size / slide` of them."""
    _positive("size", parse_duration(size), size)
    _positive("slide", parse_duration(slide), slide)
    if parse_duration(slide) > parse_duration(size):
        raise WrongTypeError(
            f"slide {slide!r} is longer than size {size!r}: rows between the windows would be lost",
            cure="make the slide at most the size, or filter the rows you do not want",
        )
    return TimeWindow(size, slide)


def session(gap: Duration) -> SessionWindow:
    """One window per burst of a key's rows; rows less than `gap` apart are in the same session."""
    _positive("gap", parse_duration(gap), gap)
    return SessionWindow(gap)


def count(size: int, slide: int | None = None) -> CountWindow:
    """Windows of `size` consecutive rows per key; the last, incomplete window is not emitted.

    Rows of a union of several sources come in no promised order relative to each other, so over such a union which rows
    share a window may depend on how rows are cut into epochs.
    """
    slide = size if slide is None else slide
    for what, number in (("size", size), ("slide", slide)):
        if isinstance(number, bool) or not isinstance(number, int):
            raise WrongTypeError(
                f"window {what} {number!r} is not a number of rows",
                cure="give a whole number; windows of time are hf.window.tumbling('10s') and hf.window.sliding(...)",
            )
    _positive("size", size, size)
    _positive("slide", slide, slide)
    if slide > size:
        raise WrongTypeError(
            f"slide {slide} is larger than size {size}: rows between the windows would be lost",
            cure="make the slide at most the size",
        )
    return CountWindow(size, slide)


def _positive(what: str, value: int, given: object) -> None:
    if value <= 0:
        raise WrongTypeError(f"window {what} {given!r} is not positive", cure=f"give a {what} above zero")
