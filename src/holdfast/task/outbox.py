"""The outbox of a task: what leaves it, cut by routing state.

Rows from the task's origins run through the stateless chains. For a window they gather as partials, for other operators
they leave as they are, and for sinks they are kept until the task ends.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
import polars as pl

from holdfast.epoch.messages import MOST_BLOB_ROWS, DataHead, Message, encode_frame
from holdfast.errors import HoldfastError
from holdfast.hidden_columns import BOUND, PANE, POSITION, ROW_SEQ, ROW_TIME
from holdfast.plan.chain import Chain
from holdfast.plan.lifted import LiftedSink
from holdfast.plan.program import Edge, Program, goes_by_time, is_derived, is_numbered
from holdfast.pstream.link import StreamSink
from holdfast.state.partition import partition_buffer_state
from holdfast.state.position import key_positions, supports_key
from holdfast.state.routing import Routing
from holdfast.store import OpenSegments
from holdfast.task.allowed_times import check_times
from holdfast.task.origin import Origin
from holdfast.task.partials import Partials
from holdfast.task.prepared_output import PreparedOutput

__all__ = ["Outbox"]


@dataclass(slots=True)
class Outbox:
    """Collects and emits the messages of one task. `sender` orders batches at the receiver: (source, task)."""

    program: Program
    stage: int
    task: int
    epoch: int
    attempt: str
    routing: Mapping[str, Routing]
    segments: OpenSegments | None = None
    late_rows: Counter[str] = field(default_factory=Counter)
    prepared: PreparedOutput = field(init=False)
    _partials: Partials = field(init=False)
    _sequence: int = 0

    def __post_init__(self) -> None:
        self.prepared = PreparedOutput(self.program, self.stage, self.task, self.epoch, self.attempt, self.segments)
        self._partials = Partials(self.program, self._numbered, self.late_rows)

    def feed(self, origin: Origin, source: int, time_kept: frozenset[str]) -> Iterator[Message]:
        """Run rows through the chains. `source` numbers where they come from; `time_kept` are the operators where
        the event time is still the origin's own."""
        chain = Chain(self.program.nodes)
        edges = [edge for edge in self.program.edges if self.program.stage_of[edge.consumer] > self.stage]
        edges += self.program.lifts
        inputs = [edge.input for edge in edges] + [
            (edge.before_join and self.program.nodes[edge.before_join].inputs[0]) or edge.input for edge in edges
        ]
        sinks = [node for node in self.program.sinks if not isinstance(node.sink, StreamSink)]
        streams = [
            node
            for node in self.program.sinks
            if isinstance(node.sink, StreamSink) and not isinstance(node, LiftedSink)
        ]
        inputs += [node.inputs[0] for node in streams]
        targets = list(dict.fromkeys([*inputs, *(node.inputs[0] for node in sinks)]))
        frames = chain.frames(inputs, {origin.name: origin.lazy()})
        try:
            # Sinks get rows in their order, which user functions do not keep around bounds.
            written = chain.frames([node.inputs[0] for node in sinks], {origin.name: origin.without_bounds().lazy()})
            for node in sinks:
                if node.inputs[0] in written:
                    rows = origin.collect(written[node.inputs[0]].select(node.schema.names()))
                    self.prepared.add(node, rows)
            for node in streams:
                if node.inputs[0] in frames:
                    marked = self._marked(node.name, chain, frames, node.inputs[0], origin)
                    self.prepared.add_to_stream(node, marked, source)
            for edge in edges:
                if edge.input not in frames:
                    continue
                if edge.lifted:
                    self._partials.add(edge, source, origin.frame)
                elif edge.partials:
                    self._partials.lift(edge, chain, frames, origin, source, edge.input in time_kept)
                else:
                    marked = self._marked(edge.consumer, chain, frames, edge.input, origin)
                    yield from self._send_rows(edge, chain, marked, origin, source)
        except HoldfastError:
            raise
        except Exception as error:
            culprit = {origin.name: origin.lazy().collect()}
            raise chain.blame(self._failed_target(chain, targets, culprit), culprit, error, self.epoch) from error

    def _marked(
        self, target: str, chain: Chain, frames: dict[str, pl.LazyFrame], name: str, origin: Origin
    ) -> pl.LazyFrame:
        """The rows at `name`, for a target that may want the watermark before each."""
        if target not in self.program.marked or origin.marks is None:
            return frames[name]
        return chain.frames([name], {origin.name: origin.with_marks().lazy()})[name]

    def _failed_target(self, chain: Chain, targets: list[str], origins: Mapping[str, pl.DataFrame]) -> str:
        for target in targets:
            lazy = {name: frame.lazy() for name, frame in origins.items()}
            for frame in chain.frames([target], lazy).values():
                try:
                    frame.collect()
                except Exception:  # noqa: BLE001 - any failure names the culprit
                    return target
        return targets[0]

    def _send_rows(
        self, edge: Edge, chain: Chain, frame: pl.LazyFrame, origin: Origin, source: int
    ) -> Iterator[Message]:
        node = self.program.nodes[edge.consumer]
        time = self.program.nodes[edge.input].time
        hidden: list[pl.Expr] = []
        if not goes_by_time(node) and node.name not in self.program.marked:
            if BOUND in frame.collect_schema():
                # Only the order of arrival counts here, and user functions do not keep it around bounds.
                frame = chain.frames([edge.input], {origin.name: origin.without_bounds().lazy()})[edge.input]
        elif BOUND in frame.collect_schema():
            hidden.append(pl.col(BOUND))
        else:
            hidden.append(pl.lit(None, pl.Int64).alias(BOUND))
        if time is not None:
            hidden.append(time.expr().alias(ROW_TIME))
        else:
            hidden.append(pl.lit(0, pl.Int64).alias(ROW_TIME))
        wanted = frame.select(*edge.columns, *hidden)
        if is_numbered(node):
            wanted = self._numbered(wanted, origin, source, edge.columns)
        rows = origin.collect(wanted)
        if goes_by_time(node):
            check_times(rows[ROW_TIME], edge)
        yield from self._cut(edge, node.keys, rows, source)  # type: ignore[attr-defined]

    def _numbered(self, rows: pl.LazyFrame, origin: Origin, source: int, columns: tuple[str, ...]) -> pl.LazyFrame:
        """Add the order of arrival: of a source's rows, by source and place in it; of an operator's results, by what
        is in those of their `columns` that are read, since which of them comes first depends on the partitions."""
        if self.stage == 0 and not (source >= 0 and is_derived(self.program.sources[source])):
            first = (max(source, 0) << 56) + origin.base
            order = [pl.lit(first, pl.Int64), pl.int_range(pl.len(), dtype=pl.Int64)]
        else:
            frame = rows.collect()
            known = [c for c in columns if c in frame.columns and supports_key(frame.schema[c])]
            positions = key_positions([frame[c] for c in known], frame.height)
            rows = frame.lazy()
            order = [pl.lit(pl.Series(positions.view(np.int64))), pl.lit(0, pl.Int64)]
        return rows.with_columns(expr.alias(name) for expr, name in zip(order, ROW_SEQ, strict=True))

    def _cut(self, edge: Edge, keys: tuple[str, ...], rows: pl.DataFrame, source: int) -> Iterator[Message]:
        """One message per target partition that gets any rows."""
        positions = key_positions([rows[key] for key in keys], rows.height)
        rows = rows.insert_column(0, pl.Series(POSITION, positions))
        for part, mine in partition_buffer_state(rows, positions, self.routing[edge.consumer]):
            yield from self._emit(edge, part, mine, source)

    def _emit(self, edge: Edge, part: int, rows: pl.DataFrame, source: int) -> Iterator[Message]:
        for start in range(0, rows.height, MOST_BLOB_ROWS):
            sender = (self.stage, source, self.task, self._sequence)
            head = DataHead(self.program.stage_of[edge.consumer], edge.number, sender)
            self._sequence += 1
            yield Message(part, head, encode_frame(rows.slice(start, MOST_BLOB_ROWS)))

    def finish(self) -> Iterator[Message]:
        """The partials that have gathered."""
        for edge, source, node, rows in self._partials.finish():
            if isinstance(self.program.nodes[edge.consumer], LiftedSink):
                # In order, equal values lie side by side and are written in less space.
                self.prepared.set_stream(edge.consumer, source, rows.sort(PANE, *node.keys))
            else:
                yield from self._cut(edge, node.keys, rows, source)
