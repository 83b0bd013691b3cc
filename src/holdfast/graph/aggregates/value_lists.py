"""All values of a window, in order."""

from __future__ import annotations

import polars as pl

from holdfast.graph.aggregates.aggregate import Aggregate, Column
from holdfast.graph.aggregates.operand import expr_of, name_of
from holdfast.hidden_columns import ROW_SEQ, ROW_TIME

__all__ = ["collect_list"]


def collect_list(column: Column) -> Aggregate:
    """The values that are not null as a list, by event time and then arrival; `pl.struct("a", "b")` collects rows.

    All of them are kept until the window closes.
    """
    value = expr_of(column)
    order = {"time": ROW_TIME, "seq0": ROW_SEQ[0], "seq1": ROW_SEQ[1]}
    placed = pl.struct(*(pl.col(hidden).alias(name) for name, hidden in order.items()), value.alias("value"))

    def in_order(values: pl.Expr) -> pl.Expr:
        return values.sort_by(*(values.struct.field(name) for name in order)).implode()

    return Aggregate(
        {"rows": in_order(placed.filter(value.is_not_null()))},
        lambda s: {"rows": in_order(s.rows.explode().drop_nulls())},
        lambda s: s.rows.list.eval(pl.element().struct.field("value")),
        ordered=True,
        label=f"collect_list({name_of(column)})",
    )
