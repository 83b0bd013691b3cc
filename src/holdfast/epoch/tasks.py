"""The tasks of an epoch: the fragment function (stage 0) and the assembly function (every later stage).

Both are given to Spark's `mapInArrow`. They run in Python workers, which are used again for task after task, so what
is loaded once stays. A typed error becomes a message; anything else is raised, and Spark tries the task again.
"""

from __future__ import annotations

import socket
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
from pyspark import TaskContext

from holdfast.connect.base import Chunk, Marks, Slice, Source
from holdfast.epoch.deadline import at_work
from holdfast.epoch.inbox import Inbox
from holdfast.epoch.measuring import WorkMeter
from holdfast.epoch.messages import Message, decode_frame, error_message, pack, unpack
from holdfast.epoch.outbox import Origin, Outbox
from holdfast.epoch.steps import Arrivals, Batch, StepContext, assemble
from holdfast.epoch.steps.trace import trace_of
from holdfast.epoch.watermarks import SourceTimes
from holdfast.epoch.work import WorkDirectory, load_program
from holdfast.errors import HoldfastError
from holdfast.graph.aggregates import ROW_SEQ, ROW_TIME
from holdfast.graph.nodes import SourceNode, Stateful
from holdfast.graph.windows import TimeWindow
from holdfast.plan.lift import bounded, mark_late, shape_of
from holdfast.plan.lifted import LiftedSource
from holdfast.plan.program import Program, edge_schema, goes_by_time, keeps_time
from holdfast.pstream import close_others
from holdfast.pstream.times import BOUND, row_bounds, row_marks, times_of
from holdfast.state.manifest import Manifest
from holdfast.state.routing import Routing
from holdfast.state.tables import Writer
from holdfast.store import Tiers

__all__ = ["AssemblyTask", "FragmentTask"]

Batches = Iterable[pa.RecordBatch]


def _sending_errors(messages: Callable[[], Iterator[Message]]) -> Iterator[pa.RecordBatch]:
    def guarded() -> Iterator[Message]:
        try:
            yield from messages()
        except HoldfastError as error:
            yield error_message(error)

    yield from pack(guarded())


def _task_number() -> int:
    context = TaskContext.get()
    assert context is not None
    return context.partitionId()


@contextmanager
def _signing(work: WorkDirectory, epoch: int, stage: int, task: int) -> Iterator[None]:
    """Let the driver see that this task is at work, and when it has come to its end."""
    with at_work(lambda: work.sign(epoch, stage, task)):
        yield
    work.done(epoch, stage, task)


@dataclass(frozen=True, slots=True)
class FragmentTask:
    """Stage 0: read slices, run the stateless chains, lift, cut by routing."""

    work: WorkDirectory
    epoch: int

    def __call__(self, batches: Batches) -> Iterator[pa.RecordBatch]:
        program = load_program(self.work)
        plan = self.work.read_plan(self.epoch)
        program = program.silent if plan.get("silent") else program
        task = _task_number()
        with _signing(self.work, self.epoch, 0, task):
            if program.spark_input is not None:
                yield from _sending_errors(lambda: self._run_spark(program, plan, task, batches))
            else:
                for _ in batches:
                    pass
                yield from _sending_errors(lambda: self._run(program, plan, task))

    def _run(self, program: Program, plan: dict[str, Any], task: int) -> Iterator[Message]:
        run = _FragmentRun(program, plan, self.epoch, task)
        for index, node in enumerate(program.sources):
            assert isinstance(node.source, Source)
            for number, piece in enumerate(plan["slices"][node.name][task]):
                yield from run.read(index, node, Slice(piece["base"], piece["rows"], piece["where"]), number)
        yield from run.finish()
        self.work.mark_fragment(self.epoch, task)

    def _run_spark(self, program: Program, plan: dict[str, Any], task: int, batches: Batches) -> Iterator[Message]:
        from holdfast.connect.spark import from_spark_batch

        run = _FragmentRun(program, plan, self.epoch, task)
        node = program.sources[0]
        try:
            for number, batch in enumerate(batches):
                frame = from_spark_batch(batch, node.schema)
                # In order of epoch, Spark partition and batch: rows that come later have greater numbers.
                base = (self.epoch << 30) + (task << 16) + number
                yield from run.rows(0, node, Chunk(frame), base=base)
        except HoldfastError as error:
            raise error.at(operator=node.name, epoch=self.epoch) from error.__cause__
        yield from run.finish()
        self.work.mark_fragment(self.epoch, task)


