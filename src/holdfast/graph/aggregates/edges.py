"""The value of the first and of the last row, by event time and arrival."""

from __future__ import annotations

import polars as pl

from holdfast.graph.aggregates.aggregate import Aggregate, Column, StateColumns
from holdfast.graph.aggregates.operand import expr_of, name_of
from holdfast.hidden_columns import ROW_SEQ, ROW_TIME

__all__ = ["first", "last"]


def _edge(column: Column, descending: bool, label: str) -> Aggregate:
    order = [ROW_TIME, *ROW_SEQ]
    value = expr_of(column)

    def pick(values: pl.Expr, keys: list[pl.Expr]) -> pl.Expr:
        return values.sort_by(keys, descending=descending).first()

    row_keys = [pl.col(name) for name in order]

    def combine(s: StateColumns) -> dict[str, pl.Expr]:
        keys = [s.time, s.seq0, s.seq1]
        columns = {"value": s.value, "time": s.time, "seq0": s.seq0, "seq1": s.seq1}
        return {name: pick(column, keys) for name, column in columns.items()}

    lift = {"value": pick(value, row_keys)}
    for name, key in zip(("time", "seq0", "seq1"), row_keys, strict=True):
        lift[name] = pick(key, row_keys)
    return Aggregate(lift, combine, lambda s: s.value, ordered=True, label=label)


def first(column: Column) -> Aggregate:
    """The value of the row with the earliest event time; of several, the one that arrived first."""
    return _edge(column, False, f"first({name_of(column)})")


def last(column: Column) -> Aggregate:
    """The value of the row with the latest event time; of several, the one that arrived last."""
    return _edge(column, True, f"last({name_of(column)})")
