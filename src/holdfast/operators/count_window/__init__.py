"""Count windows: windows of n rows of a key in order of arrival.

Per key, keyed state holds how many rows were seen and the partials of the panes that open windows still need.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import polars as pl

from holdfast.graph.durations import EventTime
from holdfast.graph.nodes import WindowAggregate
from holdfast.graph.windows import CountWindow
from holdfast.hidden_columns import CELL, GROUP, OPEN, PANE, POSITION, SEEN, TAU
from holdfast.operators.contract import FootprintRule, Operator, StateTable
from holdfast.operators.count_window.count_footprints import trace_all, trace_touched, trace_untouched, unseen
from holdfast.operators.count_window.count_table import COUNTS, count_schema, count_table
from holdfast.operators.keyed_state import open_state
from holdfast.operators.lift import combine_partials, needed_columns
from holdfast.operators.single_key import single_keyed, step_with_key
from holdfast.operators.sliding import WindowShape, lay_out, slide_generic
from holdfast.operators.state_merge import KeyedMerge
from holdfast.operators.step import StepContext, StepInput, StepResult
from holdfast.operators.window_words import window_line, window_meaning
from holdfast.state.key_matches import join_on_keys
from holdfast.state.manifest import Interval, Manifest
from holdfast.state.pipeline_shape import StateMeaning
from holdfast.state.position import key_positions
from holdfast.state.tables import KeyedTable, Writer
from holdfast.store import DirectoryStore

__all__ = ["CountWindows"]


class CountWindows(Operator[WindowAggregate]):
    declared_as = WindowAggregate
    window = CountWindow
    by_time = False

    def reads(self, time: EventTime | None) -> list[str]:
        return needed_columns(self.node, time)

    def tables(self, inputs: Sequence[pl.Schema]) -> tuple[StateTable, ...]:
        return (StateTable(COUNTS, True, count_schema(single_keyed(self.node)), (SEEN,)),)

    def meaning(self, inputs: Sequence[pl.Schema]) -> StateMeaning:
        return window_meaning(self.node)

    def step(self, arrivals: StepInput, context: StepContext, manifest: Manifest) -> StepResult:
        return step_with_key(_step, self.node, arrivals, context, manifest)

    def merged_table(self, table: str, stored: pl.Schema, watermark: int | None, store: DirectoryStore) -> KeyedMerge:
        return KeyedMerge(count_table(single_keyed(self.node), store, traced=TAU in stored))

    @property
    def footprints(self) -> FootprintRule:
        """A key is the window: its count outlives the windows that have closed."""
        return FootprintRule(single_keyed(self.node).keys, pane=None, grouped=False, resting=True, load=self._load)

    def _load(self, inputs: Sequence[pl.Schema], rows: pl.DataFrame, interval: Interval, writer: Writer) -> Manifest:
        table = count_table(single_keyed(self.node), writer.store, traced=True)
        return table.write(Manifest(interval), writer, rows.select(table.schema.names()), None)

    def explain(self) -> list[str]:
        return [window_line(self.node), "rows seen and open panes are keyed state"]


def _step(node: WindowAggregate, arrivals: StepInput, context: StepContext, manifest: Manifest) -> StepResult:
    assert isinstance(node.window, CountWindow)
    shape = WindowShape.of(node.window.size, node.window.slide)
    rows = pl.concat([batch.frame for batch in arrivals.batches()])
    keys = list(node.keys)
    trace = context.trace
    table = count_table(node, context.writer.store, traced=trace is not None)
    if trace is not None and trace.order.replaying:
        rows = unseen(rows, table, manifest, trace.epoch)
    if not rows.height:
        return StepResult(_written(node, table, manifest, context, None), pl.DataFrame(schema=node.schema))

    groups, number = _number_groups(rows, keys)
    positions = key_positions([groups[key] for key in keys], groups.height)
    # Footprints are of the whole table: they are looked up in its pieces.
    state = None
    if trace is None:
        state = open_state(table, manifest, context.writer, groups.select(pl.Series(POSITION, positions), *keys))
    known = table.lookup(manifest, groups, positions) if state is None else state.known
    groups = join_on_keys(groups, known, keys, "left", ordered=True)
    seen = groups[SEEN].fill_null(0).to_numpy()
    counts = np.bincount(number, minlength=groups.height)
    index = seen[number] + _index_within(number)

    prepare = [expr for bound in node.aggregates for expr in bound.prepare]
    lift = [expr for bound in node.aggregates for expr in bound.lift]
    lifted = (
        rows.lazy()
        .with_columns(*prepare, pl.Series(GROUP, number), pl.Series(PANE, index // shape.pane))
        .group_by([GROUP, PANE], maintain_order=True)
        .agg(lift)
    )
    kept = groups.select(pl.int_range(pl.len()).alias(GROUP), OPEN).filter(pl.col(OPEN).list.len() > 0)
    columns = [GROUP, PANE, *node.state_schema]
    if kept.height:
        old = kept.explode(OPEN).unnest(OPEN).lazy().select(columns)
        lifted = combine_partials(pl.concat([old, lifted.select(columns)]), node, [GROUP, PANE], rows=False)
    partials = lifted.select(columns).sort(GROUP, PANE).collect()

    after = seen + counts
    closed_before = (seen - shape.size) // shape.slide
    closed_after = (after - shape.size) // shape.slide
    output = _windows(node, shape, partials, groups, closed_before, closed_after)
    expired = (closed_after + 1) * shape.step - 1
    # A pane that is not full yet is open even if no window that has begun needs it.
    still = partials.filter(pl.Series(partials[PANE].to_numpy() > expired[partials[GROUP].to_numpy()]))
    packed = still.group_by(GROUP, maintain_order=True).agg(pl.struct(PANE, *node.state_schema).alias(OPEN))
    upserts = (
        groups.select(*keys, pl.int_range(pl.len()).alias(GROUP))
        .with_columns(pl.Series(SEEN, after))
        .join(packed, on=GROUP, how="left")
    )
    if trace is not None:
        was_open = groups[OPEN].list.len().fill_null(0).to_numpy() > 0
        began = _begun(after, shape.slide) > _begun(seen, shape.slide)
        upserts = trace_touched(trace, node, upserts, groups[TAU], was_open, began)
    if state is not None:
        return StepResult(state.write(upserts.select(table.schema.names()), groups.select(keys).clear(), None), output)
    return StepResult(_written(node, table, manifest, context, upserts.select(table.schema.names())), output)


def _written(
    node: WindowAggregate, table: KeyedTable, manifest: Manifest, context: StepContext, upserts: pl.DataFrame | None
) -> Manifest:
    """The state after the step. Keys without rows may get a new footprint, too."""
    trace = context.trace
    changed, first = [upserts] if upserts is not None else [], not manifest.table(table.name)
    if trace is not None and not trace.order.replaying and not trace.order.opening:
        touched = upserts.select(*node.keys, TAU) if upserts is not None else None
        changed += [
            rows.select(table.schema.names()) for rows in trace_untouched(trace, node, table, manifest, touched)
        ]
    if changed:
        manifest = table.write(manifest, context.writer, pl.concat(changed), None)
    if trace is not None and trace.order.opening:
        with trace.opening(first=first):
            manifest = trace_all(trace, node, table, manifest, context.writer)
    return manifest


def _begun(seen: np.ndarray, slide: int) -> np.ndarray:
    """How many windows have begun when so many rows were seen."""
    return (seen + slide - 1) // slide


def _number_groups(rows: pl.DataFrame, keys: list[str]) -> tuple[pl.DataFrame, np.ndarray]:
    """The distinct keys, and for each row the number of its key."""
    groups = rows.select(keys).unique(maintain_order=True)
    numbered = join_on_keys(rows.select(keys), groups.with_row_index(GROUP), keys, "left", ordered=True)
    return groups, numbered[GROUP].to_numpy().astype(np.int64)


def _index_within(number: np.ndarray) -> np.ndarray:
    """For each row, how many rows of the same group came before it."""
    order = np.argsort(number, kind="stable")
    ranked = number[order]
    fresh = np.ones(len(ranked), dtype=bool)
    fresh[1:] = ranked[1:] != ranked[:-1]
    starts = np.flatnonzero(fresh)
    position = np.arange(len(ranked)) - np.repeat(starts, np.diff(np.append(starts, len(ranked))))
    index = np.empty(len(ranked), dtype=np.int64)
    index[order] = position
    return index


def _windows(
    node: WindowAggregate,
    shape: WindowShape,
    partials: pl.DataFrame,
    groups: pl.DataFrame,
    closed_before: np.ndarray,
    closed_after: np.ndarray,
) -> pl.DataFrame:
    """The windows each group has completed in this epoch."""
    columns = list(node.state_schema)
    if shape.length == 1:
        group, window = partials[GROUP].to_numpy(), partials[PANE].to_numpy()
        states = partials.select(columns)
    else:
        layout = lay_out(partials[GROUP].to_numpy(), partials[PANE].to_numpy(), shape.length)
        start = layout.end - (shape.length - 1)

        def combine(rows: pl.LazyFrame) -> pl.LazyFrame:
            return combine_partials(rows, node, [CELL], rows=False)

        slid = slide_generic(layout, partials.select(columns), combine, shape.length)
        cells = slid[CELL].to_numpy()
        aligned = start[cells] % shape.step == 0
        slid, cells = slid.filter(pl.Series(aligned)), cells[aligned]
        group, window = partials[GROUP].to_numpy()[layout.group[cells]], start[cells] // shape.step
        states = slid.select(columns)
    wanted = (window > closed_before[group]) & (window <= closed_after[group]) & (window >= 0)
    at = np.flatnonzero(wanted)
    result = groups.select(node.keys)[group[at]].with_columns(pl.Series("window_index", window[at]))
    result = result.hstack(states[at].get_columns())
    return result.sort("window_index", *node.keys).select(
        *node.keys, "window_index", *(bound.lower for bound in node.aggregates)
    )
