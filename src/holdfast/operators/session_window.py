"""Session windows: bursts of a key's rows, closed when the watermark is `gap` past the last one.

Per key, the open sessions are one row of keyed state holding a list; a timer per key says when to look at it again.
A row behind its source's watermark is late, so no row ever reopens a session that was emitted. Two times are compared
and never subtracted: their difference may not fit 64 bits.
"""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from holdfast.graph.durations import EventTime
from holdfast.graph.nodes import WindowAggregate
from holdfast.graph.windows import SessionWindow
from holdfast.hidden_columns import BOUND, LAST, OPEN, POSITION, ROW_TIME, SESSION, START, visible
from holdfast.operators.contract import Operator, StateTable
from holdfast.operators.keyed_state import open_state
from holdfast.operators.lift import needed_columns
from holdfast.operators.single_key import single_keyed, step_with_key
from holdfast.operators.state_merge import KeyedMerge, PaneMerge
from holdfast.operators.step import StepContext, StepInput, StepResult, effective_bound
from holdfast.operators.timers import TIMERS, TimerTable, timer_columns, timer_table
from holdfast.operators.window_words import window_line, window_meaning
from holdfast.state.manifest import Manifest
from holdfast.state.pipeline_shape import StateMeaning
from holdfast.state.position import key_positions
from holdfast.state.tables import KeyedTable
from holdfast.store import DirectoryStore

__all__ = ["SessionWindows"]

SESSIONS = "sessions"


class SessionWindows(Operator[WindowAggregate]):
    declared_as = WindowAggregate
    window = SessionWindow
    bounded = True
    no_footprints = "sessions merge, so a footprint could not be matched to its session"

    def reads(self, time: EventTime | None) -> list[str]:
        return needed_columns(self.node, time)

    def tables(self, inputs: Sequence[pl.Schema]) -> tuple[StateTable, ...]:
        schema = _schema(single_keyed(self.node))
        keys = pl.Schema({name: dtype for name, dtype in schema.items() if name != OPEN})
        return StateTable(SESSIONS, True, schema, (OPEN,)), timer_columns(keys)

    def meaning(self, inputs: Sequence[pl.Schema]) -> StateMeaning:
        return window_meaning(self.node)

    def step(self, arrivals: StepInput, context: StepContext, manifest: Manifest) -> StepResult:
        return step_with_key(_step, self.node, arrivals, context, manifest)

    def merged_table(
        self, table: str, stored: pl.Schema, watermark: int | None, store: DirectoryStore
    ) -> KeyedMerge | PaneMerge:
        if table == TIMERS:
            return PaneMerge(timer_table(store), watermark)
        return KeyedMerge(_table(single_keyed(self.node), store))

    def explain(self) -> list[str]:
        return [window_line(self.node), "open sessions are keyed state; a timer per key closes them"]


def _schema(node: WindowAggregate) -> pl.Schema:
    """Keys, and the list of open sessions."""
    fields = {START: pl.Int64(), LAST: pl.Int64(), **node.state_schema}
    return pl.Schema({**{key: node.schema[key] for key in node.keys}, OPEN: pl.List(pl.Struct(fields))})


def _table(node: WindowAggregate, store: DirectoryStore) -> KeyedTable:
    return KeyedTable(SESSIONS, node.keys, _schema(node), store)


