"""A fragment's p-streams on the driver's side: each commit's transaction writes entries and moves markers.

The writer's p-units become an entry when its epoch is committed, together with the watermarks before their rows and the
vector of positions they depend on. A reader's commit moves its markers; p-units that no reader needs any more are then
removed. A stream that has reached its budget keeps its writer from planning.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from holdfast.connect.base import Position, Source
from holdfast.durability.footprint_log import PlacedControls
from holdfast.engine.observer import Observer
from holdfast.epoch.messages import Message, commits_of
from holdfast.epoch.record import EpochRecord
from holdfast.epoch.transaction import Transaction
from holdfast.errors import HoldfastError
from holdfast.graph.nodes import SinkNode, SourceNode
from holdfast.meta import MetaStore, NewEntry
from holdfast.plan.program import Program
from holdfast.plan.watermarks import SourceTimes, operator_watermark
from holdfast.pstream import Announcements, Control, Lineage, StreamUnit
from holdfast.pstream.link import StreamSink, StreamSource
from holdfast.pstream.pstream import PStream, new_entry
from holdfast.store import Right

__all__ = ["EntryToAppend", "StreamLinks", "bind_streams", "lineage_of", "vector_of"]

_TRIM_SECONDS = 0.5
_KEPT_SECONDS = 10.0
"""How long what a replicated reader has released can still be read: both of its replicas run every epoch, and the one
that is later needs the input of an epoch that the other one has committed."""
_TOLD_AFTER_SECONDS = 2.0


def bind_streams(program: Program, meta: MetaStore, root: Path, sync: bool) -> Program:
    """The program with its p-streams opened in a store."""
    nodes = dict(program.nodes)
    for node in program.nodes.values():
        if isinstance(node, SourceNode) and isinstance(node.source, StreamSource):
            log = PStream(meta, root, node.source.stream, sync=sync)
            try:
                # A reader that allows for more lateness than the writer did decides by the times it sees.
                time_column = node.time.column if node.time is not None and not node.lateness else None
                source = node.source.bound(log, root, program.name, time_column, marked=bool(program.marked))
                nodes[node.name] = replace(node, source=source)
            except HoldfastError as error:
                raise error.at(operator=node.name) from None
        elif isinstance(node, SinkNode) and isinstance(node.sink, StreamSink):
            nodes[node.name] = replace(node, sink=node.sink.bound(root, sync))
    return replace(program, nodes=nodes)


def lineage_of(program: Program, record: EpochRecord, epoch: int) -> Lineage:
    """What the results of an epoch come from."""
    return Lineage(program.name, epoch, vector_of(program, record.positions))


def vector_of(program: Program, positions: Mapping[str, Position]) -> dict[str, Position]:
    """The vector of offsets that an epoch's results depend on: where each source stands after it."""
    return {node.name: positions[node.name] for node in program.sources if isinstance(node.source, Source)}


@dataclass(frozen=True, slots=True)
class EntryToAppend:
    """An entry of a p-stream that a commit is to append, and the control records in it."""

    stream: PStream
    entry: NewEntry
    controls: Mapping[str, Control]


@dataclass(slots=True)
class _Written:
    """A stream that the fragment writes, and what an input row has come to in it."""

    node: SinkNode
    log: PStream
    budget: int | None
    held: int = 0
    bytes_per_row: float | None = None


