"""Event times of rows in the order in which they come: which of them lie behind the watermark they found."""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

from holdfast.hidden_columns import BOUND

__all__ = ["Times", "all_ahead", "row_bounds", "row_marks", "times_of"]


@dataclass(frozen=True, slots=True)
class Times:
    """The least and the greatest time of some rows, and whether they come in order."""

    least: int
    greatest: int
    ordered: bool


def times_of(times: pl.Series, *, ordered: bool = False) -> Times | None:
    """What is to be known of times; None of none, or where some are missing. `ordered` promises that they come in
    order."""
    if not len(times) or times.null_count():
        return None
    ordered = ordered or times.is_sorted()
    least, greatest = (times[0], times[-1]) if ordered else (times.min(), times.max())
    assert isinstance(least, int)
    assert isinstance(greatest, int)
    return Times(least, greatest, ordered)


def all_ahead(column: pl.Series, mark: int) -> bool:
    """Whether no row of an event time column lies behind a watermark, for certain: the time of a window's result is one
    tick before the column's value."""
    times = column if column.dtype.is_integer() else column.to_physical()
    least = None if times.null_count() else times.min()
    return isinstance(least, int) and least > mark


def row_bounds(times: pl.Series, found: Times, known: int | None, lateness: int) -> pl.Series | None:
    """The BOUND of each row, where any row has one. `known` is the greatest time before these rows."""
    if found.ordered and (known is None or found.least >= known - lateness):
        return None
    frame = pl.DataFrame({"time": times, "bound": row_marks(times, known, lateness, ordered=found.ordered)})
    bound = frame.select(pl.when(pl.col("bound") > pl.col("time")).then("bound").alias(BOUND)).to_series()
    return bound if bound.null_count() < len(bound) else None


def row_marks(times: pl.Series, known: int | None, lateness: int, *, ordered: bool = False) -> pl.Series:
    """The watermark before each row; null where nothing was before it."""
    seen = (times if ordered else times.cum_max()).shift(1)
    if known is not None:
        seen = seen.fill_null(known).clip(lower_bound=known)
    return seen - lateness
