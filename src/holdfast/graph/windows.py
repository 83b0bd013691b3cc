"""Windows: how a stream is cut into finite pieces.

Time windows are aligned to zero on the event-time axis: `tumbling("10s")` has windows [0, 10), [10, 20), ...
A window is half-open, `[start, end)`, and is emitted once, when the watermark reaches its end.
"""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.errors import WrongTypeError
from holdfast.graph.durations import Duration, parse_duration

__all__ = [
    "CountWindow",
    "SessionWindow",
    "TimeWindow",
    "Window",
    "count_window",
    "session",
    "sliding",
    "tumbling",
]


@dataclass(frozen=True, slots=True)
class TimeWindow:
    """Windows of `size` that start every `slide`."""

    size: Duration
    slide: Duration

    def __str__(self) -> str:
        if self.size == self.slide:
            return f"tumbling {self.size}"
        return f"sliding {self.size}/{self.slide}"


@dataclass(frozen=True, slots=True)
class SessionWindow:
    """A session of a key ends when no row came for `gap`. Rows behind the watermark are late."""

    gap: Duration

    def __str__(self) -> str:
        return f"session gap {self.gap}"


@dataclass(frozen=True, slots=True)
class CountWindow:
    """Windows of `size` rows of a key in order of arrival, starting every `slide` rows."""

    size: int
    slide: int

    def __str__(self) -> str:
        return f"count {self.size}/{self.slide}"


Window = TimeWindow | SessionWindow | CountWindow


def tumbling(size: Duration) -> TimeWindow:
    """Windows of `size` side by side."""
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


def count_window(size: int, slide: int | None = None) -> CountWindow:
    """Windows of `size` consecutive rows per key; the last, incomplete window is not emitted.

    Rows of a union of several sources come in no promised order relative to each other, so over such a union which rows
    share a window may depend on how rows are cut into epochs.
    """
    slide = size if slide is None else slide
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
