"""Durations and event-time units: how "10s" becomes a number in the unit of a time column.

Event time inside Holdfast is a plain integer in the unit of the user's time column, so that no conversion touches
the data. Windows, lateness and time-to-live are converted to that unit once, when the pipeline is declared.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from datetime import timedelta
from typing import Literal, get_args

import polars as pl

from holdfast.errors import WrongTypeError

__all__ = ["NANOS", "Duration", "EventTime", "TimeUnit", "bound_type", "parse_duration", "ticks", "time_unit_of"]

Duration = str | timedelta | int | float
"""A string such as "500ms", "10s", "5 min", "1h", "2d", a timedelta, or a number of seconds."""

TimeUnit = Literal["s", "ms", "us", "ns"]

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


def _not_a_duration(value: object) -> WrongTypeError:
    return WrongTypeError(
        f"{value!r} is not a duration",
        cure='write a number with a unit such as "500ms", "10s", "5 min", "1h" or "2d", or a timedelta',
    )


def ticks(value: Duration, unit: TimeUnit) -> int:
    """The duration in whole ticks of `unit`; an error where it is not whole, since rounding would move windows."""
    nanos = parse_duration(value)
    per_tick = NANOS[unit]
    if nanos % per_tick:
        raise WrongTypeError(
            f"{value!r} is not a whole number of {unit}, the unit of the event time",
            cure=f"choose a duration that is a multiple of 1{unit}, or give the time column a finer unit",
        )
    return nanos // per_tick


@dataclass(frozen=True, slots=True)
class EventTime:
    """Which column holds the event time of a stream, and in which unit.

    `offset` is added to the column's value: the event time of a window's result is the last tick inside the
    window, one before its `window_end`.
    """

    column: str
    unit: TimeUnit
    offset: int = 0

    def expr(self) -> pl.Expr:
        """The event time as an Int64 in `unit`."""
        value = pl.col(self.column).to_physical().cast(pl.Int64)
        return value + self.offset if self.offset else value

    def ticks(self, value: Duration, *, operator: str | None = None) -> int:
        """The duration in ticks of this time; `operator` is named if it does not fit."""
        try:
            return ticks(value, self.unit)
        except WrongTypeError as error:
            raise error.at(operator=operator) from None


def time_unit_of(dtype: pl.DataType, declared: TimeUnit | None, column: str) -> TimeUnit:
    """The unit of a time column: from a Datetime's type, from the declaration for integers."""
    if declared is not None and declared not in get_args(TimeUnit):
        raise WrongTypeError(f"time_unit={declared!r}", cure='use "s", "ms", "us" or "ns"')
    if isinstance(dtype, pl.Datetime):
        if declared not in (None, dtype.time_unit):
            raise WrongTypeError(
                f"event time column '{column}' is {dtype}, and time_unit={declared!r} says otherwise",
                cure="leave time_unit out: a Datetime has its unit in its type",
            )
        return dtype.time_unit
    if dtype.is_integer():
        if declared is None:
            raise WrongTypeError(
                f"event time column '{column}' is {dtype}: its unit is not known",
                cure='say it: event_time="' + column + '", time_unit="ms" (or "s", "us", "ns")',
            )
        return declared
    raise WrongTypeError(
        f"event time column '{column}' is {dtype}",
        cure="event time must be a Datetime or an integer column; convert it first",
    )


def bound_type(dtype: pl.DataType) -> pl.DataType:
    """The type of window bounds: a window may begin before the first and end after the last value of a narrow or
    unsigned time column."""
    return pl.Int64() if dtype.is_integer() else dtype
