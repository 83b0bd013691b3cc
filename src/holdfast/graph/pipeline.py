"""A pipeline: named operators from sources to sinks, and the settings it runs with."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from os import PathLike
from typing import TYPE_CHECKING, Any

from holdfast.connect.base import BadRows, Source, check_bad_rows
from holdfast.connect.sources.received import ReceivedSource
from holdfast.connect.spark_types import polars_schema
from holdfast.errors import DeclarationError, WrongTypeError
from holdfast.graph.checks import (
    check_columns,
    check_new_name,
    check_reserved,
    check_source,
    check_was,
    check_was_names,
    unknown_column,
)
from holdfast.graph.durations import Duration, EventTime, TimeUnit, time_unit_of
from holdfast.graph.graph_picture import graph_svg
from holdfast.graph.guarantee import Guarantee
from holdfast.graph.node_order import topological_order
from holdfast.graph.nodes import Node, SinkNode, SourceNode, SparkInput, reconnected
from holdfast.graph.stream import Stream
from holdfast.graph.time_room import check_spans
from holdfast.pstream.link import pstream
from holdfast.renamed import attribute_error
from holdfast.spans import seconds_of

__all__ = ["Pipeline", "check_pipeline"]

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
"""Names become parts of names of files, which may have 255 bytes."""


class Pipeline:
    """A declared pipeline. Add sources with `source`, and everything else with the methods of a stream.

    A pipeline is only a description: it is run by `holdfast run` or `holdfast.run(pipeline)`. `guarantee` says what it
    must keep, whatever fails.
    """

    def __init__(self, name: str, *, guarantee: Guarantee | None = None) -> None:
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise DeclarationError(
                f"pipeline name {name!r}",
                cure="use at most 100 letters, digits, '.', '_' and '-', starting with a letter or digit",
            )
        if guarantee is not None and not isinstance(guarantee, Guarantee):
            raise WrongTypeError(
                f"the guarantee of pipeline '{name}' is {guarantee!r}", cure='give e.g. hf.Guarantee(recovery="2s")'
            )
        if guarantee == Guarantee():
            raise DeclarationError(
                f"the guarantee of pipeline '{name}' asks for nothing",
                cure='set at least one guarantee, e.g. hf.Guarantee(recovery="2s"), or leave it out',
            )
        self.name = name
        self.guarantee = guarantee or Guarantee()
        self._nodes: dict[str, Node] = {}
        self.target = ""
        """`FILE:NAME`, where a command has found it in a file."""

    @property
    def nodes(self) -> Mapping[str, Node]:
        """The operators by name, in order of declaration."""
        return self._nodes

    def source(
        self,
        name: str,
        source: Source,
        *,
        event_time: str | None = None,
        time_unit: TimeUnit | None = None,
        lateness: Duration = 0,
        max_ahead: Duration | None = None,
        idle: Duration | None = None,
        was: str | None = None,
    ) -> Stream:
        """Read from a source.

        `event_time` names the column that windows use. The source's watermark is the greatest event time seen so
        far less `lateness`; a row that comes when all its windows are behind the watermark is late. `was` is the
        source's old name, where a store knows its position by that.

        Where rows of several sources come together, a window waits for all of them. `idle="30s"` says that it does not
        wait for this one when that has been silent so long: its watermark then follows those of the others. What it
        brings later may be late.

        A row whose event time is null, outside of what is allowed (2⁶² ticks on either side of zero; for a Datetime
        also the years 1000 to 9000), or more than `max_ahead` ahead of the clock is a bad row: what happens to it is
        for the source's `bad_rows` to say. The clock is that of the receiver when a pushed row arrives, and for all
        other sources that of the driver when it plans the epoch that reads the row; so a row is judged once, also if
        it is read again. Event times must count from 1970 for this.
        """
        schema = check_source(name, source)
        if was is not None and isinstance(source, ReceivedSource):
            raise DeclarationError(
                "a source whose rows are received cannot be renamed: its clients and its stored rows know its name",
                cure="keep the name; rename the operators after it",
                operator=name,
            )
        if idle is not None and event_time is None:
            raise WrongTypeError(
                "idle concerns the event time, but none is declared",
                cure="also give event_time=..., or leave idle out",
                operator=name,
            )
        try:
            silence = None if idle is None else seconds_of("idle", idle)
        except WrongTypeError as error:
            raise error.at(operator=name) from None
        return self._source(
            name, source, schema, event_time, time_unit, lateness, max_ahead, check_was(was, name), silence
        )

    def from_spark(
        self,
        name: str,
        frame: Any,
        *,
        event_time: str | None = None,
        time_unit: TimeUnit | None = None,
        lateness: Duration = 0,
        max_ahead: Duration | None = None,
        bad_rows: BadRows = "fail",
        stream: str | None = None,
    ) -> Stream:
        """Read from a streaming DataFrame of Spark: its micro-batches are the epochs.

        Any Spark source and any native transformation may come before it. A pipeline has at most one such source
        and then no other, since Structured Streaming decides what is in an epoch.

        The rows of a micro-batch have no order, because Spark reads its partitions side by side. So a row is late by
        the micro-batches before its own, and the watermark moves between them, as Structured Streaming's does. A
        timestamp is an instant and becomes a Datetime("us", "UTC"), whatever the time zone of the session; a timestamp
        without time zone becomes a Datetime("us"). `max_ahead` and `bad_rows` are as for other sources.

        With `stream` the rows come by way of a p-stream of that name, which `frame.writeStream.format("holdfast")`
        fills in a query of its own. Then the pipeline has its own epochs, and may have other sources, run on several
        hosts, and use every checkpoint policy. Of the DataFrame only the columns are looked at.
        """
        if stream is not None:
            kept = pstream(stream, polars_schema(frame.schema, name), bad_rows)
            return self.source(
                name, kept, event_time=event_time, time_unit=time_unit, lateness=lateness, max_ahead=max_ahead
            )
        if not getattr(frame, "isStreaming", False):
            raise DeclarationError(
                "the DataFrame is not a streaming DataFrame",
                cure="create it with spark.readStream, or read static data with a file source",
                operator=name,
            )
        schema = polars_schema(frame.schema, name)
        source = SparkInput(frame=frame, bad_rows=check_bad_rows("from_spark()", bad_rows))
        return self._source(name, source, schema, event_time, time_unit, lateness, max_ahead)

    def _source(
        self,
        name: str,
        source: Source | SparkInput,
        schema: Any,
        event_time: str | None,
        time_unit: TimeUnit | None,
        lateness: Duration,
        max_ahead: Duration | None,
        was: str | None = None,
        idle: float | None = None,
    ) -> Stream:
        inputs = [node for node in self._nodes.values() if isinstance(node, SourceNode)]
        if inputs and any(isinstance(s, SparkInput) for s in (source, *(node.source for node in inputs))):
            raise DeclarationError(
                "a pipeline on a streaming DataFrame cannot have a second source",
                cure="join or union the inputs in Spark before passing the DataFrame",
                operator=name,
            )
        check_reserved(name, schema)
        time = None
        late, ahead = 0, None
        if event_time is None:
            given = {"time_unit": time_unit, "lateness": lateness or None, "max_ahead": max_ahead}
            for option in [option for option, value in given.items() if value is not None]:
                raise WrongTypeError(
                    f"{option} concerns the event time, but none is declared",
                    cure=f"also give event_time=..., or leave {option} out",
                    operator=name,
                )
        if event_time is not None:
            check_columns(name, [event_time], schema)
            try:
                time = EventTime(event_time, time_unit_of(schema[event_time], time_unit, event_time))
            except WrongTypeError as error:
                raise error.at(operator=name) from None
            late = time.ticks(lateness, operator=name)
            if late < 0:
                raise WrongTypeError(f"lateness={lateness!r} is negative", cure="give 0 or more", operator=name)
            ahead = None if max_ahead is None else time.ticks(max_ahead, operator=name)
            if ahead is not None and ahead < 0:
                raise WrongTypeError(f"max_ahead={max_ahead!r} is negative", cure="give 0 or more", operator=name)
        node = SourceNode(
            name=name, inputs=(), schema=schema, time=time, source=source, lateness=late, max_ahead=ahead, idle=idle,
            was=was,
        )  # fmt: skip
        return self.add(node)

    def add(self, node: Node) -> Stream:
        """Add an operator and return its output stream. The methods of streams call this."""
        self._check_name(node.name)
        self._nodes[node.name] = node
        return Stream(self, node.name)

    def rename(self, old: str, new: str) -> Stream:
        """Rename an operator that nothing reads from yet. `Stream.named` calls this."""
        node = self.stream(old).node
        readers = [reader.name for reader in self._nodes.values() if old in reader.inputs]
        if readers:
            raise DeclarationError(
                f"'{readers[0]}' already reads from it, so it can no longer be renamed to '{new}'",
                cure="put .named(...) directly after the operator",
                operator=old,
            )
        if new != old:
            self._check_name(new)
            renamed = replace(node, name=new)
            self._nodes = {kept.name: kept for kept in (renamed if n is node else n for n in self._nodes.values())}
        return self.stream(new)

    def _check_name(self, name: str) -> None:
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise DeclarationError(
                f"operator name {name!r}",
                cure="use at most 100 letters, digits, '.', '_' and '-', starting with a letter or digit",
            )
        check_new_name(name, self._nodes)

    def fresh_name(self, kind: str) -> str:
        """A name for an unnamed operator: its kind, with a number if needed."""
        if kind not in self._nodes:
            return kind
        number = 2
        while f"{kind}-{number}" in self._nodes:
            number += 1
        return f"{kind}-{number}"

    def stream(self, name: str) -> Stream:
        """The output stream of operator `name`."""
        if name not in self._nodes:
            raise DeclarationError(
                f"there is no operator '{name}'", cure=f"declared operators: {', '.join(self._nodes) or 'none'}"
            )
        return Stream(self, name)

    def reconnect(self, operator: str, stream: Stream) -> None:
        """Let an operator with one input read from another stream with the same columns, e.g. to test a part."""
        node = self.stream(operator).node
        if len(node.inputs) != 1:
            raise DeclarationError(
                f"has {len(node.inputs)} inputs",
                cure="only an operator with one input can be reconnected",
                operator=operator,
            )
        wanted = self._nodes[node.inputs[0]].schema
        offered = stream.schema
        for column, dtype in wanted.items():
            if column not in offered:
                raise unknown_column(operator, column, offered)
            if offered[column] != dtype:
                raise DeclarationError(
                    f"column '{column}' would change from {dtype} to {offered[column]}",
                    cure="reconnect to a stream with the same columns and types",
                    operator=operator,
                )
        trial = {**self._nodes, operator: reconnected(node, (stream.name,))}
        topological_order(trial)
        self._nodes = trial

    def check(self) -> list[Node]:
        """The operators, inputs first. Raises if the pipeline cannot run."""
        order = topological_order(self._nodes)
        if not any(isinstance(node, SourceNode) for node in order):
            raise DeclarationError(f"pipeline '{self.name}' has no source", cure="add one with pipeline.source(...)")
        if not any(isinstance(node, SinkNode) for node in order):
            raise DeclarationError(
                f"pipeline '{self.name}' has no sink",
                cure="end a stream with .sink(...), e.g. hf.sink.parquet('out')",
            )
        check_was_names(self._nodes)
        check_spans(order)
        return order

    def _repr_html_(self) -> str:
        """The graph, in a notebook."""
        return graph_svg(f"pipeline {self.name}", topological_order(self._nodes))

    def __repr__(self) -> str:
        return f"Pipeline({self.name!r}, {len(self._nodes)} operators)"

    if not TYPE_CHECKING:  # a type checker would take it to say that a pipeline has every attribute

        def __getattr__(self, name):
            raise attribute_error(name, "Pipeline", "'Pipeline' object")


def check_pipeline(given: object, function: str) -> None:
    """Refuse what is no pipeline where a pipeline is wanted."""
    if isinstance(given, Pipeline):
        return
    if isinstance(given, Stream):
        cure = f"give its pipeline: {function}(stream.pipeline); .sink(...) returns the stream"
    elif isinstance(given, str | PathLike):
        cure = f"give the Pipeline itself; a file is run by `holdfast run {given}`"
    else:
        cure = f"give the Pipeline itself: {function}(pipeline)"
    shown = repr(given) if isinstance(given, str) else f"a {type(given).__name__}"
    raise WrongTypeError(f"{function} was given {shown} instead of a pipeline", cure=cure)
