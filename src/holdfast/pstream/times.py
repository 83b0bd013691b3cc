"""Event times of rows in the order in which they come: which of them lie behind the watermark they found."""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

__all__ = ["BOUND", "Times", "row_bounds", "row_marks"]

BOUND = "__hf_bound"
"""On a row that lies behind the watermark its source had when the row came: that watermark. On other rows null, or,
where a keyed process wants to know it of every row, the watermark that it found."""


@dataclass(frozen=True, slots=True)
class Times:
    """The greatest time of some rows, None of no rows, and whether they come in order."""

    greatest: int | None = None
    ordered: bool = True


def row_bounds(
    times: pl.Series, known: int | None, lateness: int, *, ordered: bool = False
) -> tuple[Times, pl.Series | None]:
    """What is to be known of the times, and the BOUND of each row where any row has one.

    `known` is the greatest time before these rows; `ordered` says that they are known to come in order.
    """
    if not len(times):
        return Times(), None
    ordered = ordered or times.is_sorted()
    least, greatest = (times[0], times[-1]) if ordered else (times.min(), times.max())
    assert isinstance(least, int)
    assert isinstance(greatest, int)
    found = Times(greatest, ordered)
    if ordered and (known is None or least >= known - lateness):
        return found, None
    frame = pl.DataFrame({"time": times, "bound": row_marks(times, known, lateness, ordered=ordered)})
    bound = frame.select(pl.when(pl.col("bound") > pl.col("time")).then("bound").alias(BOUND)).to_series()
    return found, bound if bound.null_count() < len(bound) else None


def row_marks(times: pl.Series, known: int | None, lateness: int, *, ordered: bool = False) -> pl.Series:
    """The watermark before each row; null where nothing was before it."""
    seen = (times if ordered else times.cum_max()).shift(1)
    if known is not None:
        seen = seen.fill_null(known).clip(lower_bound=known)
    return seen - lateness
