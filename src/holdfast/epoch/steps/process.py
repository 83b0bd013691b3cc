"""Keyed process: the user's own vectorised operator over keyed state, with timers and time-to-live."""

from __future__ import annotations

import polars as pl

from holdfast.epoch.steps.base import Arrivals, StepContext, StepResult, effective_bound
from holdfast.epoch.steps.key_numbers import KeyNumbers
from holdfast.epoch.steps.returned import call_function
from holdfast.epoch.steps.rounds import AmbiguousError, Rounds
from holdfast.epoch.steps.timers import TimerTable
from holdfast.graph.aggregates import ROW_TIME
from holdfast.graph.nodes import KeyedProcess, ProcessContext
from holdfast.plan.kept import TIMER, TOUCHED, process_schema
from holdfast.plan.lift import BOUND
from holdfast.state.manifest import POSITION, Manifest
from holdfast.state.position import key_positions
from holdfast.state.tables import KeyedTable

__all__ = ["kept_by_merges", "step"]


def step(node: KeyedProcess, arrivals: Arrivals, context: StepContext, manifest: Manifest) -> StepResult:
    plain = node.ttl is None and not node.timers and context.grain is None
    rows = pl.concat(
        batch.frame if plain else batch.frame.with_columns(effective_bound(batch).alias(BOUND))
        for batch in arrivals.batches()
    )
    key_types = pl.Schema({key: rows.schema[key] for key in node.keys})
    timers = TimerTable(node.keys, key_types, context)
    touched = rows.select(POSITION, *node.keys)
    if node.timers:
        due = timers.due(manifest)
        positions = key_positions([due[key] for key in node.keys], due.height)
        touched = pl.concat([touched, due.select(pl.Series(POSITION, positions), *node.keys)])
    none = pl.DataFrame(schema={**key_types, "at": pl.Int64})
    if not touched.height:
        return StepResult(timers.set(manifest, none) if node.timers else manifest, pl.DataFrame(schema=node.schema))
    keys = KeyNumbers.of(touched, node.keys)
    table = KeyedTable(
        "keyed", node.keys, process_schema(node, key_types), context.writer.store, defaults=node.defaults
    )
    known = table.lookup(manifest, keys.frame, keys.positions)
    keep = kept_by_merges(node, context.watermark_after)
    if plain:
        made = call_function(node, rows, known, ProcessContext(context.epoch, context.watermark_after, none))
        manifest = table.write(manifest, context.writer, made.upserts, made.deletes, keep, keys.positions)
        return StepResult(manifest, made.output)
    rounds = _rounds(node, rows, keys, known, context)
    manifest = table.write(manifest, context.writer, rounds.upserts, rounds.deletes, keep)
    if node.timers:
        manifest = timers.set(manifest, rounds.timers)
    return StepResult(manifest, rounds.output)


def _rounds(
    node: KeyedProcess, rows: pl.DataFrame, keys: KeyNumbers, known: pl.DataFrame, context: StepContext
) -> Rounds:
    """All calls of the epoch. Which row caused what is put out need not be known where nothing of it can lie behind a
    watermark of these rows; that is tried first where it looks like it."""
    grain = context.grain
    if grain is None or not grain.every:
        early = rows.select(pl.col(ROW_TIME).min() < pl.col(BOUND).max()).item()
        if grain is None or not early:
            rounds = Rounds(node, rows, keys, known, context, grain=None, timed=grain is not None)
            try:
                rounds.run()
            except AmbiguousError:
                pass
            else:
                return rounds
    assert grain is not None
    rounds = Rounds(node, rows, keys, known, context, grain=grain.unit, timed=True)
    rounds.run()
    return rounds


def kept_by_merges(node: KeyedProcess, watermark: int | None) -> pl.Expr | None:
    """What merges must keep: state that a row not behind the watermark can still find, or that waits for a timer."""
    if node.ttl is None or watermark is None:
        return None
    alive = pl.col(TOUCHED) + node.ttl >= watermark
    return alive | pl.col(TIMER).is_not_null() if node.timers else alive
