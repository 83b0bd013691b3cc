"""The outbox of a task: what leaves it, cut by routing state.

Rows from the task's origins run through the stateless chains. For a window they are lifted and combined per pane
before they leave, so that millions of rows become thousands; for other operators they leave as they are; for sinks
they are kept until the task ends.
"""

from __future__ import annotations

import errno
import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import polars as pl

from holdfast.connect.base import DriverSink, TaskSink
from holdfast.connect.time_range import EARLIEST, END_OF_TIME, LATEST
from holdfast.epoch.digest import combined, digest_of
from holdfast.epoch.messages import MOST_BLOB_ROWS, Message, encode_frame
from holdfast.errors import BadRowError, HoldfastError, OperatorError
from holdfast.graph.aggregates import ROW_SEQ, ROW_TIME
from holdfast.graph.durations import EventTime
from holdfast.graph.nodes import JoinTable, SinkNode, WindowAggregate
from holdfast.graph.windows import TimeWindow
from holdfast.plan.chain import Chain
from holdfast.plan.dense import dense_partials, is_dense
from holdfast.plan.lift import (
    BOUND,
    FROM,
    ROWS,
    combine_partials,
    from_expr,
    lift_partials,
    mark_late,
    shape_of,
)
from holdfast.plan.lifted import LiftedSink
from holdfast.plan.program import Edge, Program, goes_by_time, is_derived
from holdfast.pstream.link import StreamSink
from holdfast.state.manifest import POSITION
from holdfast.state.partition import partition_buffer_state
from holdfast.state.position import key_positions, supports_key
from holdfast.state.routing import Routing
from holdfast.state.tables import PANE

__all__ = ["Origin", "Outbox"]

_FOR_GOOD = {errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG}

_RECOMBINE_ROWS = 500_000
_ROWS_PER_PANE_SLICE = 100_000


@dataclass(frozen=True, slots=True)
class Origin:
    """Rows that enter the chains at `name`.

    `times` are the event times of rows in order, where they are known to be in order, so that panes can be cut out
    as slices; `shift` is still to be added to them and to the time column. `base` numbers the rows by arrival. `marks`
    are the watermarks before the rows, where somebody wants all of them.
    """

    name: str
    frame: pl.DataFrame
    time: str | None = None
    shift: int = 0
    times: pl.Series | None = None
    base: int = 0
    marks: pl.Series | None = None

    def with_marks(self) -> Origin:
        """With the watermark before each row as its bound, whether it lies behind it or not."""
        if self.marks is None:
            return self
        return replace(self, frame=self.frame.with_columns(self.marks.alias(BOUND)))

    def without_bounds(self) -> Origin:
        return replace(self, frame=self.frame.drop(BOUND)) if BOUND in self.frame.columns else self

    def lazy(self, start: int = 0, stop: int | None = None) -> pl.LazyFrame:
        frame = self.frame
        if start or stop is not None:
            frame = frame.slice(start, None if stop is None else stop - start)
        if not self.shift or self.time is None:
            return frame.lazy()
        return frame.lazy().with_columns(_shifted(frame, self.time, self.shift))


def _shifted(frame: pl.DataFrame, column: str, shift: int) -> pl.Expr:
    dtype = frame.schema[column]
    if dtype.is_integer():
        return pl.col(column) + pl.lit(shift, dtype)
    return (pl.col(column).to_physical() + shift).cast(dtype)


