"""Keyed process: the user's own vectorised operator over keyed state, with timers and time-to-live."""

from __future__ import annotations

from dataclasses import dataclass, replace

import polars as pl

from holdfast.connect.time_range import END_OF_TIME
from holdfast.epoch.steps.base import Arrivals, StepContext, StepResult
from holdfast.epoch.steps.lives import number_lives
from holdfast.epoch.steps.timers import TimerTable, check_timers
from holdfast.errors import HoldfastError, OperatorError
from holdfast.graph.aggregates import ROW_TIME
from holdfast.graph.nodes import KeyedProcess, ProcessContext, Step
from holdfast.plan.kept import TIMER, TOUCHED, process_schema
from holdfast.plan.lift import BOUND
from holdfast.state.manifest import POSITION, Manifest
from holdfast.state.matching import group_by_position, join_on_keys
from holdfast.state.position import key_positions
from holdfast.state.tables import KeyedTable

__all__ = ["kept_by_merges", "step"]


def step(node: KeyedProcess, arrivals: Arrivals, context: StepContext, manifest: Manifest) -> StepResult:
    rows = pl.concat([batch.frame.drop(BOUND, strict=False) for batch in arrivals.batches()])
    keys = list(node.keys)
    key_types = pl.Schema({key: rows.schema[key] for key in keys})
    schema = process_schema(node, key_types)
    table = KeyedTable("keyed", node.keys, schema, context.writer.store, defaults=node.defaults)
    timers = TimerTable(node.keys, key_types, context)

    due = timers.due(manifest) if node.timers else pl.DataFrame(schema={**key_types, "at": pl.Int64})
    touched = rows.select(POSITION, *keys)
    if due.height:
        positions = key_positions([due[key] for key in keys], due.height)
        touched = pl.concat([touched, due.select(pl.Series(POSITION, positions), *keys)])
    wanted = _distinct(touched, keys)
    positions = wanted[POSITION].to_numpy()
    if not rows.height and not due.height:
        return StepResult(_expire_timers(node, timers, manifest, due), pl.DataFrame(schema=node.schema))
    known = table.lookup(manifest, wanted, positions)
    if due.height:
        current = known.select(*keys, pl.col(TIMER).alias("at"))
        due = due.join(current, on=[*keys, "at"], how="semi", nulls_equal=True)
    if not rows.height and not due.height:
        return StepResult(_expire_timers(node, timers, manifest, due), pl.DataFrame(schema=node.schema))

    changes = _fire(node, rows, known, due, context)
    watermark = context.watermark_after
    keep = kept_by_merges(node, watermark)
    manifest = table.write(manifest, context.writer, changes.upserts, changes.deletes, keep, positions)
    if node.timers:
        manifest = timers.set(manifest, changes.timers.filter(pl.col("at").is_not_null()))
    return StepResult(manifest, changes.output)


@dataclass(frozen=True, slots=True)
class _Changes:
    """What calls of the function have led to. `upserts` have the hidden columns too."""

    output: pl.DataFrame
    upserts: pl.DataFrame
    deletes: pl.DataFrame
    timers: pl.DataFrame


def _fire(
    node: KeyedProcess, rows: pl.DataFrame, known: pl.DataFrame, due: pl.DataFrame, context: StepContext
) -> _Changes:
    """Call the function on the rows, then on the timers that are due and that the rows have left as they were, and
    again as long as a timer it has set is due too.

    When the sources have ended, all timers are due. They fire once more, last; what is set by then fires no more, or
    a process that ticks would tick for ever.
    """
    keys = list(node.keys)
    nothing = _Changes(pl.DataFrame(schema=node.schema), known.clear(), known.select(keys).clear(), due.clear())
    changes = _life_by_life(node, rows, known, context) if rows.height else nothing
    watermark = context.watermark_after
    if not node.timers or watermark is None:
        return changes
    ended = watermark >= END_OF_TIME
    limit = pl.lit(context.farthest, pl.Int64) if ended else pl.lit(watermark, pl.Int64)
    passed = pl.col("at").le(limit).fill_null(False)
    moved = pl.concat([changes.timers.select(keys), changes.deletes])
    due = due.join(moved, on=keys, how="anti", nulls_equal=True)
    at_end, due = due.filter(~passed), due.filter(passed)
    if due.height:
        changes = _again(node, _with_state_of(due, changes, known, keys), due, rows, context)
    while (again := changes.timers.filter(passed)).height:
        changes = _again(node, changes, again, rows, context)
    if ended:
        touched = pl.concat([changes.upserts.select(keys), changes.deletes])
        waiting = at_end.join(touched, on=keys, how="anti", nulls_equal=True)
        pending = changes.upserts.select(*keys, pl.col(TIMER).alias("at")).drop_nulls("at").filter(~passed)
        last = pl.concat([waiting, pending])
        if last.height:
            changes = _again(node, _with_state_of(waiting, changes, known, keys), last, rows, context)
    return changes


