"""What the function of a keyed process returned, checked: it fits the declaration, or an error says what does not."""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

from holdfast.errors import HoldfastError, OperatorError
from holdfast.graph.durations import NANOS
from holdfast.graph.nodes import KeyedProcess, ProcessContext, Step
from holdfast.hidden_columns import visible
from holdfast.operators.timers import check_timers

__all__ = ["Returned", "call_function"]


@dataclass(frozen=True, slots=True)
class Returned:
    """A `Step` in the declared columns and types. `timers` has the keys and `at`, in ticks of the event time."""

    output: pl.DataFrame
    upserts: pl.DataFrame
    deletes: pl.DataFrame
    timers: pl.DataFrame


def call_function(node: KeyedProcess, rows: pl.DataFrame, state: pl.DataFrame, context: ProcessContext) -> Returned:
    """Call the function once and check what it returns. `rows` may have hidden columns, which it does not see."""
    keys = list(node.keys)
    key_types = pl.Schema({key: rows.schema[key] for key in keys})
    outcome = _call(node, rows, _with_columns(state, [*keys, *node.state.names()]), context)
    timers = _in_ticks(node, outcome.timers, context.epoch)
    made = Returned(
        _checked("output", outcome.output, node.schema, context.epoch),
        _checked("upserts", outcome.upserts, pl.Schema({**key_types, **node.state}), context.epoch),
        _checked("deletes", outcome.deletes, key_types, context.epoch),
        _checked("timers", timers, pl.Schema({**key_types, "at": pl.Int64()}), context.epoch),
    )
    if made.timers.height:
        _check_timers(node, made, context.epoch)
    return made


def _with_columns(frame: pl.DataFrame, names: list[str]) -> pl.DataFrame:
    """These columns of a frame, in this order. To put them together is cheaper than to have them selected."""
    return frame if frame.columns == names else pl.DataFrame([frame.get_column(name) for name in names])


def _call(node: KeyedProcess, rows: pl.DataFrame, state: pl.DataFrame, context: ProcessContext) -> Step:
    try:
        outcome = node.function(_with_columns(rows, visible(rows.columns)), state, context)
    except HoldfastError:
        raise
    except Exception as error:
        raise OperatorError(
            f"the function raised {type(error).__name__}: {error}",
            cure="fix the function and start again: the epoch was not committed and will be run again",
            epoch=context.epoch,
        ) from error
    if not isinstance(outcome, Step):
        raise OperatorError(
            f"the function returned {type(outcome).__name__}", cure="return hf.Step(...)", epoch=context.epoch
        )
    return outcome


def _in_ticks(node: KeyedProcess, timers: pl.DataFrame | None, epoch: int) -> pl.DataFrame | None:
    """Timers with `at` as a number: a point in time is converted to the unit of the event time."""
    if timers is None or "at" not in timers.columns:
        return timers
    at, unit = timers.schema["at"], node.unit
    if not at.is_temporal():
        return timers
    if not isinstance(at, pl.Datetime) or unit is None:
        raise OperatorError(
            f"timers have `at` as {at}",
            cure="give a point in time as a Datetime, or a number in the unit of the event time",
            epoch=epoch,
        )
    # In 128 bits: a time far ahead may not fit into 64 bits of a finer unit.
    ticks, own, wanted = pl.col("at").to_physical().cast(pl.Int128), NANOS[at.time_unit], NANOS[unit]
    # Rounded up where the event time is coarser: a timer never fires before its time.
    coarser = wanted // own
    converted = timers.with_columns(
        ticks * (own // wanted) if own >= wanted else (ticks + (coarser - 1)).floordiv(coarser)
    )
    check_timers(converted)
    return converted.cast({"at": pl.Int64})


def _checked(what: str, frame: pl.DataFrame | None, schema: pl.Schema, epoch: int) -> pl.DataFrame:
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
    frame = _with_columns(frame, schema.names())
    if frame.schema != schema:
        try:
            frame = frame.cast(schema)
        except pl.exceptions.PolarsError as error:
            raise OperatorError(
                f"{what} does not fit the declared types: {error}", cure=f"return {dict(schema)}", epoch=epoch
            ) from error
    return frame


def _check_timers(node: KeyedProcess, made: Returned, epoch: int) -> None:
    keys = list(node.keys)
    if not node.timers:
        raise OperatorError("the function sets timers", cure="declare the operator with timers=True", epoch=epoch)
    check_timers(made.timers)
    names = made.timers.select(keys)
    if names.is_duplicated().any():
        raise OperatorError(
            f"timers name the key {names.filter(names.is_duplicated()).row(0)} twice",
            cure="reduce to one row per key, e.g. with group_by(keys).last()",
            epoch=epoch,
        )
    lonely = names.join(made.upserts, on=keys, how="anti", nulls_equal=True)
    if lonely.height:
        raise OperatorError(
            f"a timer is set for the key {lonely.row(0)}, which is not among the upserts",
            cure="upsert the state of every key whose timer you set",
            epoch=epoch,
        )