@dataclass(slots=True)
class Outbox:
    """Collects and emits the messages of one task. `sender` orders batches at the receiver: (source, task)."""

    program: Program
    stage: int
    task: int
    epoch: int
    attempt: str
    routing: Mapping[str, Routing]
    late_rows: dict[str, int] = field(default_factory=dict)
    _partials: dict[tuple[int, int], list[pl.DataFrame]] = field(default_factory=dict)
    _sinks: dict[str, list[pl.DataFrame]] = field(default_factory=dict)
    _streams: dict[tuple[str, int], list[pl.DataFrame]] = field(default_factory=dict)
    _sequence: int = 0
    _keep_join_below: dict[int, bool] = field(default_factory=dict)
    _not_dense: set[int] = field(default_factory=set)

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
                    rows = written[node.inputs[0]].select(node.schema.names()).collect()
                    self._sinks.setdefault(node.name, []).append(rows)
            for node in streams:
                if node.inputs[0] in frames:
                    self._keep_for_stream(node, self._marked(node.name, chain, frames, node.inputs[0], origin), source)
            for edge in edges:
                if edge.input not in frames:
                    continue
                if edge.lifted:
                    self._partials.setdefault((edge.number, source), []).append(origin.frame)
                elif edge.partials:
                    self._lift(edge, chain, frames, origin, source, edge.input in time_kept)
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

    def _keep_for_stream(self, node: SinkNode, rows: pl.LazyFrame, source: int) -> None:
        """Rows of different sources are kept apart: each has its own watermark. Those behind it keep their bound."""
        bounds = [BOUND] if BOUND in rows.collect_schema() else []
        made = rows.select(*node.schema.names(), *bounds).collect()
        if bounds and made[BOUND].null_count() == made.height:
            made = made.drop(BOUND)
        if made.height:
            self._streams.setdefault((node.name, source), []).append(made)

    def _failed_target(self, chain: Chain, targets: list[str], origins: Mapping[str, pl.DataFrame]) -> str:
        for target in targets:
            lazy = {name: frame.lazy() for name, frame in origins.items()}
            for frame in chain.frames([target], lazy).values():
                try:
                    frame.collect()
                except Exception:  # noqa: BLE001 - any failure names the culprit
                    return target
        return targets[0]

    def _lift(
        self,
        edge: Edge,
        chain: Chain,
        frames: dict[str, pl.LazyFrame],
        origin: Origin,
        source: int,
        time_kept: bool,
    ) -> None:
        node = self.program.window_of(edge)
        assert isinstance(node.window, TimeWindow)
        shape = shape_of(node.window, node.time)
        late_join = edge.before_join if self._keep_join_below.get(edge.number, True) else None
        entry = edge.input if late_join is None else self.program.nodes[late_join].inputs[0]
        gathered = self._partials.setdefault((edge.number, source), [])
        # Panes as slices of ordered rows: then the pane is a constant and need not be grouped by.
        if time_kept and origin.times is not None and origin.frame.height:
            times = origin.times
            first = (times[0] + origin.shift) // shape.pane
            last = (times[-1] + origin.shift) // shape.pane
            if (last - first + 1) * _ROWS_PER_PANE_SLICE <= origin.frame.height or first == last:
                edges = np.arange(first + 1, last + 1) * shape.pane - origin.shift
                cuts = [0, *np.searchsorted(times.to_numpy(), edges, side="left").tolist(), len(times)]
                for pane, (start, stop) in enumerate(itertools.pairwise(cuts), start=first):
                    if start < stop:
                        rows = frames[entry]
                        if first != last:
                            rows = chain.frames([entry], {origin.name: origin.lazy(start, stop)})[entry]
                        gathered.append(self._partials_of(edge, node, rows, origin, source, late_join, pane=pane))
                self._shrink(node, gathered)
                return
        rows = frames[entry]
        countable = (
            edge.number not in self._not_dense and late_join is None and is_dense(node, self._input_schema(edge))
        )
        if countable and time_kept and origin.times is not None:
            collected = rows.select(edge.columns).collect()
            counted = dense_partials(collected, node, self._time_of(edge), shape)
            if counted is not None:
                gathered.append(counted)
                self._shrink(node, gathered)
                return
            self._not_dense.add(edge.number)
            rows = collected.lazy()
        before = origin.frame.height
        made = self._partials_of(edge, node, rows, origin, source, late_join, pane=None)
        if late_join is not None and made.height * 4 > before:
            self._keep_join_below[edge.number] = False
        made, dropped = mark_late(made, shape, None)
        if dropped:
            self.late_rows[edge.consumer] = self.late_rows.get(edge.consumer, 0) + dropped
        gathered.append(made)
        self._shrink(node, gathered)

    def _input_schema(self, edge: Edge) -> pl.Schema:
        return self.program.nodes[edge.input].schema

    def _time_of(self, edge: Edge) -> EventTime:
        time = self.program.nodes[edge.input].time
        assert time is not None
        return time

    def _partials_of(
        self,
        edge: Edge,
        node: WindowAggregate,
        rows: pl.LazyFrame,
        origin: Origin,
        source: int,
        late_join: str | None,
        pane: int | None,
    ) -> pl.DataFrame:
        """Lift one batch of rows. With a `pane`, all rows are known to lie in it."""
        assert isinstance(node.window, TimeWindow)
        shape = shape_of(node.window, node.time)
        time = self._time_of(edge)
        bounded = BOUND in rows.collect_schema()
        keys = list(node.keys)
        join: JoinTable | None = None
        if late_join is not None:
            found = self.program.nodes[late_join]
            assert isinstance(found, JoinTable)
            join = found
            table_side = set(join.table.columns) - set(join.on)
            keys = list(dict.fromkeys([*join.on, *(key for key in node.keys if key not in table_side)]))
        if any(aggregate.ordered for aggregate in node.aggregates):
            rows = self._numbered(rows.with_columns(time.expr().alias(ROW_TIME)), origin, source, edge.columns)
        if pane is not None and not bounded:
            prepare = [expr for aggregate in node.aggregates for expr in aggregate.prepare]
            lift = [expr for aggregate in node.aggregates for expr in aggregate.lift]
            lift.append(pl.len().cast(pl.Int64).alias(ROWS))
            rows = rows.with_columns(prepare) if prepare else rows
            lifted = rows.group_by(keys).agg(lift) if keys else rows.select(lift).filter(pl.col(ROWS) > 0)
            partials = lifted.with_columns(pl.lit(pane, pl.Int64).alias(PANE), pl.lit(None, pl.Int64).alias(FROM))
        else:
            rows = rows.with_columns(time.expr().floordiv(shape.pane).alias(PANE))
            if bounded:
                rows = rows.with_columns(from_expr(shape, pl.col(BOUND)).alias(FROM))
            partials = lift_partials(rows, node, keys, bounded)
        if join is not None:
            partials = combine_partials(
                partials.join(join.table.lazy(), on=list(join.on), how=join.how),
                node, [*node.keys, PANE, FROM], rows=True,
            )  # fmt: skip
        made = partials.select(*node.keys, PANE, FROM, *node.state_schema, ROWS).collect()
        _check_times(made[PANE], edge, shape.pane)
        return made

    def _shrink(self, node: WindowAggregate, gathered: list[pl.DataFrame]) -> None:
        """Combine what has gathered once it is large, so that a task's memory follows its groups, not its rows."""
        if len(gathered) > 1 and sum(frame.height for frame in gathered) > _RECOMBINE_ROWS:
            merged = self._combined(node, gathered)
            gathered.clear()
            gathered.append(merged)

    def _combined(self, node: WindowAggregate, gathered: list[pl.DataFrame]) -> pl.DataFrame:
        if len(gathered) == 1:
            return gathered[0]
        groups = [*node.keys, PANE, FROM]
        merged = combine_partials(pl.concat(gathered).lazy(), node, groups, rows=True).collect()
        return merged.select(gathered[0].columns)

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
        rows = self._numbered(frame.select(*edge.columns, *hidden), origin, source, edge.columns).collect()
        if goes_by_time(node):
            _check_times(rows[ROW_TIME], edge)
        yield from self._cut(edge, node.keys, rows, source)  # type: ignore[attr-defined]

    def _numbered(self, rows: pl.LazyFrame, origin: Origin, source: int, columns: tuple[str, ...]) -> pl.LazyFrame:
        """Add the order of arrival: of a source's rows, by source and place in it; of an operator's results, by what
        is in those of their `columns` that are read, since which of them comes first depends on the partitions."""
        if self.stage == 0 and not (source >= 0 and is_derived(self.program.sources[source])):
            first = (max(source, 0) << 56) + origin.base
            order = [pl.lit(first, pl.Int64), pl.int_range(pl.len(), dtype=pl.Int64)]
        else:
            frame = rows.collect()
            told = [c for c in columns if c in frame.columns and supports_key(frame.schema[c])]
            positions = key_positions([frame[c] for c in told], frame.height)
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
            head: dict[str, Any] = {
                "kind": "data",
                "stage": self.program.stage_of[edge.consumer],
                "edge": edge.number,
                "from": [self.stage, source, self.task, self._sequence],
            }
            self._sequence += 1
            yield Message(part, head, encode_frame(rows.slice(start, MOST_BLOB_ROWS)))

    def finish(self) -> Iterator[Message]:
        """The partials that have gathered."""
        for (number, source), gathered in self._partials.items():
            edge = [*self.program.edges, *self.program.lifts][number]
            node = self.program.window_of(edge)
            gathered = [frame for frame in gathered if frame.height]
            if gathered and isinstance(self.program.nodes[edge.consumer], LiftedSink):
                # In order, equal values lie side by side and are written in less space.
                ordered = self._combined(node, gathered).sort(PANE, *node.keys)
                self._streams[edge.consumer, source] = [ordered]
            elif gathered:
                yield from self._cut(edge, node.keys, self._combined(node, gathered), source)
        self._partials.clear()

    def digests(self) -> dict[str, Any]:
        """Checksums of what goes out, by sink."""
        found: dict[str, Any] = {}
        frames = [(name, frame) for (name, _), frames in self._streams.items() for frame in frames]
        frames += [(name, frame) for name, each in self._sinks.items() for frame in each]
        for name, frame in frames:
            found[name] = combined(found.get(name), digest_of(frame.select(pl.exclude("^__hf_.*$"))))
        return found

    def sink_messages(self, receipts: dict[str, Any]) -> Iterator[Message]:
        """Prepare task sinks, filling `receipts`; rows of driver sinks become messages."""
        self._write_streams(receipts)
        for name, frames in self._sinks.items():
            node = self.program.nodes[name]
            assert isinstance(node, SinkNode)
            rows = pl.concat(frames)
            if not rows.height:
                continue
            if isinstance(node.sink, TaskSink):
                try:
                    receipt = node.sink.prepare(
                        rows, epoch=self.epoch, part=f"{self.stage}-{self.task}", attempt=self.attempt
                    )
                except HoldfastError as error:
                    raise error.at(operator=name, epoch=self.epoch) from error.__cause__
                except Exception as error:
                    raise _sink_failed(error, name, self.epoch) from error
                receipts.setdefault(name, []).append(dict(receipt))
            else:
                assert isinstance(node.sink, DriverSink)
                for number, start in enumerate(range(0, rows.height, MOST_BLOB_ROWS)):
                    piece = rows.slice(start, MOST_BLOB_ROWS)
                    place = [self.stage, self.task, number]
                    head = {"kind": "rows", "sink": name, "from": place, "rows": piece.height}
                    yield Message(0, head, encode_frame(piece))

    def _write_streams(self, receipts: dict[str, Any]) -> None:
        """Write the p-units of p-streams; `from` puts them in order at the driver."""
        for (name, source), frames in self._streams.items():
            node = self.program.nodes[name]
            assert isinstance(node, SinkNode)
            assert isinstance(node.sink, StreamSink)
            rows = pl.concat(frames, how="diagonal") if len(frames) > 1 else frames[0]
            try:
                part = f"{self.stage}-{self.task}-{max(source, 0)}"
                units = node.sink.write(rows, epoch=self.epoch, part=part, attempt=self.attempt)
            except HoldfastError as error:
                raise error.at(operator=name, epoch=self.epoch) from error.__cause__
            receipts.setdefault(name, []).extend(
                {"from": [self.stage, self.task, source, number], "unit": unit.to_json(), "rows": unit.rows}
                for number, unit in enumerate(units)
            )


