"""Spans of time as a user writes them ("500ms", "10s", a timedelta, a number of seconds) and reads them."""

from __future__ import annotations

import math
import re
from datetime import timedelta

from holdfast.errors import WrongTypeError

__all__ = ["NANOS", "Duration", "duration", "parse_duration", "seconds_of"]

Duration = str | timedelta | int | float
"""A string such as "500ms", "10s", "5 min", "1 hour", "2d", a timedelta, or a number of seconds."""

NANOS: dict[str, int] = {
    "ns": 1,
    "us": 1_000,
    "ms": 1_000_000,
    "s": 1_000_000_000,
    "sec": 1_000_000_000,
    "min": 60_000_000_000,
    "m": 60_000_000_000,
    "h": 3_600_000_000_000,
    "d": 86_400_000_000_000,
}
_WORDS = {
    "nanosecond": "ns", "microsecond": "us", "millisecond": "ms", "second": "s", "minute": "min", "hour": "h",
    "day": "d",
}  # fmt: skip
NANOS |= {word: NANOS[unit] for one, unit in _WORDS.items() for word in (one, f"{one}s")}
NANOS |= {"secs": NANOS["s"], "mins": NANOS["min"]}
_PATTERN = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([a-z]+)\s*")


def parse_duration(value: Duration) -> int:
    """The duration in nanoseconds."""
    if isinstance(value, timedelta):
        return (value.days * 86_400 + value.seconds) * 1_000_000_000 + value.microseconds * 1_000
    if isinstance(value, bool):
        raise _not_a_duration(value)
    if isinstance(value, int):
        return value * 1_000_000_000
    if isinstance(value, float) and math.isfinite(value):
        return round(value * 1_000_000_000)
    if not isinstance(value, str):
        raise _not_a_duration(value)
    match = _PATTERN.fullmatch(value.lower())
    if match is None or match[2] not in NANOS:
        raise _not_a_duration(value)
    number, nanos = match[1], NANOS[match[2]]
    return int(number) * nanos if "." not in number else round(float(number) * nanos)


def seconds_of(what: str, value: Duration) -> float:
    """The duration in seconds, 0 or more; `what` is named if it is none."""
    try:
        seconds = parse_duration(value) / 1e9
    except WrongTypeError as error:
        raise WrongTypeError(f"{what}={value!r} is not a duration", cure=error.cure) from None
    if seconds < 0:
        raise WrongTypeError(f"{what}={value!r} is negative", cure='give 0 or more, such as "2s"')
    return seconds


def duration(seconds: float) -> str:
    """A time span: 85 ms, 1.25 s, 3 min 20 s."""
    if seconds < 0.9995:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 60:
        return f"{seconds:.2f} s" if seconds < 10 else f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"


def _not_a_duration(value: object) -> WrongTypeError:
    return WrongTypeError(
        f"{value!r} is not a duration",
        cure='write a number with a unit such as "500ms", "10s", "5 min", "1h" or "2d", or a timedelta',
    )
