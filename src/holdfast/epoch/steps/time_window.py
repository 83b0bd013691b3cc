"""Tumbling and sliding windows: pane partials in, closed windows out."""

from __future__ import annotations

import numpy as np
import polars as pl

from holdfast.connect.time_range import END_OF_TIME
from holdfast.epoch.steps.base import Arrivals, StepContext, StepResult, effective_bound
from holdfast.epoch.steps.trace_panes import FOOTPRINTS, Current, PaneTrace, index_loaded, read_windows
from holdfast.graph.durations import EventTime
from holdfast.graph.nodes import WindowAggregate
from holdfast.graph.windows import TimeWindow
from holdfast.plan.lift import (
    BOUND,
    FROM,
    ROWS,
    combine_partials,
    from_expr,
    lift_partials,
    mark_late,
    shape_of,
    state_groups,
)
from holdfast.state.manifest import POSITION, Interval, Manifest
from holdfast.state.position import key_positions
from holdfast.state.sliding import (
    WindowShape,
    kernels_cover,
    lay_out,
    slide_generic,
    slide_kernel,
    slide_presence,
)
from holdfast.state.tables import PANE, PaneTable, Writer
from holdfast.store import DirectoryStore

__all__ = ["assemble_windows", "expired_panes", "load_panes", "pane_table", "step", "window_range"]

WINDOW = "__hf_window"


def step(node: WindowAggregate, arrivals: Arrivals, context: StepContext, manifest: Manifest) -> StepResult:
    assert isinstance(node.window, TimeWindow)
    assert node.time is not None
    shape = shape_of(node.window, node.time)
    late: list[pl.DataFrame] = []
    late_rows = 0
    arrived: list[pl.DataFrame] = []
    for batch in arrivals.batches():
        partials = batch.frame
        if ROWS not in partials.columns:
            partials, behind = _lift_rows(node, shape, batch.frame.with_columns(effective_bound(batch).alias(BOUND)))
            late.append(behind)
            late_rows += behind.height
        else:
            partials, dropped = mark_late(partials, shape, batch.bound)
            late_rows += dropped
        arrived.append(partials)
    groups = state_groups(node)
    new = pl.concat(arrived) if arrived else None
    if new is not None and new.height:
        new = combine_partials(new.lazy(), node, groups, rows=False).collect() if len(arrived) > 1 else new.drop(ROWS)
    else:
        new = None

    table = pane_table(node, context.writer.store)
    traced = PaneTrace(context.trace, node, context.writer.store) if context.trace is not None else None
    if traced is not None:
        nothing = pl.DataFrame(schema=_stored_schema(node, arrivals))
        [new] = traced.unseen(manifest, [new if new is not None else nothing])
        new = new if new.height else None
    output = pl.DataFrame(schema=node.schema)
    expired = None
    if context.watermark_after is not None:
        first, last = window_range(manifest, new, shape, context)
        if first <= last and context.wanted:
            low, high = first * shape.step, last * shape.step + shape.length - 1
            frames = table.read(manifest, low, high)
            if new is not None:
                frames.append(new.filter(pl.col(PANE).is_between(low, high)).select(_state_columns(node)))
            frames = [frame for frame in frames if frame.height]
            if frames:
                output = assemble_windows(node, shape, pl.concat(frames), first, last)
        expired = expired_panes(shape, context.watermark_after)
    kept = new.select(_state_columns(node)) if new is not None else pl.DataFrame(schema={PANE: pl.Int64})
    manifest = table.append(manifest, context.writer, kept, expired)
    if traced is not None:
        records = kept if new is not None else pl.DataFrame(schema=_stored_schema(node, arrivals))
        manifest = traced.leave(manifest, context.writer, records, _current(node, table), expired)
    else:
        manifest = manifest.with_table(FOOTPRINTS, ())
    return StepResult(manifest, output, pl.concat(late) if late else None, late_rows)


def _stored_schema(node: WindowAggregate, arrivals: Arrivals) -> dict[str, pl.DataType]:
    rows = arrivals.batches()[0].frame.schema
    keys = {key: rows[key] for key in node.keys}
    return {POSITION: pl.UInt64(), **keys, PANE: pl.Int64(), FROM: pl.Int64(), **node.state_schema}