def _check_times(times: pl.Series, edge: Edge, pane: int = 1) -> None:
    """Rows of an operator without event time belong to no window, and nobody would miss them; those at the end of time
    would never leave one: say so instead. `times` are in panes of so many ticks."""
    if times.null_count():
        raise BadRowError(
            f"{times.null_count()} rows for '{edge.consumer}' have no event time",
            cure="filter out the rows whose time is null before the window",
            operator=edge.input,
        )
    outside = ~times.is_between(EARLIEST // pane, (END_OF_TIME - 1) // pane)
    if outside.any():
        time = times.filter(outside)[0] * pane
        raise BadRowError(
            f"{outside.sum()} rows for '{edge.consumer}' have an event time that is not allowed, such as {time}",
            cure=f"give the rows of '{edge.input}' times from {EARLIEST} to {LATEST}",
            operator=edge.input,
        )


def _sink_failed(error: Exception, sink: str, epoch: int) -> Exception:
    """What to raise for an error of a sink: Spark tries the task again if another try, or another machine, may help."""
    if isinstance(error, OSError) and error.errno not in _FOR_GOOD:
        return OSError(error.errno, f"sink '{sink}', epoch {epoch}: {error.strerror or error}")
    return OperatorError(
        f"the sink cannot write: {type(error).__name__}: {error}",
        cure="see that the directory is there and may be written to, or mend the sink; the epoch was not committed and"
        " is run again at the next start",
        operator=sink,
        epoch=epoch,
    )