class StreamLinks:
    """What a program reads from and writes to p-streams."""

    def __init__(
        self,
        program: Program,
        meta: MetaStore,
        root: Path,
        sync: bool,
        clock: Callable[[], float] = time.time,
        observer: Observer | None = None,
        *,
        replicated: bool = False,
        announcements: Announcements | None = None,
        ticks: Callable[[], float] = time.monotonic,
    ) -> None:
        """`clock` tells the time of day, `ticks` how long something lasts."""
        self._program = program
        self._announcements = announcements
        self._ticks = ticks
        self._kept = _KEPT_SECONDS if replicated else 0.0
        self._observer = observer or Observer()
        self._full_since: float | None = None
        self._trimmed = 0.0
        self._written = [
            _Written(
                node,
                PStream(meta, root, node.sink.stream, sync=sync, clock=clock),
                node.sink.budget,
                bytes_per_row=node.sink.expected,
            )
            for node in program.sinks
            if isinstance(node.sink, StreamSink)
        ]
        self._read: dict[str, tuple[PStream, list[str]]] = {}
        for node in program.sources:
            if isinstance(node.source, StreamSource) and node.source.log is not None:
                self._read.setdefault(node.source.stream, (node.source.log, []))[1].append(node.name)

    @property
    def read(self) -> list[str]:
        """The p-streams that the fragment reads."""
        return list(self._read)

    def recover(self, right: Right, before: int | None = None) -> None:
        """Before the first epoch: remove what lost attempts have written, for epochs `before` one where other hosts may
        write for later ones, and see how full the streams are."""
        for written in self._written:
            written.log.sweep(right, before)
            written.held = self._held(written)

    def _held(self, written: _Written) -> int:
        """The bytes that readers still need. What only operators of this fragment hold back, for their own recovery, is
        not waited for: they would wait for themselves."""
        released = [m.number for m in written.log.markers() if m.is_of_reader]
        return written.log.retained(min(released, default=0))[2]

    # back pressure

    def full(self) -> str:
        """Which stream has no room, and what it waits for, in words."""
        for written in self._written:
            if written.budget is not None and written.held >= 0.9 * written.budget:
                readers = [m for m in written.log.markers() if m.is_of_reader]
                slowest = min(readers, key=lambda marker: marker.number, default=None)
                waits_for = f"its slowest reader is '{slowest.by}'" if slowest is not None else "nothing reads it"
                return f"p-stream '{written.log.name}' holds {written.held:,} of {written.budget:,} bytes; {waits_for}"
        return "a p-stream is full"

    def room(self, rows: int, in_flight: int) -> int:
        """How many of `rows` rows may be read without filling a stream beyond its budget; 0 to wait, which is told once
        when it lasts."""
        room, now = self._free(rows, in_flight), self._ticks()
        if room:
            self._full_since = None
        elif self._full_since is None:
            self._full_since = now
        elif now - self._full_since >= _TOLD_AFTER_SECONDS:
            self._full_since = math.inf
            self._observer.stream_full(self._program.name, self.full())
        return room

    def _free(self, rows: int, in_flight: int) -> int:
        for written in self._written:
            if written.budget is None:
                continue
            per_row = written.bytes_per_row or 0.0
            free = written.budget - written.held - in_flight * per_row
            if free < max(0.05 * written.budget, rows * per_row):
                written.log.trim(kept=self._kept)
                written.held = self._held(written)
                free = written.budget - written.held - in_flight * per_row
            if free <= 0.05 * written.budget:
                return 0
            if per_row:
                rows = min(rows, max(1, int(free / per_row)))
        return rows

    # commit

    def entries(
        self,
        before: EpochRecord,
        record: EpochRecord,
        messages: list[Message],
        epoch: int,
        controls: Mapping[str, Mapping[str, Control]],
    ) -> list[EntryToAppend]:
        """What an epoch has come to in the streams that the fragment writes, with the control records of each."""
        found = []
        for written in self._written:
            control = controls.get(written.log.name)
            entry = self._entry(written, before, record, messages, epoch, control)
            if entry is not None:
                found.append(EntryToAppend(written.log, entry, control or {}))
        return found

    def written(self, entries: Sequence[EntryToAppend], read: int) -> None:
        """Entries that were made of so many rows are durable: readers are notified, and it is counted how full the
        streams are."""
        sizes = {entry.stream.name: entry.entry.bytes for entry in entries}
        if self._announcements is not None:
            for name in sizes:
                self._announcements.appended(name)
        for written in self._written:
            size = sizes.get(written.log.name)
            if size is not None:
                written.held += size
                if read:
                    share, known = size / read, written.bytes_per_row
                    written.bytes_per_row = share if known is None else max(share, 0.7 * known + 0.3 * share)

    def append(self, transaction: Transaction, entries: Iterable[EntryToAppend]) -> Sequence[PlacedControls]:
        """Write the entries of an epoch, and say where their control records are now."""
        return [(entry.stream.name, transaction.append(entry.stream, entry.entry), entry.controls) for entry in entries]

    def release(self, transaction: Transaction, positions: Mapping[str, Position]) -> None:
        """This fragment needs nothing of the streams that it reads before these positions."""
        for log, names in self._read.values():
            # Several sources of one fragment are one reader, which needs what the slowest of them needs.
            position = min((positions[name] for name in names), key=lambda position: position["number"])
            transaction.release(log, self._program.name, position["number"], position["offset"])

    def _entry(
        self,
        written: _Written,
        before: EpochRecord,
        record: EpochRecord,
        messages: list[Message],
        epoch: int,
        control: Mapping[str, Control] | None,
    ) -> NewEntry | None:
        program, name = self._program, written.node.name
        times = SourceTimes()
        for commit in commits_of(messages):
            if commit.stage == 0:
                times.add(commit.task, commit.greatest)
        times.begin(before.greatest, before.done, record.done, before.pending, {})
        mark_before = operator_watermark(program, name, before.greatest, before.done)
        units = []
        for receipt in sorted(record.streamed.get(name, ()), key=lambda receipt: receipt.sender):
            stage, task, source, _ = receipt.sender
            bound = mark_before
            if stage == 0 and source >= 0:
                bound = times.bound_before(program.sources[source], task)
            units.append(StreamUnit.of(receipt.unit, bound))
        ended = all(record.done[source] for source in program.sources_of(name))
        was_ended = all(before.done[source] for source in program.sources_of(name))
        after = _watermark(program, name, record)
        if not units and not control and ended == was_ended and after == _watermark(program, name, before):
            return None
        lineage = lineage_of(program, record, epoch)
        return new_entry(units, after=after, ended=ended, lineage=lineage, control=control)

    def committed(self, *, last: bool = False) -> None:
        """After a commit: let go what all readers have released."""
        now = self._ticks()
        if self._read and (last or now - self._trimmed >= _TRIM_SECONDS):
            self._trimmed = now
            for log, _ in self._read.values():
                log.trim(kept=0.0 if last else self._kept)


def _watermark(program: Program, name: str, record: EpochRecord) -> int | None:
    """How far rows have brought event time at the sink; sources that have ended hold nothing back."""
    marks = []
    for source in program.sources_of(name):
        node, seen = program.nodes[source], record.greatest.get(source)
        assert isinstance(node, SourceNode)
        if seen is not None:
            marks.append((record.done.get(source, False), seen - node.lateness))
        elif not record.done.get(source):
            return None
    running = [mark for done, mark in marks if not done]
    return min(running) if running else max((mark for _, mark in marks), default=None)