class _FragmentRun:
    """One run of a fragment task."""

    def __init__(self, program: Program, plan: dict[str, Any], epoch: int, task: int) -> None:
        self._program = program
        self._epoch = epoch
        self._task = task
        self._plan = plan
        routing = {name: Routing.from_json(bounds) for name, bounds in plan["routing"].items()}
        self._outbox = Outbox(program, 0, task, epoch, uuid.uuid4().hex, routing)
        self._read: dict[str, int] = {}
        self._bad: dict[str, int] = {}
        self._greatest: dict[str, int] = {}
        self._kept: dict[str, frozenset[str]] = {}
        self._fetching = 0.0
        self._started = time.process_time()

    def read(self, index: int, node: SourceNode, piece: Slice, number: int) -> Iterator[Message]:
        assert isinstance(node.source, Source)
        base = piece.base
        received = None
        if self._plan.get("inbox") is not None:
            received = Inbox(Path(self._plan["inbox"])).chunks(
                self._epoch, node.name, self._task, number, generation=self._plan.get("generation", 0)
            )
        try:
            for chunk in self._timed(node.source.read(piece) if received is None else received):
                if chunk.bad is not None and chunk.bad.height:
                    yield from self._dead_letters(node, chunk.bad)
                if chunk.marks is not None:
                    yield from self._marked(index, node, chunk.frame, chunk.marks, base)
                else:
                    yield from self.rows(index, node, chunk, base=base)
                base += chunk.frame.height + (chunk.bad.height if chunk.bad is not None else 0)
        except HoldfastError as error:
            raise error.at(operator=node.name, epoch=self._epoch) from error.__cause__

    def _timed(self, chunks: Iterable[Chunk]) -> Iterator[Chunk]:
        """The chunks; how long they took to come is counted."""
        coming = iter(chunks)
        while True:
            began = time.perf_counter()
            chunk = next(coming, None)
            self._fetching += time.perf_counter() - began
            if chunk is None:
                return
            yield chunk

    def _dead_letters(self, node: SourceNode, bad: pl.DataFrame) -> Iterator[Message]:
        self._bad[node.name] = self._bad.get(node.name, 0) + bad.height
        side = f"{node.name}.dead_letters"
        if side in self._program.nodes:
            yield from self._outbox.feed(Origin(side, bad), -1, frozenset())

    def rows(self, index: int, node: SourceNode, chunk: Chunk, *, base: int) -> Iterator[Message]:
        """Rows of a source that goes by their times, where it has any."""
        frame, shift, times, seen = chunk.frame, chunk.shift, None, None
        if (allowed := node.allowed) is not None and frame.height:
            times = frame[allowed.column].to_physical()
            seen, now = times_of(times, ordered=chunk.ordered), self._plan.get("now")
            dtype = frame.schema[allowed.column]
            if seen is None or not allowed.holds(dtype, seen.least + shift, seen.greatest + shift, now):
                frame, bad = allowed.split(frame, now, shift=shift)
                assert bad is not None
                letters = bad.letters(node.source.bad_rows, node.source.describe(), chunk.place)
                yield from self._dead_letters(node, letters)
                times = frame[allowed.column].to_physical()
                seen = times_of(times, ordered=chunk.ordered)
        self._read[node.name] = self._read.get(node.name, 0) + frame.height
        if not frame.height:
            return
        origin = Origin(node.name, frame, base=base)
        if times is not None and seen is not None:
            assert allowed is not None
            times = times.cast(pl.Int64) if times.dtype != pl.Int64 else times
            known = self._greatest.get(node.name)
            before = None if known is None else known - shift
            bound, marks = None, None
            if node.source.in_order:
                bound = row_bounds(times, seen, before, node.lateness)
                if self._program.marked:
                    marks = row_marks(times, before, node.lateness, ordered=seen.ordered) + shift
            if seen.ordered and bound is None:
                origin = Origin(node.name, frame, allowed.column, shift, times, base, marks)
            else:
                behind = frame.with_columns(bound + shift) if bound is not None else frame
                origin = Origin(node.name, behind, allowed.column, shift, None, base, marks)
            greatest = seen.greatest + shift
            self._greatest[node.name] = greatest if known is None else max(known, greatest)
        yield from self._outbox.feed(origin, index, self._time_kept(node))

    def _marked(self, index: int, node: SourceNode, frame: pl.DataFrame, marks: Marks, base: int) -> Iterator[Message]:
        """Rows of a p-stream: what is late was decided when they were written."""
        self._read[node.name] = self._read.get(node.name, 0) + frame.height
        if frame.height and isinstance(node, LiftedSource):
            yield from self._outbox.feed(self._lifted(node, frame, marks.before), index, frozenset())
        elif frame.height:
            assert node.time is not None
            times = frame.select(node.time.expr()).to_series()
            frame, watermarks = bounded(frame, node.time, marks.before)
            in_order = BOUND not in frame.columns and times.is_sorted()
            origin = Origin(
                node.name, frame, node.time.column, 0, times if in_order else None, base, watermarks
            )  # fmt: skip
            yield from self._outbox.feed(origin, index, self._time_kept(node))
        if marks.after is not None:
            known = self._greatest.get(node.name)
            self._greatest[node.name] = marks.after if known is None else max(known, marks.after)

    def _lifted(self, node: SourceNode, frame: pl.DataFrame, before: int | None) -> Origin:
        [edge] = [edge for edge in self._program.edges if edge.input == node.name]
        window = self._program.window_of(edge)
        assert isinstance(window.window, TimeWindow)
        kept, dropped = mark_late(frame, shape_of(window.window, window.time), before)
        if dropped:
            late = self._outbox.late_rows
            late[window.name] = late.get(window.name, 0) + dropped
        return Origin(node.name, kept)

    def _time_kept(self, node: SourceNode) -> frozenset[str]:
        if node.name not in self._kept:
            names = [edge.input for edge in self._program.edges]
            self._kept[node.name] = frozenset(name for name in names if keeps_time(self._program, node, name))
        return self._kept[node.name]

    def finish(self) -> Iterator[Message]:
        yield from self._outbox.finish()
        times = {"kind": "times", "task": self._task, "greatest": self._greatest}
        for part in range(self._plan["tasks"][1] if len(self._plan["tasks"]) > 1 else 0):
            yield Message(part, times)
        receipts: dict[str, Any] = {}
        yield from self._outbox.sink_messages(receipts)
        yield Message(
            0,
            {
                "kind": "commit",
                "host": socket.gethostname(),
                "stage": 0,
                "task": self._task,
                "read": self._read,
                "bad": self._bad,
                "greatest": self._greatest,
                "late": self._outbox.late_rows,
                "receipts": receipts,
                "digest": self._outbox.digests() if self._plan.get("digest") else {},
                "fetching": self._fetching,
                "cpu": time.process_time() - self._started,
            },
        )