def _with_state_of(due: pl.DataFrame, changes: _Changes, known: pl.DataFrame, keys: list[str]) -> _Changes:
    """Put the state of keys that nobody has changed so far among the changes, where the next call looks for it."""
    unchanged = known.join(due, on=keys, how="semi", nulls_equal=True)
    unchanged = unchanged.join(changes.upserts, on=keys, how="anti", nulls_equal=True)
    return replace(changes, upserts=pl.concat([changes.upserts, unchanged.select(changes.upserts.columns)]))


def _life_by_life(node: KeyedProcess, rows: pl.DataFrame, known: pl.DataFrame, context: StepContext) -> _Changes:
    """Call the function for each life of the keys' state in turn; without a time-to-live there is one."""
    lives = None if node.ttl is None else number_lives(rows, known, list(node.keys), node.ttl)
    none = pl.DataFrame(schema={**{key: rows.schema[key] for key in node.keys}, "at": pl.Int64()})
    if lives is None:
        return _round(node, rows, known, none, context)
    changes = _round(node, rows.filter(lives == 0), known, none, context)
    for life in range(1, int(lives.max()) + 1):  # type: ignore[arg-type]
        changes = _next_life(node, changes, rows.filter(lives == life), known, context)
    return changes


def _next_life(
    node: KeyedProcess, before: _Changes, rows: pl.DataFrame, known: pl.DataFrame, context: StepContext
) -> _Changes:
    """The function on rows that found the state of their keys gone, unless a pending timer has kept it."""
    keys = list(node.keys)
    born = rows.select(keys).unique(maintain_order=True)
    current = pl.concat([known.join(before.upserts, on=keys, how="anti", nulls_equal=True), before.upserts])
    current = current.join(before.deletes, on=keys, how="anti", nulls_equal=True)
    current = current.join(born, on=keys, how="semi", nulls_equal=True)
    kept = current.filter(pl.col(TIMER).is_not_null()) if node.timers else current.clear()
    now = _round(node, rows, kept, before.timers.clear(), context)
    gone = born.join(kept, on=keys, how="anti", nulls_equal=True)
    cleared = _Changes(
        before.output,
        before.upserts.join(gone, on=keys, how="anti", nulls_equal=True),
        pl.concat([before.deletes, gone]).unique(maintain_order=True),
        before.timers.join(gone, on=keys, how="anti", nulls_equal=True),
    )
    return _on_top(cleared, now, now.timers.select(keys), keys)


def _again(
    node: KeyedProcess, before: _Changes, due: pl.DataFrame, rows: pl.DataFrame, context: StepContext
) -> _Changes:
    """One more call, for timers alone, on top of what the calls before it have changed."""
    keys = list(node.keys)
    known = before.upserts.join(due, on=keys, how="semi", nulls_equal=True)
    now = _round(node, rows.clear(), known, due, context)
    stuck = join_on_keys(now.timers, due.rename({"at": "__hf_at"}), keys, "inner")
    stuck = stuck.filter(pl.col("at") <= pl.col("__hf_at"))
    if stuck.height:
        raise OperatorError(
            f"the timer of the key {stuck.select(keys).row(0)} fired and was set again, but not later",
            cure="set a timer that lies after the one that fired, or none",
        )
    return _on_top(before, now, due.select(keys), keys)


def _on_top(before: _Changes, now: _Changes, fired: pl.DataFrame, keys: list[str]) -> _Changes:
    """What two calls in a row have changed; timers of keys in `fired` are no longer pending."""
    changed = pl.concat([now.upserts.select(keys), now.deletes])
    fired = pl.concat([fired, changed])
    return _Changes(
        pl.concat([before.output, now.output]),
        pl.concat([before.upserts.join(changed, on=keys, how="anti", nulls_equal=True), now.upserts]),
        pl.concat([before.deletes.join(changed, on=keys, how="anti", nulls_equal=True), now.deletes]),
        pl.concat([before.timers.join(fired, on=keys, how="anti", nulls_equal=True), now.timers]),
    )


def _round(
    node: KeyedProcess, rows: pl.DataFrame, known: pl.DataFrame, due: pl.DataFrame, context: StepContext
) -> _Changes:
    """Call the function once and check what it returns."""
    keys = list(node.keys)
    key_types = pl.Schema({key: rows.schema[key] for key in keys})
    state = known.select(*keys, *node.state.names())
    outcome = _call(node, rows, state, ProcessContext(context.epoch, context.watermark_after, due))
    output = _checked(node, "output", outcome.output, node.schema, context.epoch)
    upserts = _checked(node, "upserts", outcome.upserts, pl.Schema({**key_types, **node.state}), context.epoch)
    deletes = _checked(node, "deletes", outcome.deletes, key_types, context.epoch)
    set_timers = _checked(node, "timers", outcome.timers, pl.Schema({**key_types, "at": pl.Int64()}), context.epoch)
    if set_timers.height and not node.timers:
        raise OperatorError(
            "the function sets timers", cure="declare the operator with timers=True", epoch=context.epoch
        )
    check_timers(set_timers)
    _no_repeats(node, "timers", set_timers.select(keys), context.epoch)
    return _Changes(output, _stamp(node, upserts, rows, known, set_timers, due), deletes, set_timers)


