"""Keyed process: the user's own vectorised operator over keyed state, with timers and time-to-live."""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from holdfast.graph.nodes import KeyedProcess, ProcessContext
from holdfast.hidden_columns import BOUND, POSITION, ROW_TIME, TIMER, TOUCHED
from holdfast.operators.contract import Operator, StateTable
from holdfast.operators.keyed_process.process_output import call_function
from holdfast.operators.keyed_process.process_rounds import AmbiguousError, ProcessRounds
from holdfast.operators.keyed_state import KeyedState, open_state
from holdfast.operators.state_merge import KeyedMerge, PaneMerge
from holdfast.operators.step import Grain, StepContext, StepInput, StepResult, effective_bound
from holdfast.operators.timers import TIMERS, TimerTable, timer_columns, timer_table
from holdfast.state.dtypes import encode_default
from holdfast.state.manifest import Manifest
from holdfast.state.pipeline_shape import StateMeaning
from holdfast.state.position import key_positions
from holdfast.state.tables import KeyedTable
from holdfast.store import DirectoryStore

__all__ = ["KeyedProcesses"]

KEYED = "keyed"


class KeyedProcesses(Operator[KeyedProcess]):
    declared_as = KeyedProcess
    by_time = False
    numbered = False
    no_footprints = "the state of a keyed process is not made of windows"

    def grain(self, behind: Grain | None) -> Grain | None:
        """It uses the watermark before each row: for timers and time-to-live, and for what it emits."""
        node = self.node
        marked = node.ttl is not None or node.timers or (behind is not None and node.time is not None)
        return Grain(1, every=True) if marked else None

    def tables(self, inputs: Sequence[pl.Schema]) -> tuple[StateTable, ...]:
        node = self.node
        keys = pl.Schema({key: inputs[0][key] for key in node.keys})
        keyed = StateTable(KEYED, True, _schema(node, keys), (TOUCHED,) if node.ttl is not None else ())
        return (keyed, timer_columns(keys)) if node.timers else (keyed,)

    def meaning(self, inputs: Sequence[pl.Schema]) -> StateMeaning:
        node = self.node
        return StateMeaning(
            state={name: str(dtype) for name, dtype in node.state.items()},
            time_to_live=node.ttl is not None,
            timers=node.timers,
            defaults={
                name: encode_default(node.name, name, value, node.state[name]) for name, value in node.defaults.items()
            },
        )

    def merged_table(
        self, table: str, stored: pl.Schema, watermark: int | None, store: DirectoryStore
    ) -> KeyedMerge | PaneMerge:
        if table == TIMERS:
            return PaneMerge(timer_table(store), watermark)
        keys = pl.Schema({key: stored[key] for key in self.node.keys})
        return KeyedMerge(_table(self.node, keys, store), _kept_by_merges(self.node, watermark))

    def explain(self) -> list[str]:
        node = self.node
        kept = "for ever" if node.ttl is None else f"{node.ttl} ticks of event time after the last row"
        return [f"keyed process by {', '.join(node.keys)}; state {dict(node.state)} kept {kept}"]

    def step(self, arrivals: StepInput, context: StepContext, manifest: Manifest) -> StepResult:
        node = self.node
        plain = node.ttl is None and not node.timers and context.grain is None
        rows = pl.concat(
            batch.frame if plain else batch.frame.with_columns(effective_bound(batch).alias(BOUND))
            for batch in arrivals.batches()
        )
        return self._apply(rows, context, manifest, plain=plain)

    def _apply(self, rows: pl.DataFrame, context: StepContext, manifest: Manifest, *, plain: bool) -> StepResult:
        """What the rows come to, and the timers that are due by the watermarks of the context; `plain` where there are
        none."""
        node = self.node
        key_types = pl.Schema({key: rows.schema[key] for key in node.keys})
        timers = TimerTable(node.keys, key_types, context)
        touched = rows[[POSITION, *node.keys]]  # a selection would be set up as a query
        if node.timers:
            due = timers.due(manifest)
            positions = key_positions([due[key] for key in node.keys], due.height)
            touched = pl.concat([touched, due.select(pl.Series(POSITION, positions), *node.keys)])
        none = pl.DataFrame(schema={**key_types, "at": pl.Int64})
        if not touched.height:
            return StepResult(timers.set(manifest, none) if node.timers else manifest, pl.DataFrame(schema=node.schema))
        table = _table(node, key_types, context.writer.store)
        state = open_state(table, manifest, context.writer, touched)
        keep = _kept_by_merges(node, context.watermark_after)
        if plain:
            known = ProcessContext(context.epoch, context.watermark_after, none, context.clock)
            made = call_function(node, rows, state.known, known)
            return StepResult(state.write(made.upserts, made.deletes, keep), made.output)
        rounds = _rounds(node, rows, state, context)
        manifest = state.write(rounds.upserts, rounds.deletes, keep)
        if node.timers:
            manifest = timers.set(manifest, rounds.timers)
        return StepResult(manifest, rounds.output)


def _schema(node: KeyedProcess, keys: pl.Schema) -> pl.Schema:
    """The columns it keeps: keys, the user's state, and as needed when it was touched and its timer."""
    hidden: dict[str, pl.DataType] = {TOUCHED: pl.Int64()} if node.ttl is not None else {}
    hidden |= {TIMER: pl.Int64()} if node.timers else {}
    return pl.Schema({**keys, **node.state, **hidden})


def _table(node: KeyedProcess, keys: pl.Schema, store: DirectoryStore) -> KeyedTable:
    return KeyedTable(KEYED, node.keys, _schema(node, keys), store, defaults=node.defaults)


def _rounds(node: KeyedProcess, rows: pl.DataFrame, state: KeyedState, context: StepContext) -> ProcessRounds:
    """All calls of the epoch. Which row caused what is emitted need not be known where none of it can be behind a
    watermark of these rows; that is tried first where it looks like it."""
    grain, keys, known = context.grain, state.keys, state.known
    if grain is None or not grain.every:
        early = rows.select(pl.col(ROW_TIME).min() < pl.col(BOUND).max()).item()
        if grain is None or not early:
            rounds = ProcessRounds(node, rows, keys, known, context, grain=None, timed=grain is not None)
            try:
                rounds.run()
            except AmbiguousError:
                pass
            else:
                return rounds
    assert grain is not None
    rounds = ProcessRounds(node, rows, keys, known, context, grain=grain.unit, timed=True)
    rounds.run()
    return rounds


def _kept_by_merges(node: KeyedProcess, watermark: int | None) -> pl.Expr | None:
    """What merges must keep: state that a row not behind the watermark can still find, or that waits for a timer."""
    if node.ttl is None or watermark is None:
        return None
    alive = pl.col(TOUCHED) + node.ttl >= watermark
    return alive | pl.col(TIMER).is_not_null() if node.timers else alive
