"""The fragment task (stage 0): reads slices of the sources, runs the stateless chains, and sends on what comes of it.

It runs in Python workers, for one epoch at a time or as a part of a standing task.
"""

from __future__ import annotations

import socket
import time
import uuid
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import polars as pl
import pyarrow as pa

from holdfast.connect.base import Chunk, Marks, Slice, Source
from holdfast.connect.source_answers import checked_chunks
from holdfast.connect.source_need import SourceNeed
from holdfast.connect.spark_types import from_spark_batch
from holdfast.epoch.messages import Message, TimesHead
from holdfast.epoch.plan import EpochPlan, TaskSettings
from holdfast.epoch.task_commit import TaskCommit
from holdfast.errors import BadRowError, HoldfastError
from holdfast.graph.durations import EventTime
from holdfast.graph.nodes import SourceNode
from holdfast.hidden_columns import BOUND
from holdfast.operators.lift import bounded, mark_late
from holdfast.operators.panes import pane_shape
from holdfast.plan.lifted import LiftedSource
from holdfast.plan.program import Program, keeps_time
from holdfast.pstream.link import StreamSource
from holdfast.pstream.times import Times, all_ahead, row_bounds, row_marks, times_of
from holdfast.store import OpenSegments, syncing_seconds
from holdfast.task.driver_link import DriverLink
from holdfast.task.inbox import Inbox
from holdfast.task.origin import Origin
from holdfast.task.outbox import Outbox
from holdfast.task.planned_tables import with_planned_tables

__all__ = ["FragmentTask"]


@dataclass(frozen=True, slots=True)
class FragmentTask:
    """Stage 0: read slices, run the stateless chains, lift, cut by routing. Rows for p-streams go to `segments`, if
    there are some."""

    driver: DriverLink
    epoch: int
    segments: OpenSegments | None = None

    def run(self, program: Program, task: int) -> Iterator[Message]:
        run = self._begin(program, task)
        for index, node in enumerate(run.program.sources):
            assert isinstance(node.source, Source)
            for number, piece in enumerate(run.plan.slices[node.name][task]):
                yield from run.read(index, node, piece, number)
        yield from run.finish()
        self.driver.mark_fragment(self.epoch, task)

    def run_spark(self, program: Program, task: int, batches: Iterable[pa.RecordBatch]) -> Iterator[Message]:
        run = self._begin(program, task)
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
        self.driver.mark_fragment(self.epoch, task)

    def _begin(self, program: Program, task: int) -> _SliceReader:
        plan, settings = self.driver.read_plan(self.epoch)
        program = with_planned_tables(program, plan, self.epoch)
        program = program.silent if settings.silent else program
        return _SliceReader(program, plan, settings, self.epoch, task, self.segments)


