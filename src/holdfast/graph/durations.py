"""Durations and event-time units: how "10s" becomes a number in the unit of a time column.

Event time inside Holdfast is a plain integer in the unit of the user's time column, so that no conversion touches
the data. Windows, lateness and time-to-live are converted to that unit once, when the pipeline is declared.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import polars as pl

from holdfast.errors import WrongTypeError
from holdfast.spans import NANOS, Duration, parse_duration

__all__ = ["NANOS", "Duration", "EventTime", "TimeUnit", "bound_type", "parse_duration", "ticks", "time_unit_of"]

TimeUnit = Literal["s", "ms", "us", "ns"]


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

    def of(self, rows: pl.DataFrame) -> pl.Series:
        """The event times of rows. A query is made of `expr` only where it is needed: it takes longer than to look at
        some rows."""
        times = rows[self.column]
        return times if times.dtype == pl.Int64 and not self.offset else rows.select(self.expr()).to_series()

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
                f"event time column '{column}' is {dtype}, but time_unit={declared!r} says otherwise",
                cure="leave out time_unit: a Datetime has its unit in its type",
            )
        return dtype.time_unit
    if dtype.is_integer():
        if declared is None:
            raise WrongTypeError(
                f"event time column '{column}' is {dtype}: its unit is unknown",
                cure='set it: event_time="' + column + '", time_unit="ms" (or "s", "us", "ns")',
            )
        return declared
    if dtype == pl.String:
        cure = f"declare it as a time in the source's schema, which then parses it: {{'{column}': pl.Datetime('ms')}}"
    elif dtype == pl.Date:
        cure = f"declare it in the source's schema as {{'{column}': pl.Datetime('ms')}}: a day is its midnight"
    else:
        cure = f"declare it in the source's schema as a Datetime or an integer, e.g. {{'{column}': pl.Datetime('ms')}}"
    raise WrongTypeError(f"event time column '{column}' is {dtype}", cure=cure)


def bound_type(dtype: pl.DataType) -> pl.DataType:
    """The type of window bounds: a window may begin before the first and end after the last value of a narrow or
    unsigned time column."""
    return pl.Int64() if dtype.is_integer() else dtype