def _distinct(rows: pl.DataFrame, keys: list[str]) -> pl.DataFrame:
    """One row per key, sorted by position."""
    groups = group_by_position(rows, rows[POSITION].to_numpy(), keys)
    if groups is None:
        return rows.unique(maintain_order=True).sort(POSITION)
    order, starts = groups
    return rows[order[starts]]


def _expire_timers(node: KeyedProcess, timers: TimerTable, manifest: Manifest, none: pl.DataFrame) -> Manifest:
    return timers.set(manifest, none.clear()) if node.timers else manifest


def kept_by_merges(node: KeyedProcess, watermark: int | None) -> pl.Expr | None:
    """What merges must keep: state that a row not behind the watermark can still find, or that waits for a timer."""
    if node.ttl is None or watermark is None:
        return None
    alive = pl.col(TOUCHED) + node.ttl >= watermark
    return alive | pl.col(TIMER).is_not_null() if node.timers else alive


def _call(node: KeyedProcess, rows: pl.DataFrame, state: pl.DataFrame, context: ProcessContext) -> Step:
    visible = rows.drop([column for column in rows.columns if column.startswith("__hf_")])
    try:
        outcome = node.function(visible, state, context)
    except HoldfastError:
        raise
    except Exception as error:
        raise OperatorError(
            f"the function raised {type(error).__name__}: {error}",
            cure="mend the function and start again: the epoch was not committed and will be run again",
            epoch=context.epoch,
        ) from error
    if not isinstance(outcome, Step):
        raise OperatorError(
            f"the function returned {type(outcome).__name__}", cure="return hf.Step(...)", epoch=context.epoch
        )
    return outcome


def _checked(node: KeyedProcess, what: str, frame: pl.DataFrame | None, schema: pl.Schema, epoch: int) -> pl.DataFrame:
    """The frame in the declared columns and types, or an error that names what does not fit."""
    if frame is None:
        return pl.DataFrame(schema=schema)
    missing = [column for column in schema if column not in frame.columns]
    if missing:
        raise OperatorError(
            f"{what} lacks the column '{missing[0]}'; it has {frame.columns}",
            cure=f"return {what} with the columns {schema.names()}",
            epoch=epoch,
        )
    frame = frame.select(schema.names())
    if frame.schema != schema:
        try:
            frame = frame.cast(schema)
        except pl.exceptions.PolarsError as error:
            raise OperatorError(
                f"{what} does not fit the declared types: {error}", cure=f"return {dict(schema)}", epoch=epoch
            ) from error
    return frame


def _no_repeats(node: KeyedProcess, what: str, keys: pl.DataFrame, epoch: int) -> None:
    if keys.height and keys.is_duplicated().any():
        example = keys.filter(keys.is_duplicated()).row(0)
        raise OperatorError(
            f"{what} name the key {example} twice",
            cure="reduce to one row per key, e.g. with group_by(keys).last()",
            epoch=epoch,
        )


def _stamp(
    node: KeyedProcess,
    upserts: pl.DataFrame,
    rows: pl.DataFrame,
    known: pl.DataFrame,
    set_timers: pl.DataFrame,
    due: pl.DataFrame,
) -> pl.DataFrame:
    """Add the hidden columns: the newest event time that touched the key, and its timer."""
    keys = list(node.keys)
    stamped = upserts
    if node.ttl is not None:
        touches = [rows.select(*keys, ROW_TIME), known.select(*keys, pl.col(TOUCHED).alias(ROW_TIME))]
        touches.append(due.select(*keys, pl.col("at").alias(ROW_TIME)))
        newest = pl.concat(touches).group_by(keys).agg(pl.col(ROW_TIME).max().alias(TOUCHED))
        stamped = join_on_keys(stamped, newest, keys, "left")
    if node.timers:
        still = known.join(due.select(keys), on=keys, how="anti", nulls_equal=True).select(*keys, TIMER)
        fresh = set_timers.select(*keys, pl.col("at").alias("__hf_at"), pl.lit(True).alias("__hf_set"))
        _timers_need_state(node, fresh, upserts)
        stamped = (
            join_on_keys(join_on_keys(stamped, still, keys, "left"), fresh, keys, "left")
            .with_columns(pl.when(pl.col("__hf_set").fill_null(False)).then("__hf_at").otherwise(TIMER).alias(TIMER))
            .drop("__hf_at", "__hf_set")
        )
    return stamped


def _timers_need_state(node: KeyedProcess, fresh: pl.DataFrame, upserts: pl.DataFrame) -> None:
    lonely = fresh.join(upserts, on=list(node.keys), how="anti", nulls_equal=True)
    if lonely.height:
        raise OperatorError(
            f"a timer is set for the key {lonely.select(node.keys).row(0)}, which is not among the upserts",
            cure="upsert the state of every key whose timer you set",
        )