def _step(node: WindowAggregate, arrivals: StepInput, context: StepContext, manifest: Manifest) -> StepResult:
    assert isinstance(node.window, SessionWindow)
    assert node.time is not None
    gap = node.time.ticks(node.window.gap)
    rows = pl.concat([batch.frame.with_columns(effective_bound(batch).alias(BOUND)) for batch in arrivals.batches()])
    is_late = pl.col(BOUND).is_not_null() & (pl.col(ROW_TIME) < pl.col(BOUND))
    late = rows.filter(is_late)
    rows = rows.filter(~is_late) if late.height else rows
    late = late.select(visible(late.columns))

    keys = list(node.keys)
    table = _table(node, context.writer.store)
    timers = TimerTable(node.keys, table.schema, context)
    fresh = _fragments(node, rows, gap)
    due = timers.due(manifest)
    touched = pl.concat([fresh.select(keys), due.select(keys)])
    positions = key_positions([touched[key] for key in keys], touched.height)
    state = open_state(table, manifest, context.writer, touched.insert_column(0, pl.Series(POSITION, positions)))
    known = state.known
    merged = _merge(node, pl.concat([_open_sessions(node, known), fresh]), gap)

    watermark = context.watermark_after
    closed = pl.lit(False) if watermark is None else pl.col(LAST) + gap <= watermark
    output = _lower(node, merged.filter(closed), gap)
    still = merged.filter(~closed)
    packed = still.group_by(keys, maintain_order=True).agg(
        pl.struct(START, LAST, *node.state_schema).alias(OPEN), (pl.col(LAST).min() + gap).alias("at")
    )
    gone = known.select(keys).join(packed, on=keys, how="anti", nulls_equal=True)
    manifest = state.write(packed.select(table.schema.names()), gone, None)
    manifest = timers.set(manifest, packed.select(*keys, "at"))
    return StepResult(manifest, output, late, late.height)


def _fragments(node: WindowAggregate, rows: pl.DataFrame, gap: int) -> pl.DataFrame:
    """Sessions among the rows of this epoch alone."""
    keys = list(node.keys)
    prepare = [expr for bound in node.aggregates for expr in bound.prepare]
    lift = [expr for bound in node.aggregates for expr in bound.lift]
    ordered = rows.lazy().with_columns(prepare).sort(*keys, ROW_TIME, maintain_order=True, nulls_last=True)
    return (
        ordered.with_columns(_breaks(keys, pl.col(ROW_TIME) - gap >= pl.col(ROW_TIME).shift(1)))
        .group_by([*keys, SESSION], maintain_order=True)
        .agg(pl.col(ROW_TIME).min().alias(START), pl.col(ROW_TIME).max().alias(LAST), *lift)
        .drop(SESSION)
        .collect()
    )


def _breaks(keys: list[str], far: pl.Expr) -> pl.Expr:
    """A number per session of sorted rows: a new one where the key changes or the row before is far away."""
    changes = [pl.col(key).ne_missing(pl.col(key).shift(1)) for key in keys]
    return pl.any_horizontal(*changes, far.fill_null(False)).cast(pl.Int64).cum_sum().alias(SESSION)


def _open_sessions(node: WindowAggregate, known: pl.DataFrame) -> pl.DataFrame:
    columns = [*node.keys, START, LAST, *node.state_schema]
    if not known.height:
        fields = known.schema[OPEN].inner.fields  # type: ignore[attr-defined]
        types = {**{key: known.schema[key] for key in node.keys}, **{f.name: f.dtype for f in fields}}
        return pl.DataFrame(schema=types).select(columns)
    return known.explode(OPEN).unnest(OPEN).select(columns)


def _merge(node: WindowAggregate, sessions: pl.DataFrame, gap: int) -> pl.DataFrame:
    """Join sessions of a key that lie less than `gap` apart."""
    keys = list(node.keys)
    combine = [expr for bound in node.aggregates for expr in bound.combine]
    reach = pl.col(LAST).cum_max().shift(1).over(keys)
    return (
        sessions.lazy()
        .sort(*keys, START, maintain_order=True, nulls_last=True)
        .with_columns(_breaks(keys, pl.col(START) - gap >= reach))
        .group_by([*keys, SESSION], maintain_order=True)
        .agg(pl.col(START).min(), pl.col(LAST).max(), *combine)
        .drop(SESSION)
        .collect()
    )


def _lower(node: WindowAggregate, closed: pl.DataFrame, gap: int) -> pl.DataFrame:
    bound_type = node.schema["window_start"]
    return closed.sort(LAST, *node.keys).select(
        *node.keys,
        pl.col(START).cast(bound_type).alias("window_start"),
        (pl.col(LAST) + gap).cast(bound_type).alias("window_end"),
        *(bound.lower for bound in node.aggregates),
    )
