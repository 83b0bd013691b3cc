"""Which event times are allowed: far enough from the ends of 64 bits, and not too far ahead of the clock.

Windows, gaps, lateness and time-to-live are added to event times. So that none of these sums can overflow, an event
time has less than 2⁶² ticks on either side of zero, and all that is added on the way from a source to an operator
comes to less than 2⁶¹ ticks (`graph/time_room.py` checks that). A Datetime also lies between the years 1000 and 9000,
because beyond the calendar it can be neither printed nor written as text. Rows with other times, or none, are bad
rows.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, datetime

import polars as pl

from holdfast.connect.base import DEAD_LETTER_SCHEMA, BadRows
from holdfast.errors import BadRowError

__all__ = ["EARLIEST", "END_OF_TIME", "LATEST", "LONGEST", "BadTimes", "TimeRange", "row_texts"]

EARLIEST, LATEST = -(1 << 62), (1 << 62) - 1
"""The first and the last event time that a row may bring."""
LONGEST = (1 << 61) - 1
"""How many ticks may be added to an event time between its source and any operator."""
END_OF_TIME = LATEST + LONGEST + 2
"""The watermark of a source that has ended: behind the end of every window."""

_PER_SECOND = {"ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}
_FIRST_DATE = round(datetime(1000, 1, 1, tzinfo=UTC).timestamp())
_LAST_DATE = round(datetime(9000, 1, 1, tzinfo=UTC).timestamp()) - 1


@dataclass(frozen=True, slots=True)
class BadTimes:
    """Rows whose times are not allowed, and their places among the others. There may be millions of them, so reasons
    are made when they are asked for."""

    rows: pl.DataFrame
    at: pl.Series
    allowed: TimeRange
    now: float | None
    shift: int

    def reasons(self, most: int | None = None) -> list[str]:
        """Why they are not allowed, of the first rows or of all."""
        times = self.rows[self.allowed.column].head(self.rows.height if most is None else most)
        found = [None if time is None else time + self.shift for time in times.to_physical().to_list()]
        return [self.allowed.reason(time, times.dtype, self.now) for time in found]

    def letters(self, bad_rows: BadRows, source: str, place: str, file: str | None = None) -> pl.DataFrame:
        """The rows as dead letters of a `source`, or the error that stops the run, as `bad_rows` says. `place` is where
        the rows are from, if that is known, and `file` the one that they are in, if there is one."""
        if bad_rows == "fail":
            more = f" ({len(self.at) - 1} more near it)" if len(self.at) > 1 else ""
            error = BadRowError(
                f"{place or source}: a row has no valid event time: {self.reasons(1)[0]}{more};"
                f" the row is: {row_texts(self.rows.head(1))[0][:200]}",
                cure="correct the row, or declare the source with bad_rows='skip' to drop such rows or"
                " bad_rows='dead_letter' to divert them",
            )
            raise error if file is None else error.of(file)
        if bad_rows == "skip":
            return pl.DataFrame(schema=DEAD_LETTER_SCHEMA).clear(len(self.at))  # nobody reads them, they are counted
        texts = row_texts(self.rows)
        rows = [(source, place, reason, text) for reason, text in zip(self.reasons(), texts, strict=True)]
        return pl.DataFrame(rows, schema=DEAD_LETTER_SCHEMA, orient="row")


@dataclass(frozen=True, slots=True)
class TimeRange:
    """The times that are allowed in a column, which counts `per_second` ticks a second.

    With `max_ahead`, in ticks, a time may be no farther ahead of the clock than that. Which reading of the clock
    counts, the caller says: it must be the same whenever the row is read again.
    """

    column: str
    per_second: int = 1
    max_ahead: int | None = None

    def holds(self, dtype: pl.DataType, least: int, greatest: int, now: float | None = None) -> bool:
        """Whether all times from `least` to `greatest` are allowed, in a column of this type."""
        first, last = _limits(dtype)
        return first <= least and greatest <= min(last, self._ceiling(now))

    def split(
        self, frame: pl.DataFrame, now: float | None = None, *, shift: int = 0
    ) -> tuple[pl.DataFrame, BadTimes | None]:
        """The rows whose times are allowed, and the others. `shift` is still to be added to the times."""
        times = frame[self.column]
        if not len(times):
            return frame, None
        ticks = times if times.dtype.is_integer() else times.to_physical()
        least, greatest = ticks.min(), ticks.max()
        if not times.null_count() and self.holds(times.dtype, least + shift, greatest + shift, now):  # type: ignore[operator, arg-type]
            return frame, None
        first, last = (limit - shift for limit in _limits(times.dtype))
        # In 128 bits the limits can be compared with every type of integer.
        wide = ticks.cast(pl.Int128, strict=False)
        good = wide.is_between(first, min(last, self._ceiling(now) - shift)).fill_null(False)
        return frame.filter(good), BadTimes(frame.filter(~good), (~good).arg_true(), self, now, shift)

    def _ceiling(self, now: float | None) -> int:
        """The last time that the clock allows."""
        if self.max_ahead is None or now is None:
            return LATEST
        return min(LATEST, int(now * self.per_second) + self.max_ahead)

    def reason(self, time: int | None, dtype: pl.DataType, now: float | None) -> str:
        """Why a time is not allowed."""
        if time is None:
            return f"it has no event time ('{self.column}' is null)"
        first, last = _limits(dtype)
        if first <= time <= last:
            assert now is not None
            assert self.max_ahead is not None
            ahead = time / self.per_second - now
            most = self.max_ahead / self.per_second
            return (
                f"its event time '{self.column}' = {time} is {ahead:,.3f} s ahead of the clock, max_ahead is {most:g} s"
            )
        allowed = f"{first} to {last}" + (", the years 1000 to 9000" if (first, last) != (EARLIEST, LATEST) else "")
        return f"its event time '{self.column}' = {time} is outside the allowed range: {allowed}"


def _limits(dtype: pl.DataType) -> tuple[int, int]:
    """The first and the last time allowed in a column of this type."""
    if not isinstance(dtype, pl.Datetime):
        return EARLIEST, LATEST
    per_second = _PER_SECOND[dtype.time_unit]
    return max(EARLIEST, _FIRST_DATE * per_second), min(LATEST, _LAST_DATE * per_second)


def row_texts(rows: pl.DataFrame) -> list[str]:
    """Rows as people read them, each a JSON object; what lies beyond the calendar as the number behind it."""
    columns = []
    for name, dtype in rows.schema.items():
        value, ticks = pl.col(name), pl.col(name).to_physical()
        if isinstance(dtype, pl.Datetime | pl.Date):
            bounds = _limits(dtype) if isinstance(dtype, pl.Datetime) else (_FIRST_DATE // 86_400, _LAST_DATE // 86_400)
            text = ticks.clip(*bounds).cast(dtype).dt.to_string("iso")
            columns.append(pl.when(ticks.is_between(*bounds)).then(text).otherwise(ticks.cast(pl.String)).alias(name))
        else:
            columns.append(ticks if dtype.is_temporal() or dtype.is_nested() else value)
    return [json.dumps(row, default=str) for row in rows.select(columns).iter_rows(named=True)]
