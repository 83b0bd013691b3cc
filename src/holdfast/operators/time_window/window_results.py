"""Results of time windows, put together from the partials of their panes. Pure: partials in, rows out."""

from __future__ import annotations

import numpy as np
import polars as pl

from holdfast.graph.nodes import WindowAggregate
from holdfast.hidden_columns import CELL, FROM, PANE, POSITION, WINDOW
from holdfast.operators.lift import combine_partials
from holdfast.operators.sliding import WindowShape, kernels_cover, lay_out, slide_generic, slide_kernel, slide_presence

__all__ = ["assemble_windows"]


def assemble_windows(
    node: WindowAggregate, shape: WindowShape, partials: pl.DataFrame, first: int, last: int
) -> pl.DataFrame:
    """The results of windows `first` to `last`."""
    behind = partials.filter(pl.col(FROM).is_not_null())
    on_time = partials.filter(pl.col(FROM).is_null()) if behind.height else partials
    states = []
    if on_time.height:
        states.append(_windows_of(node, shape, on_time, first, last))
    if behind.height:
        states.append(_expand(node, shape, behind, first, last))
    windows = pl.concat(states)
    if len(states) > 1:
        windows = combine_partials(windows.lazy(), node, [*node.keys, WINDOW], rows=False).collect()
    return _lower(node, shape, windows)


def _windows_of(
    node: WindowAggregate, shape: WindowShape, partials: pl.DataFrame, first: int, last: int
) -> pl.DataFrame:
    """Windows of partials that count in every window over their pane."""
    groups = [POSITION, *node.keys, PANE]
    if shape.length == 1:
        merged = combine_partials(partials.lazy(), node, groups, rows=False).collect()
        return merged.rename({PANE: WINDOW}).select(*node.keys, WINDOW, *node.state_schema)
    length, pane = shape.length, pl.col(PANE)
    span = (last - first) * shape.step + 1
    if span < length:
        # Every window holds the panes in the middle: merge them into one, and the windows become `span` long.
        core_low, core_high = last * shape.step, first * shape.step + shape.length - 1
        pane = (
            pl.when(pane < core_low)
            .then(pane)
            .when(pane <= core_high)
            .then(core_low)
            .otherwise(pane + (core_low - core_high))
        )
        length = span
    remapped = partials.lazy().with_columns(pane.alias(PANE))
    sorted_partials = combine_partials(remapped, node, groups, rows=False).sort(POSITION, PANE).collect()
    group, sorted_partials = _group_numbers(sorted_partials, node.keys)
    layout = lay_out(group, sorted_partials[PANE].to_numpy(), length)
    start = layout.end - (length - 1)
    wanted = (start % shape.step == 0) & (start >= first * shape.step) & (start <= last * shape.step)
    columns = list(node.state_schema)
    kernels = {name: kernel for bound in node.aggregates for name, kernel in bound.kernels.items()}
    if kernels_cover(columns, kernels, node.state_schema):
        cells = np.flatnonzero(wanted & slide_presence(layout, length))
        states = [
            slide_kernel(layout, sorted_partials[column], kernels[column], length).gather(cells) for column in columns
        ]
    else:

        def combine(rows: pl.LazyFrame) -> pl.LazyFrame:
            return combine_partials(rows, node, [CELL], rows=False)

        slid = slide_generic(layout, sorted_partials.select(columns), combine, length)
        slid = slid.filter(pl.Series(wanted[slid[CELL].to_numpy()]))
        cells = slid[CELL].to_numpy()
        states = slid.select(columns).get_columns()
    keys = [sorted_partials[key].gather(layout.group[cells]) for key in node.keys]
    window = pl.Series(WINDOW, start[cells] // shape.step)
    return pl.DataFrame([*keys, window, *states])


def _group_numbers(partials: pl.DataFrame, keys: tuple[str, ...]) -> tuple[np.ndarray, pl.DataFrame]:
    """A number per group of partials sorted by position and pane; sorts again where two keys share a position."""
    positions = partials[POSITION].to_numpy()
    changed = np.ones(len(positions), dtype=bool)
    changed[1:] = positions[1:] != positions[:-1]
    key_changed = _rows_change(partials, keys)
    if (key_changed & ~changed).any():
        partials = partials.sort(POSITION, *keys, PANE)
        changed = _rows_change(partials, keys)
    return np.cumsum(changed) - 1, partials


def _rows_change(frame: pl.DataFrame, keys: tuple[str, ...]) -> np.ndarray:
    changed = np.zeros(frame.height, dtype=bool)
    changed[:1] = True
    for key in keys:
        changed |= frame.select(pl.col(key).ne_missing(pl.col(key).shift(1))).to_series().to_numpy()
    return changed


def _expand(node: WindowAggregate, shape: WindowShape, behind: pl.DataFrame, first: int, last: int) -> pl.DataFrame:
    """Partials of rows that came behind the watermark count in some windows over their pane only: one row each."""
    low = pl.max_horizontal(
        (pl.col(PANE) - shape.length).floordiv(shape.step) + 1, pl.col(FROM), pl.lit(first, pl.Int64)
    )
    high = pl.min_horizontal(pl.col(PANE).floordiv(shape.step), pl.lit(last, pl.Int64))
    return (
        behind.lazy()
        .with_columns(pl.int_ranges(low, high + 1).alias(WINDOW))
        .filter(pl.col(WINDOW).list.len() > 0)
        .explode(WINDOW)
        .group_by([*node.keys, WINDOW], maintain_order=True)
        .agg([expr for bound in node.aggregates for expr in bound.combine])
        .collect()
    )


def _lower(node: WindowAggregate, shape: WindowShape, windows: pl.DataFrame) -> pl.DataFrame:
    bound_type = node.schema["window_start"]
    start = pl.col(WINDOW) * shape.slide
    return windows.sort(WINDOW, *node.keys).select(
        *node.keys,
        start.cast(bound_type).alias("window_start"),
        (start + shape.size).cast(bound_type).alias("window_end"),
        *(bound.lower for bound in node.aggregates),
    )
