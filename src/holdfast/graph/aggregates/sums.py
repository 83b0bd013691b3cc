"""Counts, sums and means."""

from __future__ import annotations

import polars as pl

from holdfast.graph.aggregates.aggregate import Aggregate, Column
from holdfast.graph.aggregates.operand import countable, expr_of, is_number, name_of, typed

__all__ = ["count", "mean", "sum"]


def count(column: Column | None = None) -> Aggregate:
    """The number of rows, or of non-null values of a column."""
    lift = pl.len() if column is None else expr_of(column).count()
    return Aggregate(
        {"n": lift.cast(pl.Int64)},
        lambda s: {"n": s.n.sum()},
        lambda s: s.n,
        {"n": "sum"},
        dense=countable(column, n="count"),
        label="count" if column is None else f"count({name_of(column)})",
    )


def sum(column: Column) -> Aggregate:
    """The sum of the non-null values; 0 if there are none.

    Integers are summed in 64 bits (Polars alone would sum an Int32 column in 32), floats in Float64, decimals exactly,
    with 38 digits.
    """

    def lift(dtype: pl.DataType) -> dict[str, pl.Expr]:
        return {"total": expr_of(column).cast(_wide(dtype)).sum()}

    return Aggregate(
        typed("sum", column, lambda dtype: is_number(dtype) or isinstance(dtype, pl.Duration), lift),
        lambda s: {"total": s.total.sum()},
        lambda s: s.total,
        {"total": "sum"},
        dense=countable(column, total="sum"),
        label=f"sum({name_of(column)})",
    )


def _wide(dtype: pl.DataType) -> pl.DataType:
    """The type in which values of `dtype` are summed."""
    if isinstance(dtype, pl.Decimal):
        return pl.Decimal(38, dtype.scale)
    if isinstance(dtype, pl.Duration) or dtype in (pl.UInt64, pl.Int128, pl.UInt128):
        return dtype
    return pl.Float64() if dtype.is_float() else pl.Int64()


def mean(column: Column) -> Aggregate:
    """The mean of the non-null values; null if there are none."""
    return Aggregate(
        typed(
            "mean",
            column,
            is_number,
            lambda _: {"total": expr_of(column).cast(pl.Float64).sum(), "n": expr_of(column).count().cast(pl.Int64)},
        ),
        lambda s: {"total": s.total.sum(), "n": s.n.sum()},
        lambda s: pl.when(s.n > 0).then(s.total / s.n),
        {"total": "sum", "n": "sum"},
        dense=countable(column, total="sum", n="count"),
        label=f"mean({name_of(column)})",
    )
