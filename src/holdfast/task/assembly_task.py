"""The assembly task (every later stage): applies what arrives to state, and runs the chains behind the operators.

It runs where the fragment task does, and waits for the hand-over of its epoch.
"""

from __future__ import annotations

import socket
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass

import polars as pl

from holdfast.epoch.messages import DataHead, Message, TimesHead, decode_frame
from holdfast.epoch.task_commit import TaskCommit
from holdfast.graph.nodes import Stateful
from holdfast.hidden_columns import BOUND, ROW_SEQ, ROW_TIME
from holdfast.operators.footprint_messages import FootprintsLeft
from holdfast.operators.footprint_trace import trace_of
from holdfast.operators.lift import bounded
from holdfast.operators.registry import assemble
from holdfast.operators.step import Batch, StepContext, StepInput, clock_ticks
from holdfast.plan.program import Program, edge_schema, goes_by_time
from holdfast.plan.watermarks import SourceTimes
from holdfast.pstream import close_others
from holdfast.state.manifest import Manifest
from holdfast.state.resident_cache import RESIDENT
from holdfast.state.tables import Writer
from holdfast.store import OpenSegments, Tiers, syncing_seconds
from holdfast.task.dead_space import carried_over, mostly_dead
from holdfast.task.driver_link import DriverLink
from holdfast.task.origin import Origin
from holdfast.task.outbox import Outbox
from holdfast.task.planned_tables import with_planned_tables
from holdfast.task.sorted_rows import sorted_rows
from holdfast.task.work_meter import WorkMeter

__all__ = ["AssemblyTask"]

Arrived = dict[int, list[tuple[tuple[int, int, int, int], bytes]]]
"""By edge: the senders of blobs, and the blobs."""


@dataclass(frozen=True, slots=True)
class AssemblyTask:
    """Stage k > 0: apply arrivals to state, run the chains behind the operators.

    State of the stable tier, and rows for p-streams, are appended to `segments`, which the caller syncs before
    anybody hears what the task has said. Without, state gets a segment for this task alone.
    """

    driver: DriverLink
    epoch: int
    stage: int
    tiers: Tiers
    segments: OpenSegments | None = None

    def run(self, program: Program, task: int, messages: Iterator[Message]) -> Iterator[Message]:
        meter = WorkMeter()
        arrived: Arrived = {}
        times = SourceTimes()
        plan, settings = self.driver.read_plan(self.epoch)
        program = with_planned_tables(program, plan, self.epoch)
        program = program.silent if settings.silent else program
        tasks = plan.tasks
        following = tasks[self.stage + 1] if self.stage + 1 < len(tasks) else 0
        for message in messages:
            head = message.head
            if isinstance(head, DataHead) and head.stage == self.stage:
                arrived.setdefault(head.edge, []).append((head.sender, message.blob))
                continue
            if isinstance(head, TimesHead):
                times.add(head.task, head.greatest)
                for part in range(task, following, tasks[self.stage]):
                    yield Message(part, head)
                continue
            yield message
        with meter.waiting():
            handover = self.driver.wait_handover(self.epoch)
        started, began, synced = time.process_time(), time.perf_counter(), syncing_seconds()
        times.begin(handover.greatest, handover.done_before, handover.done, handover.pending, handover.open, plan.idle)
        routing = handover.routing
        attempt = uuid.uuid4().hex
        outbox = Outbox(program, self.stage, task, self.epoch, attempt, routing, self.segments)
        store = self.tiers.at(handover.tier)
        segments = self.segments or OpenSegments(epochs=1)
        stable = handover.tier == "stable"
        left_behind = mostly_dead(store, handover.state, self.epoch) if stable else None
        states: dict[str, Manifest] = {}
        footprints: dict[str, FootprintsLeft] = {}
        late: dict[str, int] = {}
        written = 0
        for node in program.operators_in(self.stage):
            if task >= routing[node.name].partitions:
                continue
            meter.begin(node)
            manifest = handover.state[node.name][task]
            writer = Writer(store, node.name, f"{self.epoch:012d}-{task}-{attempt[:12]}", epoch=self.epoch)
            writer.segments = segments.at(self.tiers.stable, self.tiers.sync) if stable else None
            before, after = times.watermarks(program, node.name)
            farthest, wanted = times.farthest(program, node.name), node.name in program.wanted
            trace = trace_of(handover.footprints.get(node.name), node.name, self.epoch, task, attempt)
            grain = program.grains.get(node.name)
            clocks = clock_ticks(handover.clock), clock_ticks(plan.now) or 0
            context = StepContext(self.epoch, before, after, writer, farthest, wanted, trace, grain, *clocks)
            arrivals = self._arrivals(program, node, arrived, times, before)
            meter.arrived(node, arrivals, manifest.interval)
            result = assemble(node, arrivals, context, manifest)
            changed = carried_over(result.manifest, writer, left_behind)
            RESIDENT.rewritten(str(store.root), node.name, result.manifest, changed)
            if changed != manifest:
                states[node.name] = changed
            RESIDENT.close_others(str(store.root), node.name, [part.interval for part in handover.state[node.name]])
            written += writer.bytes_written
            if trace is not None and (left := trace.write(self.segments)) is not None:
                footprints[node.name] = left
            if result.late_rows:
                late[node.name] = result.late_rows
            yield from self._feed(program, outbox, node, result.output, result.late, before)
            meter.end(node)
        named = (piece.punit.name for parts in handover.state.values() for part in parts for piece in part.pieces)
        close_others(store, named, self.epoch)
        if self.segments is None:
            segments.sync()
            segments.close()
        yield from outbox.finish()
        for name, rows in outbox.late_rows.items():
            late[name] = late.get(name, 0) + rows
        prepared = outbox.prepared
        yield from prepared.deliver()
        commit = TaskCommit(
            host=socket.gethostname(),
            stage=self.stage,
            task=task,
            state=states,
            footprints=footprints,
            late=late,
            receipts=prepared.receipts,
            streamed=prepared.streamed,
            digest=prepared.digests() if settings.digest else {},
            written=written,
            seconds=time.perf_counter() - began,
            syncing=syncing_seconds() - synced,
            cpu=time.process_time() - started,
            work=meter.work(),
        )
        yield Message(0, commit)

    def _arrivals(
        self,
        program: Program,
        node: Stateful,
        arrived: Arrived,
        times: SourceTimes,
        before: int | None,
    ) -> StepInput:
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
        return StepInput(ports)

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
    return Batch(sorted_rows(rows, order), batches[0].bound)