@dataclass(frozen=True, slots=True)
class AssemblyTask:
    """Stage k > 0: apply arrivals to state, run the chains behind the operators."""

    work: WorkDirectory
    epoch: int
    stage: int
    tiers: Tiers

    def __call__(self, batches: Batches) -> Iterator[pa.RecordBatch]:
        program = load_program(self.work)
        task = _task_number()
        with _signing(self.work, self.epoch, self.stage, task):
            yield from _sending_errors(lambda: self._run(program, task, unpack(batches)))

    def _run(self, program: Program, task: int, messages: Iterator[Message]) -> Iterator[Message]:
        meter = WorkMeter()
        arrived: dict[int, list[tuple[list[int], bytes]]] = {}
        times = SourceTimes()
        plan = self.work.read_plan(self.epoch)
        program = program.silent if plan.get("silent") else program
        tasks = plan["tasks"]
        following = tasks[self.stage + 1] if self.stage + 1 < len(tasks) else 0
        for message in messages:
            head = message.head
            if message.kind == "data" and head["stage"] == self.stage:
                arrived.setdefault(head["edge"], []).append((head["from"], message.blob))
                continue
            if message.kind == "times":
                times.add(head["task"], head["greatest"])
                for part in range(task, following, tasks[self.stage]):
                    yield Message(part, head)
                continue
            yield message
        with meter.waiting():
            handover = self.work.wait_handover(self.epoch)
        started = time.process_time()
        known = (handover["greatest"], handover["done_before"], handover["done"])
        times.begin(*known, handover["pending"], handover["open"])
        routing = {name: Routing.from_json(bounds) for name, bounds in handover["routing"].items()}
        attempt = uuid.uuid4().hex
        outbox = Outbox(program, self.stage, task, self.epoch, attempt, routing)
        store = self.tiers.at(handover["tier"])
        states: dict[str, Any] = {}
        footprints: dict[str, Any] = {}
        late: dict[str, int] = {}
        written = 0
        for node in program.operators_in(self.stage):
            if task >= routing[node.name].partitions:
                continue
            meter.begin(node)
            manifest = Manifest.from_json(handover["state"][node.name][task])
            writer = Writer(store, node.name, f"{self.epoch:012d}-{task}-{attempt[:12]}")
            before, after = times.watermarks(program, node.name)
            farthest, wanted = times.farthest(program, node.name), node.name in program.wanted
            trace = trace_of(handover, node.name, self.epoch, task, attempt)
            grain = program.grains.get(node.name)
            context = StepContext(self.epoch, before, after, writer, farthest, wanted, trace, grain)
            arrivals = self._arrivals(program, node, arrived, times, before)
            meter.arrived(node, arrivals, manifest.interval)
            result = assemble(node, arrivals, context, manifest)
            states[node.name] = result.manifest.to_json()
            named = [piece["punit"]["name"] for part in handover["state"][node.name] for piece in part["pieces"]]
            close_others(store, node.name, named)
            written += writer.bytes_written
            if trace is not None and (left := trace.write()) is not None:
                footprints[node.name] = left
            if result.late_rows:
                late[node.name] = result.late_rows
            yield from self._feed(program, outbox, node, result.output, result.late, before)
            meter.end(node)
        yield from outbox.finish()
        for name, rows in outbox.late_rows.items():
            late[name] = late.get(name, 0) + rows
        receipts: dict[str, Any] = {}
        yield from outbox.sink_messages(receipts)
        yield Message(
            0,
            {
                "kind": "commit",
                "host": socket.gethostname(),
                "stage": self.stage,
                "task": task,
                "state": states,
                "footprints": footprints,
                "late": late,
                "receipts": receipts,
                "digest": outbox.digests() if plan.get("digest") else {},
                "written": written,
                "cpu": time.process_time() - started,
                "work": meter.to_json(),
            },
        )

    def _arrivals(
        self,
        program: Program,
        node: Stateful,
        arrived: dict[int, list[tuple[list[int], bytes]]],
        times: SourceTimes,
        before: int | None,
    ) -> Arrivals:
        ports: list[list[Batch]] = [[] for _ in node.inputs]
        for edge in program.edges_into(node.name):
            batches = []
            for (stage, source, task, _), blob in sorted(arrived.get(edge.number, []), key=lambda item: item[0]):
                bound = before
                if stage == 0 and source >= 0:
                    bound = times.bound_before(program.sources[source], task)
                batches.append(Batch(decode_frame(blob), bound))
            batches = batches or [Batch(pl.DataFrame(schema=edge_schema(program, edge)))]
            if not goes_by_time(node) and program.nodes[edge.input].name not in program.direct:
                batches = [_by_time(batches)]
            ports[edge.port] = batches
        return Arrivals(ports)

    def _feed(
        self,
        program: Program,
        outbox: Outbox,
        node: Stateful,
        output: pl.DataFrame,
        late: pl.DataFrame | None,
        before: int | None,
    ) -> Iterator[Message]:
        if output.height:
            rows, marks = output, None
            if node.time is not None and BOUND in output.columns:
                rows, marks = bounded(output, node.time, None)
            elif node.time is not None and program.marked:
                # The result of a window comes when the watermark reaches its end, one tick after its time.
                marks = output.select(node.time.expr() + 1).to_series()
            names = [*node.schema.names(), *([BOUND] if BOUND in rows.columns else [])]
            yield from outbox.feed(Origin(node.name, rows.select(names), marks=marks), 0, frozenset())
        side = f"{node.name}.late"
        if late is not None and late.height and side in program.nodes:
            rows = late.select(program.nodes[side].schema.names())
            marks = pl.repeat(before, rows.height, dtype=pl.Int64, eager=True)
            yield from outbox.feed(Origin(side, rows, marks=marks), 0, frozenset())


def _by_time(batches: list[Batch]) -> Batch:
    """Rows of several upstream partitions in an order that does not depend on the partitions."""
    rows = pl.concat([batch.frame for batch in batches])
    plain = [name for name, dtype in rows.schema.items() if not dtype.is_nested() and name not in ROW_SEQ]
    first = [BOUND, ROW_TIME] if BOUND in rows.columns else [ROW_TIME]
    order = [*first, *(name for name in plain if name not in first)]
    return Batch(rows.sort(order, maintain_order=True), batches[0].bound)
