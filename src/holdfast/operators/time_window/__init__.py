"""Tumbling and sliding windows: pane partials in, closed windows out.

Rows are lifted before they travel, to one partial aggregate per key and pane. The table of panes holds partials until
no open window needs them.
"""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from holdfast.graph.durations import EventTime
from holdfast.graph.nodes import WindowAggregate
from holdfast.hidden_columns import BOUND, FROM, PANE, POSITION, ROW_TIME, ROWS, visible
from holdfast.operators.contract import StateTable
from holdfast.operators.lift import (
    combine_partials,
    from_expr,
    lift_partials,
    mark_late,
    needed_columns,
    pane_schema,
    state_groups,
)
from holdfast.operators.pane_footprints import FOOTPRINTS, Current, PaneTrace, index_loaded, read_windows
from holdfast.operators.panes import PaneOperator, expired_panes, window_range
from holdfast.operators.sliding import WindowShape
from holdfast.operators.step import StepContext, StepInput, StepResult, effective_bound
from holdfast.operators.time_window.window_results import assemble_windows
from holdfast.operators.window_words import window_line, window_meaning
from holdfast.state.manifest import Interval, Manifest
from holdfast.state.pipeline_shape import StateMeaning
from holdfast.state.position import key_positions
from holdfast.state.tables import PaneTable, Writer
from holdfast.store import DirectoryStore

__all__ = ["TimeWindows"]

PANES = "panes"
_WORTH_COMBINING = 10_000
"""So many partials of several senders are combined before they become state; fewer only when pieces are merged."""


class TimeWindows(PaneOperator[WindowAggregate]):
    declared_as = WindowAggregate

    def reads(self, time: EventTime | None) -> list[str]:
        return needed_columns(self.node, time)

    @property
    def lifted(self) -> WindowAggregate:
        return self.node

    def tables(self, inputs: Sequence[pl.Schema]) -> tuple[StateTable, ...]:
        return (StateTable(PANES, False, pane_schema(self.node, inputs[0]), (PANE,)),)

    def meaning(self, inputs: Sequence[pl.Schema]) -> StateMeaning:
        return window_meaning(self.node)

    def pane_table(self, table: str, store: DirectoryStore) -> PaneTable:
        """Partials by key and pane."""

        def combine(rows: pl.DataFrame) -> pl.DataFrame:
            return combine_partials(rows.lazy(), self.node, state_groups(self.node), rows=False).collect()

        return PaneTable(table, store, combine)

    def load(self, inputs: Sequence[pl.Schema], rows: pl.DataFrame, interval: Interval, writer: Writer) -> Manifest:
        table = self.pane_table(PANES, writer.store)
        manifest = table.append(Manifest(interval), writer, rows.select(_state_columns(self.node)), None)
        return index_loaded(self.node, rows, manifest, writer)

    def explain(self) -> list[str]:
        shape, how = self.shape, "one pane per window"
        if shape.length > 1:
            how = (
                f"each window is put together from {shape.length} panes; rows are not copied per window "
                f"(Spark would make {shape.length // shape.step} copies of each)"
            )
        return [window_line(self.node), how]

    def step(self, arrivals: StepInput, context: StepContext, manifest: Manifest) -> StepResult:
        node, shape, store = self.node, self.shape, context.writer.store
        least = 0 if context.trace is not None else _WORTH_COMBINING
        new, late, late_rows = _arrived(node, shape, arrivals, least)
        table = self.pane_table(PANES, store)
        traced = PaneTrace(context.trace, node, store) if context.trace is not None else None
        if traced is not None:
            nothing = pl.DataFrame(schema=_stored_schema(node, arrivals))
            [new] = traced.unseen(manifest, [new if new is not None else nothing])
            new = new if new.height else None
        output = pl.DataFrame(schema=node.schema)
        expired = None
        if context.watermark_after is not None:
            first, last = window_range(manifest, PANES, new, shape, context)
            if first <= last and context.wanted:
                low, high = first * shape.step, last * shape.step + shape.length - 1
                frames = table.read(manifest, low, high)
                if new is not None:
                    frames.append(new.filter(pl.col(PANE).is_between(low, high)).select(_state_columns(node)))
                frames = [frame for frame in frames if frame.height]
                if frames:
                    output = assemble_windows(node, shape, pl.concat(frames), first, last)
            expired = expired_panes(shape, context.watermark_after)
        kept = new[_state_columns(node)] if new is not None else pl.DataFrame(schema={PANE: pl.Int64})
        manifest = table.append(manifest, context.writer, kept, expired)
        if traced is not None:
            records = kept if new is not None else pl.DataFrame(schema=_stored_schema(node, arrivals))
            manifest = traced.leave(manifest, context.writer, records, _current(node, table), expired)
        else:
            manifest = manifest.with_table(FOOTPRINTS, ())
        return StepResult(manifest, output, late, late_rows)


def _arrived(
    node: WindowAggregate, shape: WindowShape, arrivals: StepInput, least: int
) -> tuple[pl.DataFrame | None, pl.DataFrame | None, int]:
    """The partials that came, those of the rows that came whole among them, combined if there are at least `least`; the
    late rows that came whole; and how many rows were late."""
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
    new = pl.concat(arrived) if arrived else None
    if new is not None and new.height:
        if len(arrived) > 1 and new.height >= least:
            new = combine_partials(new.lazy(), node, state_groups(node), rows=False).collect()
        else:
            new = new[[name for name in new.columns if name != ROWS]]
    else:
        new = None
    return new, pl.concat(late) if late else None, late_rows


def _lift_rows(node: WindowAggregate, shape: WindowShape, rows: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Partials of rows that travelled whole, and the rows that are too late for any window."""
    time = pl.col(ROW_TIME)
    tagged = rows.with_columns(time.floordiv(shape.pane).alias(PANE)).with_columns(
        pl.when(pl.col(BOUND) > time).then(from_expr(shape, pl.col(BOUND))).alias(FROM)
    )
    late = pl.col(FROM).is_not_null() & (pl.col(PANE).floordiv(shape.step) < pl.col(FROM))
    behind = tagged.filter(late).select(visible(tagged.columns))
    partials = lift_partials(tagged.filter(~late).lazy(), node, list(node.keys), bounded=True).collect()
    positions = key_positions([partials[key] for key in node.keys], partials.height)
    partials = partials.insert_column(0, pl.Series(POSITION, positions))
    return partials.select(*state_groups(node), *node.state_schema, ROWS), behind


def _current(node: WindowAggregate, table: PaneTable) -> Current:
    def current(manifest: Manifest, names: pl.DataFrame | None) -> pl.DataFrame | None:
        """The state of these windows, or of all, each as one row per group."""
        rows = read_windows(table, manifest, names, [POSITION, *node.keys, PANE])
        if rows is None:
            return None
        groups = state_groups(node)
        return combine_partials(rows.lazy(), node, groups, rows=False).collect().select(_state_columns(node))

    return current


def _state_columns(node: WindowAggregate) -> list[str]:
    return [*state_groups(node), *node.state_schema]


def _stored_schema(node: WindowAggregate, arrivals: StepInput) -> pl.Schema:
    return pl.Schema({POSITION: pl.UInt64(), **pane_schema(node, arrivals.batches()[0].frame.schema)})
