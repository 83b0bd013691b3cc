"""Keyed and windowed streams: where a pipeline begins to keep state."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal, Never

import polars as pl

from holdfast.connect.schema import AnySchema, as_schema
from holdfast.errors import DeclarationError, UnboundedStateError, UnknownColumnError, WrongTypeError
from holdfast.graph.aggregates.aggregate import Aggregate
from holdfast.graph.checks import (
    check_choice,
    check_columns,
    check_keys,
    check_partitions,
    check_was,
    infer,
    need_time,
    polars_mistake,
)
from holdfast.graph.durations import Duration, EventTime, bound_type, time_unit_of
from holdfast.graph.nodes import ClockedProcess, KeyedProcess, ProcessFunction, WindowAggregate
from holdfast.graph.policies import PolicyLike, check_policy
from holdfast.graph.windows import Window
from holdfast.hidden_columns import PANE, ROW_SEQ, ROW_TIME
from holdfast.renamed import attribute_error
from holdfast.state.dtypes import encode_default

if TYPE_CHECKING:
    from holdfast.graph.stream import Stream

__all__ = ["KeyedStream", "WindowedStream"]

_AGGREGATES = (
    "approx_distinct", "arg_max", "arg_min", "collect_list", "count", "count_distinct", "first", "last", "max", "mean",
    "median", "min", "quantile", "std", "sum", "top_k", "var",
)  # fmt: skip


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
        """Divide each key's rows into windows.

        `name` is the operator's name, `was` its old name, if a store has its state under that, `checkpoint` its policy,
        and `partitions` the initial number of partitions of its state.
        """
        return WindowedStream(
            self.stream, self.keys, window, name, check_was(was, name or "window"), checkpoint, partitions
        )

    def agg(self, *_: object, **__: object) -> Stream:
        """Refused: without a window the state would grow forever."""
        raise UnboundedStateError(
            f"an aggregate by {', '.join(self.keys)} without a window keeps every key forever",
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
        time: Literal["event", "clock"] = "event",
        defaults: Mapping[str, Any] | None = None,
        name: str | None = None,
        was: str | None = None,
        checkpoint: PolicyLike = None,
        partitions: int | None = None,
    ) -> Stream:
        """Your own stateful operator, on tables.

        `function(rows, state, context)` gets rows of many keys, the rows of each key in the order of the source, the
        state of these keys (only of those that have state) and a context; it returns a `Step`. It is not guaranteed
        which keys come in one call, or how many rows of each: the result for a key must follow from that key's rows,
        state and timers alone, taken one after the other. Then the output does not depend on how the input is divided
        into epochs, tasks and partitions. A function that looks at its rows as a whole (their number, their maximum),
        at `context.epoch` or at `context.watermark` does depend on it. It must be deterministic, and may be called
        again on the same rows.

        A row finds no state if, by the row's time or by the watermark before the row, more than `ttl` of event time
        has passed since rows or timers last touched the key, unless a timer is pending.

        `timers=True` allows event-time timers. A timer fires, in a call without rows, before the first row of its key
        whose watermark is at or past it, and in any case once the watermark has reached it. It must not be earlier than
        the row that sets it. When the input has ended, the remaining timers fire, once. `timers="15 min"` promises that
        timers are at least that long after the row that sets them, which is faster: rows of a key between which no
        timer can be due come in one call.

        With `time="clock"`, the time-to-live and timers follow the clock instead, and rows need no event time. The time
        of a row is that at which its epoch was planned, `context.clock`. A timer fires in the first epoch that is
        planned at or after it; if no row arrives, an epoch is planned for timers alone. These times are stored with the
        plans, so a replay is the same. `at` is in microseconds since 1970, or a Datetime.

        `event_time` is the output column with the event time of the output rows. Whether an output row is late for a
        window after the process is decided by the watermark before the input row, or by the timer, that caused it. If
        the output has the key columns, they identify the key.

        A column that is added to `state` later needs a value in `defaults`, for keys that already have state. `was` is
        the operator's old name, if a store has its state under that name.
        """
        name = name or self.stream.pipeline.fresh_name("process")
        if ttl is None and not keep_forever:
            raise UnboundedStateError(
                "keyed state without a time-to-live keeps every key forever",
                cure="give ttl='1h', or set keep_forever=True if the set of keys is bounded",
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
                    f"a default is given for '{column}', which is not a state column",
                    cure=f"the state columns are: {', '.join(state_schema) or 'none'}",
                    operator=name,
                )
            encode_default(name, column, value, state_schema[column])
        check_choice(name, "time", time, ("event", "clock"))
        clocked, nodes = time == "clock", self.stream.pipeline.nodes
        own = EventTime("", "us") if clocked else self.stream.time
        if (ttl is not None or timers is not False) and not clocked:
            need_time(self.stream.node, name, nodes, "a time-to-live and timers")
        if clocked and event_time is not None:
            raise DeclarationError(
                "a process by the clock emits rows without event time",
                cure="leave event_time out, or let it use event time",
                operator=name,
            )
        out_time = None
        if event_time is not None:
            check_columns(name, [event_time], out)
            own = need_time(self.stream.node, name, nodes, "times of the output")
            dtype = out[event_time]
            if isinstance(dtype, pl.Datetime) and dtype.time_unit != own.unit:
                raise WrongTypeError(
                    f"event time '{event_time}' of the output is {dtype}, but that of the input is in {own.unit}",
                    cure="declare it in the unit of the input; .dt.cast_time_unit(...) and .dt.epoch(...) convert it",
                    operator=name,
                )
            try:
                out_time = EventTime(event_time, time_unit_of(dtype, own.unit, event_time))
            except WrongTypeError as error:
                raise error.at(operator=name) from None
        delay = 0 if isinstance(timers, bool) or own is None else own.ticks(timers, operator=name)
        kept = None if ttl is None or own is None else own.ticks(ttl, operator=name)
        for what, ticks in (("timers", delay), ("ttl", kept or 0)):
            if ticks < 0:
                raise WrongTypeError(f"{what} is negative", cure="give a duration of 0 or more", operator=name)
        kind = ClockedProcess if clocked else KeyedProcess
        node = kind(
            name=name, inputs=(self.stream.name,), schema=out, time=out_time, keys=self.keys, function=function,
            state=state_schema, ttl=kept, timers=timers is not False, delay=delay,
            unit=None if own is None else own.unit, defaults=values,
            partitions=check_partitions(partitions, name), was=check_was(was, name),
            checkpoint=check_policy(checkpoint, name),
        )  # fmt: skip
        return self.stream.pipeline.add(node)

    if not TYPE_CHECKING:  # a type checker would take it to say that a stream has every attribute

        def __getattr__(self, name):
            raise attribute_error(name, "KeyedStream", "'KeyedStream' object")


class WindowedStream:
    """A keyed stream divided into windows; `agg` defines what to compute for each."""

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
        cure = f"{_same(alias, given)}; hf.aggregate(...) makes your own aggregate"
    elif callable(given) and called in _AGGREGATES:
        cure = f"call it: {alias}=hf.{called}({'' if called == 'count' else repr('x')})"
    return WrongTypeError(f"'{alias}' is not an aggregate", cure=cure, operator=operator)


def _same(alias: str, expr: pl.Expr) -> str:
    """What to write for an aggregate in Polars' words, as far as it can be told."""
    text = str(expr)
    match = re.fullmatch(r'col\("(\w+)"\)\.(\w+)\(\)', text)
    if text == "len()":
        return f"write {alias}=hf.count()"
    if match is None or match[2] not in ("count", "sum", "mean", "median", "min", "max", "first", "last"):
        return f"write e.g. {alias}=hf.sum('x'), which is kept across epochs"
    return f"write {alias}=hf.{match[2]}('{match[1]}')"
