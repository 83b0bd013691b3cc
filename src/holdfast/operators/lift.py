"""Lift: from rows to partial aggregates per pane, in the fragment function and wherever else rows arrive whole."""

from __future__ import annotations

import polars as pl

from holdfast.graph.durations import EventTime
from holdfast.graph.nodes import WindowAggregate
from holdfast.hidden_columns import BOUND, FROM, PANE, POSITION, ROW_SEQ, ROW_TIME, ROWS
from holdfast.operators.sliding import WindowShape

__all__ = [
    "bounded",
    "combine_partials",
    "from_expr",
    "lift_partials",
    "mark_late",
    "needed_columns",
    "pane_schema",
    "partial_schema",
    "state_groups",
]


def needed_columns(node: WindowAggregate, time: EventTime | None) -> list[str]:
    """The input columns an aggregate reads: the others need not travel."""
    names = list(node.keys)
    for bound in node.aggregates:
        exprs = (*bound.prepare, *bound.lift)
        made = {expr.meta.output_name() for expr in bound.prepare}
        names += [name for expr in exprs for name in expr.meta.root_names() if name not in made]
    if time is not None:
        names.append(time.column)
    hidden = {ROW_TIME, *ROW_SEQ}
    return list(dict.fromkeys(name for name in names if name not in hidden))


def pane_schema(node: WindowAggregate, rows: pl.Schema) -> pl.Schema:
    """The columns of state in panes that such rows come to."""
    keys = {key: rows[key] for key in node.keys}
    return pl.Schema({**keys, PANE: pl.Int64(), FROM: pl.Int64(), **node.state_schema})


def partial_schema(node: WindowAggregate, rows: pl.Schema) -> pl.Schema:
    """The columns of partials of such rows."""
    return pl.Schema({**pane_schema(node, rows), ROWS: pl.Int64()})


def bounded(frame: pl.DataFrame, time: EventTime, before: int | None) -> tuple[pl.DataFrame, pl.Series]:
    """The rows, with bounds on those alone that lie behind them, and the watermark of each row: what it has as its
    bound, and `before` at least."""
    known = pl.col(BOUND) if BOUND in frame.columns else pl.lit(None, pl.Int64)
    frame = frame.with_columns(pl.max_horizontal(known, pl.lit(before, pl.Int64)).alias(BOUND))
    marks = frame[BOUND]
    frame = frame.with_columns(pl.when(pl.col(BOUND) > time.expr()).then(BOUND).alias(BOUND))
    return frame.drop(BOUND) if frame[BOUND].null_count() == frame.height else frame, marks


def from_expr(shape: WindowShape, bound: pl.Expr) -> pl.Expr:
    """The first window whose end lies after `bound`."""
    return (bound - shape.size).floordiv(shape.slide) + 1


def lift_partials(rows: pl.LazyFrame, node: WindowAggregate, keys: list[str], bounded: bool) -> pl.LazyFrame:
    """Partials by `keys` and, where the rows have them, PANE and FROM."""
    prepare = [expr for aggregate in node.aggregates for expr in aggregate.prepare]
    lift = [expr for aggregate in node.aggregates for expr in aggregate.lift]
    rows = rows.with_columns(prepare) if prepare else rows
    groups = [*keys, PANE, FROM] if bounded else [*keys, PANE]
    partials = rows.group_by(groups).agg(*lift, pl.len().cast(pl.Int64).alias(ROWS))
    return partials if bounded else partials.with_columns(pl.lit(None, pl.Int64).alias(FROM))


def combine_partials(partials: pl.LazyFrame, node: WindowAggregate, groups: list[str], rows: bool) -> pl.LazyFrame:
    """Merge partials of the same group, in their order."""
    combine = [expr for aggregate in node.aggregates for expr in aggregate.combine]
    counted = [pl.col(ROWS).sum()] if rows else []
    return partials.group_by(groups, maintain_order=True).agg(*combine, *counted)


def mark_late(partials: pl.DataFrame, shape: WindowShape, bound: int | None) -> tuple[pl.DataFrame, int]:
    """Apply the watermark a task began with: raise FROM where windows were closed by then, and drop what is left
    without a window. Returns how many rows that were."""
    if partials.is_empty():
        return partials, 0
    if bound is not None and _first_window(partials, shape) < (first_open := shape.last_closed(bound) + 1):
        first_of_pane = (pl.col(PANE) - shape.length).floordiv(shape.step) + 1
        partials = partials.with_columns(
            pl.when(first_of_pane < first_open)
            .then(pl.max_horizontal(pl.col(FROM), pl.lit(first_open, pl.Int64)))
            .otherwise(pl.col(FROM))
            .alias(FROM)
        )
    if partials[FROM].null_count() == partials.height:
        return partials, 0
    late = pl.col(FROM).is_not_null() & (pl.col(PANE).floordiv(shape.step) < pl.col(FROM))
    dropped = partials.filter(late)[ROWS].sum()
    return partials.filter(~late), int(dropped)


def _first_window(partials: pl.DataFrame, shape: WindowShape) -> int:
    """The first window over the earliest pane."""
    earliest = partials[PANE].min()
    assert isinstance(earliest, int)
    return (earliest - shape.length) // shape.step + 1


def state_groups(node: WindowAggregate) -> list[str]:
    """What makes a row of pane state unique."""
    return [POSITION, *node.keys, PANE, FROM]