def _current(node: WindowAggregate, table: PaneTable) -> Current:
    def current(manifest: Manifest, names: pl.DataFrame | None) -> pl.DataFrame | None:
        """The state of these windows, or of all, each as one row per group."""
        rows = read_windows(table, manifest, names, [POSITION, *node.keys, PANE])
        if rows is None:
            return None
        groups = state_groups(node)
        return combine_partials(rows.lazy(), node, groups, rows=False).collect().select(_state_columns(node))

    return current


def load_panes(node: WindowAggregate, rows: pl.DataFrame, interval: Interval, writer: Writer) -> Manifest:
    """State from the last footprints of all windows in an interval."""
    table = pane_table(node, writer.store)
    manifest = table.append(Manifest(interval), writer, rows.select(_state_columns(node)), None)
    return index_loaded(node, rows, manifest, writer)


def pane_table(node: WindowAggregate, store: DirectoryStore) -> PaneTable:
    """Partials by key and pane."""

    def merge(rows: pl.DataFrame) -> pl.DataFrame:
        return combine_partials(rows.lazy(), node, state_groups(node), rows=False).collect()

    return PaneTable("panes", store, merge)


def expired_panes(shape: WindowShape, watermark: int) -> int:
    """The last pane that no window needs which is still open at the watermark."""
    return (shape.last_closed(watermark) + 1) * shape.step - 1


def _state_columns(node: WindowAggregate) -> list[str]:
    return [*state_groups(node), *node.state_schema]


def _lift_rows(node: WindowAggregate, shape: WindowShape, rows: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Partials of rows that travelled whole, and the rows that are too late for any window."""
    time = pl.col("__hf_time")
    tagged = rows.with_columns(time.floordiv(shape.pane).alias(PANE)).with_columns(
        pl.when(pl.col(BOUND) > time).then(from_expr(shape, pl.col(BOUND))).alias(FROM)
    )
    late = pl.col(FROM).is_not_null() & (pl.col(PANE).floordiv(shape.step) < pl.col(FROM))
    hidden = [column for column in tagged.columns if column.startswith("__hf_")]
    behind = tagged.filter(late).drop(hidden)
    partials = lift_partials(tagged.filter(~late).lazy(), node, list(node.keys), bounded=True).collect()
    positions = key_positions([partials[key] for key in node.keys], partials.height)
    partials = partials.insert_column(0, pl.Series(POSITION, positions))
    return partials.select(*state_groups(node), *node.state_schema, ROWS), behind


def window_range(
    manifest: Manifest, new: pl.DataFrame | None, shape: WindowShape, context: StepContext, table: str = "panes"
) -> tuple[int, int]:
    """The first and last window to emit: closed after the epoch, not closed before it, and near some pane."""
    assert context.watermark_after is not None
    lows = [piece.low for piece in manifest.table(table)]
    highs = [piece.high for piece in manifest.table(table)]
    if new is not None and new.height:
        lows.append(_int(new[PANE].min()))
        highs.append(_int(new[PANE].max()))
    if not lows:
        return 0, -1
    first = shape.first_of(min(lows))
    last = shape.last_of(max(highs))
    if context.watermark_before is not None:
        first = max(first, shape.last_closed(context.watermark_before) + 1)
    if context.watermark_after < END_OF_TIME:
        last = min(last, shape.last_closed(context.watermark_after))
    return first, last


def _int(value: object) -> int:
    assert isinstance(value, int)
    return value


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
            return combine_partials(rows, node, ["__hf_slot"], rows=False)

        slid = slide_generic(layout, sorted_partials.select(columns), combine, length)
        slid = slid.filter(pl.Series(wanted[slid["__hf_slot"].to_numpy()]))
        cells = slid["__hf_slot"].to_numpy()
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
    assert isinstance(node.time, EventTime)
    bound_type = node.schema["window_start"]
    start = pl.col(WINDOW) * shape.slide
    return windows.sort(WINDOW, *node.keys).select(
        *node.keys,
        start.cast(bound_type).alias("window_start"),
        (start + shape.size).cast(bound_type).alias("window_end"),
        *(bound.lower for bound in node.aggregates),
    )
