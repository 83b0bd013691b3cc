"""What expressions do to columns: which they read, which they output unchanged, and whether the event time is one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import polars as pl

from holdfast.graph.durations import EventTime
from holdfast.graph.nodes import Node
from holdfast.hidden_columns import BOUND

__all__ = ["changes_column", "columns_of", "kept_time", "sees_bound"]


def columns_of(exprs: Iterable[pl.Expr]) -> frozenset[str] | None:
    """The columns that expressions read; None if one of them stands for all that match."""
    found: set[str] = set()
    for expr in exprs:
        if expr.meta.has_multiple_outputs():
            return None
        found.update(expr.meta.root_names())
    return frozenset(found)


def sees_bound(frame: pl.LazyFrame, exprs: Sequence[pl.Expr]) -> bool:
    """Whether one of the expressions stands for several columns, e.g. `pl.all()`, and could mean the hidden one."""
    return any(expr.meta.has_multiple_outputs() for expr in exprs) and BOUND in frame.collect_schema()


def _copies(exprs: Iterable[pl.Expr], column: str, schema: pl.Schema) -> list[str]:
    """The names under which expressions output an input column as it is: `pl.col("t").alias("at")` gives `at`."""
    only = pl.DataFrame(
        {name: pl.Series([0 if name == column else None]).cast(dtype) for name, dtype in schema.items()}, schema=schema
    )
    return [
        value.name
        for expr in exprs
        if expr.meta.is_column_selection(allow_aliasing=True)
        for value in only.select(expr)
        if value.null_count() == 0
    ]


def changes_column(exprs: Iterable[pl.Expr], column: str, schema: pl.Schema) -> bool:
    """Whether one of the expressions makes a column of that name which is not simply the input's."""
    empty = pl.LazyFrame(schema=schema)
    return any(
        column in empty.select(expr).collect_schema() and column not in _copies([expr], column, schema)
        for expr in exprs
    )


def kept_time(before: Node, schema: pl.Schema, exprs: Sequence[pl.Expr] = ()) -> EventTime | None:
    """The event time of rows with this schema that are made of those of `before`: its column, unchanged except for its
    name. Only the source's time says whether a row is late."""
    time = before.time
    if time is None:
        return None
    names = [] if changes_column(exprs, time.column, before.schema) else [time.column]
    names += _copies(exprs, time.column, before.schema)
    kept = [name for name in names if schema.get(name) == before.schema[time.column]]
    return replace(time, column=kept[0]) if kept else None
