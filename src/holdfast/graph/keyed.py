"""Keyed and windowed streams: where a pipeline begins to keep state."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Never

import polars as pl

from holdfast.connect.schema import AnySchema, as_schema
from holdfast.errors import DeclarationError, UnboundedStateError, UnknownColumnError, WrongTypeError
from holdfast.graph.aggregates.aggregate import Aggregate
from holdfast.graph.checks import (
    check_columns,
    check_keys,
    check_partitions,
    check_was,
    infer,
    need_time,
    polars_mistake,
)
from holdfast.graph.durations import Duration, EventTime, bound_type, time_unit_of
from holdfast.graph.nodes import KeyedProcess, ProcessFunction, WindowAggregate
from holdfast.graph.policies import PolicyLike, check_policy
from holdfast.graph.windows import Window
from holdfast.hidden_columns import PANE, ROW_SEQ, ROW_TIME
from holdfast.renamed import attribute_error
from holdfast.state.dtypes import encode_default

if TYPE_CHECKING:
    from holdfast.graph.stream import Stream

__all__ = ["KeyedStream", "WindowedStream"]

_AGGREGATES = ("approx_distinct", "count", "first", "last", "max", "mean", "min", "std", "sum", "top_k", "var")


class KeyedStream:
    """A stream grouped by key columns."""

    def __init__(self, stream: Stream, keys: tuple[str, ...]) -> None:
        self.stream = stream
        self.keys = keys

    def window(
        self,
        window: Window,
        *,
        name: str | None = None,
        was: str | None = None,
        checkpoint: PolicyLike = None,
        partitions: int | None = None,
    ) -> WindowedStream:
        """Cut each key's rows into windows.

        `name` is the operator's, `was` its old name, where a store knows its state by that, `checkpoint` its policy and
        `partitions` how many partitions its state has at first.
        """
        return WindowedStream(
            self.stream, self.keys, window, name, check_was(was, name or "window"), checkpoint, partitions
        )

    def agg(self, *_: object, **__: object) -> Stream:
        """Refused: without a window the state would grow for ever."""
        raise UnboundedStateError(
            f"an aggregate by {', '.join(self.keys)} without a window keeps every key for ever",
            cure="put a window before it: .window(hf.window.tumbling('1 min')).agg(...), or use .process(..., ttl=...)",
            operator="agg",
        )

    def process(
        self,
        function: ProcessFunction,
        *,
        state: AnySchema,
        output: AnySchema,
        ttl: Duration | None = None,
        keep_forever: bool = False,
        timers: bool | Duration = False,
        event_time: str | None = None,
        defaults: Mapping[str, Any] | None = None,
        name: str | None = None,
        was: str | None = None,
        checkpoint: PolicyLike = None,
        partitions: int | None = None,
    ) -> Stream:
        """A stateful operator of your own, on tables.

        `function(rows, state, context)` gets rows of many keys, each key's in the order of the source, the state of
        these keys (only of those that have state) and a context; it returns a `Step`. Which keys, and how many rows of
        each, come in one call is not promised: what the function does for a key must follow from that key's rows,
        state and timers alone, taken one after the other. Then the outcome does not depend on how the input is cut
        into epochs, tasks and partitions. A function that looks at its rows as a whole (their number, their maximum),
        at `context.epoch` or at `context.watermark` does depend on it. It must be deterministic, and may be called
        again on what it was called on before.

        State is gone for a row if, by the row's time or by the watermark before the row, more than `ttl` of event time
        has passed since rows or timers last touched the key, unless a timer is pending.

        `timers=True` allows event-time timers. A timer fires, in a call without rows, before the first row of its key
        that finds a watermark at or after it; in any case once the watermark has come so far. It must not lie before
        the row that sets it. When the input has ended all that are left fire, once. `timers="15 min"` promises that
        timers lie at least so long after the row that sets them, which is faster: rows of a key between which no timer
        can be due come in one call.

        `event_time` is the output column with the event time of what is put out. Whether a window behind it is too
        late is decided by the watermark before the row that caused it, or by the timer that did. Where the output
        has the key columns, they say which key that was.

        A column that is added to `state` later needs a value in `defaults`, for the keys that have state already. `was`
        is the operator's old name, where a store knows its state by that.
        """
        name = name or self.stream.pipeline.fresh_name("process")
        if ttl is None and not keep_forever:
            raise UnboundedStateError(
                "keyed state without a time-to-live keeps every key for ever",
                cure="give ttl='1h', or say keep_forever=True if the set of keys is bounded",
                operator=name,
            )
        if not self.keys:
            raise DeclarationError(
                "a keyed process without key columns",
                cure="name the columns: .key_by('user').process(...); for one state over all rows, make a constant "
                "column and key by that",
                operator=name,
            )
        try:
            state_schema = as_schema(state, "process(state=...)", empty=True)
            out = as_schema(output, "process(output=...)", empty=True)
        except WrongTypeError as error:
            raise error.at(operator=name) from None
        taken = {*self.keys, "at"} & set(state_schema)
        if taken:
            raise DeclarationError(
                f"state columns {sorted(taken)} clash with the keys or the timer column",
                cure="rename the state columns; the key columns are always there",
                operator=name,
            )
        values = dict(defaults or {})
        for column, value in values.items():
            if column not in state_schema:
                raise UnknownColumnError(
                    f"a default is given for '{column}', which is no state column",
                    cure=f"the state columns are: {', '.join(state_schema) or 'none'}",
                    operator=name,
                )
            encode_default(name, column, value, state_schema[column])
        time, nodes = self.stream.time, self.stream.pipeline.nodes
        if ttl is not None or timers is not False:
            need_time(self.stream.node, name, nodes, "a time-to-live and timers")
        out_time = None
        if event_time is not None:
            check_columns(name, [event_time], out)
            time = need_time(self.stream.node, name, nodes, "times of the output")
            dtype = out[event_time]
            if isinstance(dtype, pl.Datetime) and dtype.time_unit != time.unit:
                raise WrongTypeError(
                    f"event time '{event_time}' of the output is {dtype}, and that of the input is in {time.unit}",
                    cure="declare it in the unit of the input; .dt.cast_time_unit(...) and .dt.epoch(...) convert it",
                    operator=name,
                )
            try:
                out_time = EventTime(event_time, time_unit_of(dtype, time.unit, event_time))
            except WrongTypeError as error:
                raise error.at(operator=name) from None
        delay = 0 if isinstance(timers, bool) or time is None else time.ticks(timers, operator=name)
        kept = None if ttl is None or time is None else time.ticks(ttl, operator=name)
        for what, ticks in (("timers", delay), ("ttl", kept or 0)):
            if ticks < 0:
                raise WrongTypeError(f"{what} is negative", cure="give a duration of 0 or more", operator=name)
        node = KeyedProcess(
            name=name, inputs=(self.stream.name,), schema=out, time=out_time, keys=self.keys, function=function,
            state=state_schema, ttl=kept, timers=timers is not False, delay=delay,
            unit=None if time is None else time.unit, defaults=values,
            partitions=check_partitions(partitions, name), was=check_was(was, name),
            checkpoint=check_policy(checkpoint, name),
        )  # fmt: skip
        return self.stream.pipeline.add(node)

    if not TYPE_CHECKING:  # a type checker would take it to say that a stream has every attribute

        def __getattr__(self, name):
            raise attribute_error(name, "KeyedStream", "'KeyedStream' object")


class WindowedStream:
    """A keyed stream cut into windows; `agg` says what to compute of each."""

    def __init__(
        self,
        stream: Stream,
        keys: tuple[str, ...],
        window: Window,
        name: str | None,
        was: str | None,
        checkpoint: PolicyLike,
        partitions: int | None,
    ) -> None:
        self.stream = stream
        self.keys = keys
        self.window = window
        self.name = name
        self.was = was
        self.checkpoint = checkpoint
        self.partitions = partitions

    def agg(self, /, *unnamed: Never, **aggregates: Aggregate) -> Stream:
        """One row per key and window: the keys, `window_start` and `window_end`, and the aggregates by their names.

        Count windows have `window_index`, the number of the key's window from 0, instead of the two bounds.
        """
        stream = self.stream
        name = self.name or stream.pipeline.fresh_name("window")
        check_keys(name, self.keys, stream.schema)
        if unnamed:
            raise DeclarationError(
                "an aggregate without a name", cure="give each a name: .agg(n=hf.count())", operator=name
            )
        if not aggregates:
            raise DeclarationError("no aggregate", cure="name one: .agg(n=hf.count())", operator=name)
        if not isinstance(self.window, Window):
            raise WrongTypeError(
                f"{self.window!r} is not a window",
                cure="use hf.window.tumbling('1 min'), hf.window.sliding(...), ...",
                operator=name,
            )
        bounds = self.window.bounds
        clash = (set(aggregates) & {*self.keys, *bounds}) | (set(self.keys) & set(bounds))
        if clash:
            raise DeclarationError(
                f"{sorted(clash)} name both a key or window bound and an aggregate",
                cure="rename the aggregate, or the key with with_columns",
                operator=name,
            )
        for alias, value in aggregates.items():
            if not isinstance(value, Aggregate):
                raise _no_aggregate(alias, value, name)
        time = need_time(stream.node, name, stream.pipeline.nodes) if self.window.timed else None
        if time is not None:
            self.window.check(time, name)
        rows = pl.Schema({**stream.schema, ROW_TIME: pl.Int64(), ROW_SEQ[0]: pl.Int64(), ROW_SEQ[1]: pl.Int64()})
        try:
            bound = tuple(value.bind(alias, stream.schema) for alias, value in aggregates.items())
        except DeclarationError as error:
            raise error.at(operator=name) from error
        except pl.exceptions.PolarsError as error:
            raise polars_mistake(name, stream.schema, error) from error
        wild = [b.output for b in bound if any(e.meta.has_multiple_outputs() for e in (*b.prepare, *b.lift))]
        if wild:
            raise DeclarationError(
                f"the aggregate '{wild[0]}' reads columns by a selector",
                cure="name the columns, e.g. pl.col('x') + pl.col('y')",
                operator=name,
            )
        lifted = infer(
            name,
            rows,
            lambda lf: (
                lf.with_columns(e for b in bound for e in b.prepare)
                .group_by(*self.keys, pl.lit(0).alias(PANE))
                .agg(e for b in bound for e in b.lift)
            ),
            hidden=True,
        )
        state = pl.Schema({c: t for c, t in lifted.items() if c != PANE and c not in self.keys})
        keyed = {key: stream.schema[key] for key in self.keys}
        combined = infer(
            name,
            pl.Schema({**keyed, PANE: pl.Int64(), **state}),
            lambda lf: lf.group_by(*self.keys, PANE).agg(e for b in bound for e in b.combine),
            hidden=True,
        )
        for column, dtype in state.items():
            if combined[column] != dtype:
                raise WrongTypeError(
                    f"combine turns state column '{column}' from {dtype} into {combined[column]}",
                    cure="let combine keep the type that lift makes, e.g. with .cast(...)",
                    operator=name,
                )
        lowered = infer(name, state, lambda lf: lf.select([b.lower for b in bound]))
        edge_type = pl.Int64() if time is None else bound_type(stream.schema[time.column])
        schema = pl.Schema({**keyed, **dict.fromkeys(bounds, edge_type), **lowered})
        out_time = None if time is None else EventTime("window_end", time.unit, -1)
        node = WindowAggregate(
            name=name, inputs=(stream.name,), schema=schema, time=out_time, keys=self.keys, window=self.window,
            aggregates=bound, state_schema=state, partitions=check_partitions(self.partitions, name), was=self.was,
            checkpoint=check_policy(self.checkpoint, name),
        )  # fmt: skip
        return stream.pipeline.add(node)


def _no_aggregate(alias: str, given: object, operator: str) -> WrongTypeError:
    """Something else was given as the aggregate `alias`."""
    cure = "use hf.count(), hf.sum('x'), ..."
    called = getattr(given, "__name__", "")
    if alias in ("name", "was", "checkpoint", "partitions"):
        cure = f"options go with the window: .window(..., {alias}=...).agg(...)"
    elif isinstance(given, pl.Expr):
        cure = f"{_same(alias, given)}; hf.aggregate(...) makes an aggregate of your own"
    elif callable(given) and called in _AGGREGATES:
        cure = f"call it: {alias}=hf.{called}({'' if called == 'count' else repr('x')})"
    return WrongTypeError(f"'{alias}' is not an aggregate", cure=cure, operator=operator)


def _same(alias: str, expr: pl.Expr) -> str:
    """What to write for an aggregate in Polars' words, as far as it can be told."""
    text = str(expr)
    match = re.fullmatch(r'col\("(\w+)"\)\.(\w+)\(\)', text)
    if text == "len()":
        return f"write {alias}=hf.count()"
    if match is None or match[2] not in ("count", "sum", "mean", "min", "max", "first", "last"):
        return f"write e.g. {alias}=hf.sum('x'), which is kept from epoch to epoch"
    return f"write {alias}=hf.{match[2]}('{match[1]}')"
