"""The rules of a stream that clients fill: which columns and times a batch must have, and what is written of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import polars as pl

from holdfast.connect.time_range import TimeRange
from holdfast.errors import BadRowError, WrongTypeError
from holdfast.hidden_columns import BOUND
from holdfast.pstream.times import row_bounds, row_marks, times_of

__all__ = ["BatchRules", "Prepare"]

Prepare = Callable[[pl.DataFrame], pl.DataFrame]


@dataclass(frozen=True, slots=True)
class BatchRules:
    """`prepare` is applied to the rows before they are written, and must keep hidden columns. `marked` says that
    readers want to know the watermark before each row."""

    schema: pl.Schema
    event_time: str | None
    lateness: int
    prepare: Prepare | None = None
    marked: bool = False

    def prepared(self, frame: pl.DataFrame, greatest: int | None) -> tuple[pl.DataFrame, int | None]:
        """What is written of a batch, with the bounds of rows behind the watermark that the rows before it have
        brought, or of all rows if readers want them; and the greatest time by then."""
        if self.event_time is not None:
            column = frame[self.event_time]
            times = column if column.dtype.is_integer() else column.to_physical()
            seen = times_of(times)
            if seen is None or not TimeRange(self.event_time).holds(column.dtype, seen.least, seen.greatest):
                self._refuse_bad_times(frame, TimeRange(self.event_time))
            if seen is not None:
                times = times if times.dtype == pl.Int64 else times.cast(pl.Int64)
                bound = row_bounds(times, seen, greatest, self.lateness)
                if self.marked:
                    bound = row_marks(times, greatest, self.lateness).alias(BOUND)
                frame = frame.with_columns(bound) if bound is not None else frame
                greatest = seen.greatest if greatest is None else max(greatest, seen.greatest)
        if self.prepare is not None:
            frame = self.prepare(frame)
        self._check_schema(frame)
        return frame, greatest

    def _refuse_bad_times(self, frame: pl.DataFrame, allowed: TimeRange) -> None:
        bad = allowed.split(frame)[1]
        if bad is not None:
            raise BadRowError(
                f"{len(bad.at)} rows have no valid event time; the first of them, row {bad.at[0] + 1}:"
                f" {bad.reasons(1)[0]}",
                cure="give every row a time that is allowed, or filter such rows out before they are sent",
            )

    def _check_schema(self, frame: pl.DataFrame) -> None:
        """Refuse a batch of other columns, before it is put together with those of others."""
        found = {name: dtype for name, dtype in frame.schema.items() if name != BOUND}
        if found != dict(self.schema):
            raise WrongTypeError(
                f"the batch has {_columns(found)}, the p-stream {_columns(self.schema)}",
                cure="send the columns that the stream was declared with",
            )

    def watermark_after(self, watermark: int | None, greatest: int | None) -> int | None:
        """The watermark of the stream behind rows with this greatest time."""
        if greatest is None:
            return watermark
        reached = greatest - self.lateness
        return reached if watermark is None else max(watermark, reached)


def _columns(schema: Mapping[str, pl.DataType]) -> str:
    return ", ".join(f"{name} {dtype}" for name, dtype in schema.items())