class _SliceReader:
    """One run of a fragment task."""

    def __init__(
        self,
        program: Program,
        plan: EpochPlan,
        settings: TaskSettings,
        epoch: int,
        task: int,
        segments: OpenSegments | None,
    ) -> None:
        self.program = program
        self.plan = plan
        self._settings = settings
        self._epoch = epoch
        self._task = task
        self._outbox = Outbox(program, 0, task, epoch, uuid.uuid4().hex, plan.routing, segments)
        self._read: dict[str, int] = {}
        self._bad: dict[str, int] = {}
        self._greatest: dict[str, int] = {}
        self._kept: dict[str, frozenset[str]] = {}
        self._fetching = 0.0
        self._started = time.process_time()
        self._began, self._synced = time.perf_counter(), syncing_seconds()

    def read(self, index: int, node: SourceNode, piece: Slice, number: int) -> Iterator[Message]:
        assert isinstance(node.source, Source)
        base = piece.base
        received = None
        if self._settings.inbox is not None:
            received = Inbox(Path(self._settings.inbox)).chunks(
                self._epoch, node.name, self._task, number, generation=self.plan.generation
            )
        try:
            coming = node.source.read(piece) if received is None else received
            if not isinstance(node.source, StreamSource):
                coming = checked_chunks(node.source.schema, coming)
            for chunk in self._timed(coming):
                if chunk.bad is not None and chunk.bad.height:
                    yield from self._dead_letters(node, chunk.bad)
                if chunk.marks is not None:
                    yield from self._marked(index, node, chunk.frame, chunk.marks, base)
                else:
                    yield from self.rows(index, node, chunk, base=base)
                base += chunk.rows + (chunk.bad.height if chunk.bad is not None else 0)
        except BadRowError as error:
            said = self._about_whole_row(node, piece) or error
            raise said.at(operator=node.name, epoch=self._epoch) from error.__cause__
        except HoldfastError as error:
            raise error.at(operator=node.name, epoch=self._epoch) from error.__cause__

    def _about_whole_row(self, node: SourceNode, piece: Slice) -> BadRowError | None:
        """What to say of the first row of a slice that cannot be placed in time, with the columns, too, that nobody
        reads."""
        assert isinstance(node.source, Source)
        whole = node.source.narrowed(SourceNeed(tuple(node.schema)))
        if node.allowed is None or whole.schema == node.source.schema:
            return None
        try:
            for chunk in whole.read(piece):
                _, bad = node.allowed.split(chunk.frame, self.plan.now, shift=chunk.shift)
                if bad is not None:
                    bad.letters("fail", whole.describe(), chunk.place, _file_of(node, chunk))
        except BadRowError as error:
            return error
        return None

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
        if side in self.program.nodes:
            yield from self._outbox.feed(Origin(side, bad), -1, frozenset())

    def rows(self, index: int, node: SourceNode, chunk: Chunk, *, base: int) -> Iterator[Message]:
        """Rows of a source that uses their times, where it has any."""
        frame, shift, times, seen = chunk.frame, chunk.shift, None, None
        allowed, sifted = node.allowed, chunk.sifted
        if allowed is not None and sifted is not None:
            assert sifted.least is not None
            assert sifted.greatest is not None
            times, seen = _ticks(frame[allowed.column]), Times(sifted.least, sifted.greatest, ordered=True)
        elif allowed is not None and frame.height:
            times = _ticks(frame[allowed.column])
            seen, now = times_of(times, ordered=chunk.ordered), self.plan.now
            dtype = frame.schema[allowed.column]
            if seen is None or not allowed.holds(dtype, seen.least + shift, seen.greatest + shift, now):
                frame, bad = allowed.split(frame, now, shift=shift)
                assert bad is not None
                letters = bad.letters(node.source.bad_rows, node.source.describe(), chunk.place, _file_of(node, chunk))
                yield from self._dead_letters(node, letters)
                times = _ticks(frame[allowed.column])
                seen = times_of(times, ordered=chunk.ordered)
        read = frame.height if sifted is None else sifted.rows
        self._read[node.name] = self._read.get(node.name, 0) + read
        known = self._greatest.get(node.name)
        if seen is not None:
            greatest = seen.greatest + shift
            self._greatest[node.name] = greatest if known is None else max(known, greatest)
        if not frame.height:
            return
        origin = Origin(node.name, frame, base=base)
        if times is not None and seen is not None:
            assert allowed is not None
            times = times.cast(pl.Int64) if times.dtype != pl.Int64 else times
            before = None if known is None else known - shift
            bound, marks = None, None
            if node.source.in_order:
                bound = row_bounds(times, seen, before, node.lateness)
                if self.program.marked:
                    marks = row_marks(times, before, node.lateness, ordered=seen.ordered) + shift
            if seen.ordered and bound is None:
                origin = Origin(node.name, frame, allowed.column, shift, times, base, marks)
            else:
                behind = frame.with_columns(bound + shift) if bound is not None else frame
                origin = Origin(node.name, behind, allowed.column, shift, None, base, marks)
        yield from self._outbox.feed(origin, index, self._time_kept(node))

    def _marked(self, index: int, node: SourceNode, frame: pl.DataFrame, marks: Marks, base: int) -> Iterator[Message]:
        """Rows of a p-stream: what is late was decided when they were written."""
        self._read[node.name] = self._read.get(node.name, 0) + frame.height
        if frame.height and isinstance(node, LiftedSource):
            yield from self._outbox.feed(self._lifted(node, frame, marks.before), index, frozenset())
        elif frame.height:
            assert node.time is not None
            times = _times(frame, node.time)
            watermarks = None
            ahead = marks.before is None or all_ahead(times, marks.before)
            if self.program.marked or BOUND in frame.columns or not ahead:
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
        [edge] = [edge for edge in self.program.edges if edge.input == node.name]
        window = self.program.window_of(edge)
        kept, dropped = mark_late(frame, pane_shape(window), before)
        if dropped:
            late = self._outbox.late_rows
            late[window.name] = late.get(window.name, 0) + dropped
        return Origin(node.name, kept)

    def _time_kept(self, node: SourceNode) -> frozenset[str]:
        if node.name not in self._kept:
            names = [edge.input for edge in self.program.edges]
            self._kept[node.name] = frozenset(name for name in names if keeps_time(self.program, node, name))
        return self._kept[node.name]

    def finish(self) -> Iterator[Message]:
        yield from self._outbox.finish()
        for part in range(self.plan.tasks[1] if len(self.plan.tasks) > 1 else 0):
            yield Message(part, TimesHead(self._task, self._greatest))
        prepared = self._outbox.prepared
        yield from prepared.deliver()
        commit = TaskCommit(
            host=socket.gethostname(),
            stage=0,
            task=self._task,
            read=self._read,
            bad=self._bad,
            greatest=self._greatest,
            late=self._outbox.late_rows,
            receipts=prepared.receipts,
            streamed=prepared.streamed,
            digest=prepared.digests() if self._settings.digest else {},
            seconds=time.perf_counter() - self._began,
            syncing=syncing_seconds() - self._synced,
            fetching=self._fetching,
            cpu=time.process_time() - self._started,
        )
        yield Message(0, commit)


def _times(frame: pl.DataFrame, time: EventTime) -> pl.Series:
    """The event times of rows: the column itself where it is that already, as of most rows that are pushed."""
    column = frame[time.column]
    return column if column.dtype == pl.Int64 and not time.offset else frame.select(time.expr()).to_series()


def _ticks(times: pl.Series) -> pl.Series:
    """As numbers; those that are some already need no query."""
    return times if times.dtype.is_integer() else times.to_physical()


def _file_of(node: SourceNode, chunk: Chunk) -> str | None:
    """The file that a chunk is from, where its source reads files."""
    known = chunk.place and isinstance(node.source, Source) and node.source.named(chunk.place) is not None
    return chunk.place if known else None
