"""Exactly how many distinct values there are."""

from __future__ import annotations

import polars as pl

from holdfast.graph.aggregates.aggregate import Aggregate, Column
from holdfast.graph.aggregates.operand import expr_of, name_of, typed

__all__ = ["count_distinct"]


def count_distinct(column: Column) -> Aggregate:
    """Exactly how many distinct values that are not null; of a struct, as in `pl.struct("a", "b")`, how many pairs.

    All distinct values of a window are kept until it closes; `approx_distinct` keeps a sketch of at most 4,096 numbers.
    """

    def kept(values: pl.Expr) -> pl.Expr:
        # In order, which makes what is stored smaller, and the same however it came together.
        return values.drop_nulls().unique().sort().implode()

    return Aggregate(
        typed("count_distinct", column, _compares, lambda _: {"values": kept(expr_of(column))}),
        lambda s: {"values": kept(s.values.explode())},
        lambda s: s.values.list.len().cast(pl.Int64),
        label=f"count_distinct({name_of(column)})",
    )


def _compares(dtype: pl.DataType) -> bool:
    """Whether values of this type can be told apart and put in order."""
    if isinstance(dtype, pl.Struct):
        return all(_compares(inner) for inner in pl.Schema(dtype.to_schema()).values())
    return not dtype.is_nested() and dtype != pl.Object
