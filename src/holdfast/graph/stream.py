"""Streams: the fluent way to declare operators. Every method checks at once and returns a new stream."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Literal

import polars as pl

from holdfast.connect.base import DEAD_LETTER_SCHEMA, Sink
from holdfast.connect.schema import AnySchema
from holdfast.connect.sources.push import parse_size
from holdfast.errors import DeclarationError, WrongTypeError
from holdfast.graph.checks import ExprLike, check_keys, check_sink, listed
from holdfast.graph.deduplicated import deduplicated
from holdfast.graph.durations import Duration, EventTime
from holdfast.graph.joined_streams import Interval, JoinDeclaration, joined
from holdfast.graph.keyed import KeyedStream, WindowedStream
from holdfast.graph.nodes import Node, Persist, SideOutput, SinkNode, SourceNode
from holdfast.graph.policies import PolicyLike
from holdfast.graph.selections import cast_columns, kept_columns, lossy_columns, renamed_columns
from holdfast.graph.stateless.batch_function import BatchFunction, mapped
from holdfast.graph.stateless.list_explosion import exploded
from holdfast.graph.stateless.projection import column_expressions, selected, with_added_columns
from holdfast.graph.stateless.row_filter import filtered
from holdfast.graph.stateless.stream_union import united
from holdfast.graph.stateless.table_join import AnyTable, joined_with_table
from holdfast.graph.windows import Window
from holdfast.renamed import METHODS, cure_for

__all__ = ["Stream"]

if TYPE_CHECKING:
    from holdfast.graph.pipeline import Pipeline


class Stream:
    """The output rows of an operator."""

    def __init__(self, pipeline: Pipeline, name: str) -> None:
        self.pipeline = pipeline
        self.name = name

    @property
    def node(self) -> Node:
        """The operator that outputs these rows, as declared."""
        return self.pipeline.nodes[self.name]

    @property
    def schema(self) -> pl.Schema:
        """The columns and their types."""
        return self.node.schema

    @property
    def time(self) -> EventTime | None:
        """The column of the event time and its unit; None if the rows have none."""
        return self.node.time

    def named(self, name: str) -> Stream:
        """Name the operator just declared; by default it is named after its kind."""
        return self.pipeline.rename(self.name, name)

    def filter(self, /, *predicates: ExprLike | Iterable[ExprLike], **constraints: ExprLike) -> Stream:
        """Keep the rows for which all predicates hold, and whose columns have the values given by keyword.

        Every keyword is a column, as in Polars; the operator gets a name with `.named(...)`.
        """
        name = self.pipeline.fresh_name("filter")
        return self._add(filtered(name, self.node, listed(predicates), constraints))

    def select(self, /, *columns: ExprLike | Iterable[ExprLike], **named: ExprLike) -> Stream:
        """Only these columns. Keep the event time, under its name or another, if a window follows.

        Every keyword is a column; the operator gets a name with `.named(...)`.
        """
        name = self.pipeline.fresh_name("select")
        return self._select(name, column_expressions(name, self.node, columns, named))

    def _select(self, name: str, columns: Iterable[pl.Expr]) -> Stream:
        return self._add(selected(name, self.node, columns))

    def with_columns(self, /, *columns: ExprLike | Iterable[ExprLike], **named: ExprLike) -> Stream:
        """All columns, and these in addition or instead. Every keyword is a column; see `named`."""
        name = self.pipeline.fresh_name("with_columns")
        return self._add(with_added_columns(name, self.node, column_expressions(name, self.node, columns, named)))

    def rename(self, names: Mapping[str, str], *, name: str | None = None) -> Stream:
        """All columns, some under new names: `{"old": "new"}`. The event time may be among them."""
        name = name or self.pipeline.fresh_name("rename")
        return self._select(name, renamed_columns(name, self.schema, names))

    def drop(self, *columns: str | Iterable[str], name: str | None = None) -> Stream:
        """All columns except these."""
        name = name or self.pipeline.fresh_name("drop")
        return self._select(name, kept_columns(name, self.schema, listed(columns)))

    def cast(self, types: AnySchema, *, strict: bool = True, name: str | None = None) -> Stream:
        """All columns, some with another type: `{"price": pl.Float64}`.

        A value that does not fit is an error; with `strict=False` it becomes null. Behind a cast of the event time the
        rows have none: declare its type in the source instead.
        """
        name = name or self.pipeline.fresh_name("cast")
        return self._select(name, cast_columns(name, self.schema, types, strict=strict))

    def map_batches(
        self, function: BatchFunction, *, schema: AnySchema | None = None, name: str | None = None
    ) -> Stream:
        """Apply a function from DataFrame to DataFrame to batches of rows.

        Batches have any size, so the function must treat rows independently of each other. It may give more or fewer
        rows than it gets, in the order of those they come from, and must leave the event time of a row as it is.
        `schema` is what it returns; by default that is found by calling the function on an empty frame.
        """
        name = name or self.pipeline.fresh_name("map_batches")
        return self._add(mapped(name, self.node, function, schema))

    def explode(self, *columns: str | Iterable[str], name: str | None = None) -> Stream:
        """One row per element of the list or array columns; none for an empty list or null."""
        name = name or self.pipeline.fresh_name("explode")
        return self._add(exploded(name, self.node, listed(columns)))

    def deduplicate(
        self,
        *keys: str | Iterable[str],
        within: Duration | None = None,
        ttl: Duration | None = None,
        keep_forever: bool = False,
        name: str | None = None,
        was: str | None = None,
        checkpoint: PolicyLike = None,
        partitions: int | None = None,
    ) -> Stream:
        """The first row with the same values in these columns; repeats are dropped for a time.

        `within` is in event time: a row is dropped if its event time, or the watermark before it if that is later, is
        at most this long after that of the emitted row. Late rows are treated like others. `ttl` is in clock time, for
        rows without event time: the time of a row is that at which its epoch was planned. It is stored with the plan,
        so a replay drops the same rows. `keep_forever=True` keeps every key that was ever seen. `was` is the operator's
        old name, if a store has its state under that name.
        """
        name = name or self.pipeline.fresh_name("deduplicate")
        return self._add(
            deduplicated(
                name, self.node, self.pipeline.nodes, tuple(listed(keys)), within, ttl, keep_forever=keep_forever,
                partitions=partitions, was=was, checkpoint=checkpoint,
            )
        )  # fmt: skip

    def union(self, *others: Stream, name: str | None = None) -> Stream:
        """The rows of several streams with the same columns.

        Rows of one source keep their order. Rows of different sources have no guaranteed order relative to each other:
        count windows and keyed processes over such a union may depend on how rows are divided into epochs. Time and
        session windows do not.
        """
        name = name or self.pipeline.fresh_name("union")
        for other in others:
            self._same_pipeline(other, name)
        return self._add(united(name, self.node, [other.node for other in others]))

    def join_table(
        self,
        table: AnyTable,
        *,
        on: str | list[str],
        how: Literal["inner", "left"] = "inner",
        name: str | None = None,
    ) -> Stream:
        """Join with a table: a DataFrame, or one of `hf.lookup`, which is reread while the pipeline runs."""
        name = name or self.pipeline.fresh_name("join_table")
        return self._add(joined_with_table(name, self.node, table, on, how))

    def persist(
        self,
        name: str,
        *,
        push_up: bool = True,
        compress: bool = True,
        lossy: Mapping[str, float] | None = None,
        budget: str | int | None = "16 GB",
    ) -> Stream:
        """Cut the pipeline by a p-stream: the parts before and after it run and recover independently.

        The operators after the cut read the p-stream; those in different fragments each at their own pace. With
        `push_up` the cut may move past operators that make the rows fewer or smaller, and columns that nobody reads
        are omitted; `explain` shows where it is and why. `lossy={"price": 0.005}` allows a float column to be rounded
        by no more than that. The writer waits when the stream holds `budget` bytes that its readers still need.
        """
        rounded = lossy_columns(name, self.schema, lossy or {})
        try:
            size = None if budget is None else parse_size("budget", budget)
        except WrongTypeError as error:
            raise error.at(operator=name) from None
        return self._add(
            Persist(
                name=name, inputs=(self.name,), schema=self.schema, time=self.time, push_up=push_up,
                compress=compress, lossy=rounded, budget=size,
            )
        )  # fmt: skip

    def key_by(self, *keys: str | Iterable[str]) -> KeyedStream:
        """Group by these columns. The next operator decides what is kept per key."""
        columns = tuple(listed(keys))
        check_keys("key_by", columns, self.schema)
        return KeyedStream(self, columns)

    def window(
        self,
        window: Window,
        *,
        name: str | None = None,
        was: str | None = None,
        checkpoint: PolicyLike = None,
        partitions: int | None = None,
    ) -> WindowedStream:
        """Windows over all rows as one group; see `KeyedStream.window`."""
        return KeyedStream(self, ()).window(window, name=name, was=was, checkpoint=checkpoint, partitions=partitions)

    def join(
        self,
        other: Stream,
        *,
        on: str | list[str],
        window: Window | None = None,
        within: Interval | None = None,
        how: Literal["inner", "left", "right", "full"] = "inner",
        suffix: str = "_right",
        name: str | None = None,
        was: str | None = None,
        checkpoint: PolicyLike = None,
        partitions: int | None = None,
    ) -> Stream:
        """Join two streams: rows with equal keys in the same `window`, or near each other in event time.

        `within=("-10 min", "5 min")` joins a row of `other` whose time is from 10 minutes before this stream's to 5
        minutes after it, both inclusive; `within="10 min"` means 10 minutes before and after.

        Results in a window are emitted when it closes, and have `window_start` and `window_end`. Those within an
        interval have `joined_time`, the later of both times, or for a row without a partner, the last time at which one
        could have arrived. They are emitted when the watermark has passed it. Columns of `other` that this stream also
        has get `suffix`. `was` is the operator's old name, if a store has its state under that name.
        """
        name = name or self.pipeline.fresh_name("join")
        self._same_pipeline(other, name)
        declared = JoinDeclaration(
            name, self.node, other.node, self.pipeline.nodes, on, how, suffix,
            partitions=partitions, was=was, checkpoint=checkpoint,
        )  # fmt: skip
        return self._add(joined(declared, window, within))

    @property
    def late(self) -> Stream:
        """The rows that came too late, with the operator's input columns; at a join within an interval, those of both
        sides, with the columns of its results: nulls for the other side, and the row's own time as `joined_time`."""
        node = self.node
        if not node.has_late_rows:
            raise DeclarationError(
                "only time and session windows, and joins within an interval, have late rows",
                cure="use .late on one of these",
                operator=self.name,
            )
        source = self.pipeline.nodes[node.inputs[0]]
        return self._side_output("late", "late", *(node.late_columns or (source.schema, source.time)))

    @property
    def dead_letters(self) -> Stream:
        """The rows of a source that did not fit its schema (`bad_rows="dead_letter"`)."""
        node = self.node
        bad_rows = getattr(node.source, "bad_rows", "fail") if isinstance(node, SourceNode) else "fail"
        if bad_rows != "dead_letter":
            raise DeclarationError(
                "has no dead letters",
                cure='declare its source with bad_rows="dead_letter"',
                operator=self.name,
            )
        return self._side_output("dead_letters", "dead_letter", DEAD_LETTER_SCHEMA, None)

    def sink(self, name: str, sink: Sink) -> Stream:
        """Write the rows to a sink, and return the same stream."""
        check_sink(name, sink, self.schema, self.pipeline.nodes)
        self._add(SinkNode(name=name, inputs=(self.name,), schema=self.schema, time=self.time, sink=sink))
        return self

    def _side_output(
        self, suffix: str, kind: Literal["late", "dead_letter"], schema: pl.Schema, time: EventTime | None
    ) -> Stream:
        """The stream of this operator's side output, declared when it is first asked for."""
        name = f"{self.name}.{suffix}"
        if name in self.pipeline.nodes:
            return Stream(self.pipeline, name)
        return self._add(SideOutput(name=name, inputs=(self.name,), schema=schema, time=time, kind=kind))

    def _add(self, node: Node) -> Stream:
        return self.pipeline.add(node)

    def _same_pipeline(self, other: Stream, name: str) -> None:
        if other.pipeline is not self.pipeline:
            raise DeclarationError(
                f"'{other.name}' belongs to pipeline '{other.pipeline.name}'",
                cure="declare both streams in one pipeline",
                operator=name,
            )

    def __repr__(self) -> str:
        return f"Stream({self.name!r}, {dict(self.schema)})"

    if not TYPE_CHECKING:  # a type checker would take it to say that a stream has every attribute

        def __getattr__(self, name):
            raise AttributeError(cure_for(name, METHODS, "Stream") or f"'Stream' object has no attribute '{name}'")
