"""The two ends of a p-stream in a pipeline: a sink whose p-units are committed with the writer's epochs, and a source
that reads them.

Both are declared with the stream's name alone and bound to a store when a run begins. What they hold then is pickled
into the tasks, but for the handle on the meta store, which only the driver has.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import polars as pl

from holdfast.connect.base import BadRows, Chunk, Marks, Position, Sink, Slice, Source, Take, Where, check_bad_rows
from holdfast.connect.schema import AnySchema, as_schema
from holdfast.errors import StreamGapError, UnknownStreamError
from holdfast.hidden_columns import BOUND
from holdfast.pstream.codecs import Lossy
from holdfast.pstream.description import StreamDescription
from holdfast.pstream.punit import PUnit
from holdfast.pstream.stream import PStream, StreamEntry, StreamUnit, stream_store
from holdfast.pstream.units import read_unit, unit_writer
from holdfast.store import Private
from holdfast.stored_json import JsonForm

__all__ = ["StreamPart", "StreamSink", "StreamSource", "pstream"]

_LARGEST_UNIT = 1_000_000
"""Rows: an entry has several p-units, so that several tasks can read it."""


@dataclass(frozen=True, slots=True)
class StreamSink(Sink):
    """Writes p-units; the driver makes them an entry of the stream when it commits the epoch."""

    stream: str
    compress: bool = True
    lossy: tuple[Lossy, ...] = ()
    budget: int | None = None
    expected: float | None = None
    """Bytes that a row of the source was measured to come to."""
    marked: bool = False
    """Each row is written with the watermark before it, because a keyed process reads the stream."""
    root: Path | None = None
    sync: bool = True
    guarantee = "exactly once: the p-units become an entry of the p-stream in the transaction that commits the epoch"

    def bound(self, root: Path, sync: bool) -> StreamSink:
        return replace(self, root=root, sync=sync)

    def write(self, frame: pl.DataFrame, *, epoch: int, part: str, attempt: str) -> list[PUnit]:
        """Write rows durably, where nobody sees them before the commit."""
        assert self.root is not None
        writer = unit_writer(stream_store(self.root, self.stream, self.sync), compress=self.compress, lossy=self.lossy)
        pieces = max(1, -(-frame.height // _LARGEST_UNIT))
        rows = -(-frame.height // pieces)
        return [
            writer.write(f"{epoch:012d}-{part}-{number}-{attempt[:12]}.arrow", frame.slice(number * rows, rows))
            for number in range(pieces)
        ]

    def discard(self, units: Sequence[PUnit]) -> None:
        """Remove what was written for nothing: another attempt was committed."""
        assert self.root is not None
        prepared = Private("prepared by this run, and another attempt was committed")
        stream_store(self.root, self.stream, self.sync).remove([unit.name for unit in units], prepared)

    def describe(self) -> str:
        return f"p-stream {self.stream}"


@dataclass(frozen=True, slots=True)
class StreamPart:
    """What a slice reads of a p-stream: p-units, and the watermark behind them if it is the last of its entry."""

    units: Sequence[StreamUnit]
    after: int | None

    def where(self) -> Where:
        """As it stands in a slice."""
        where: Where = _PART.plain(self)
        return where

    @staticmethod
    def of(piece: Slice) -> StreamPart:
        return _PART.of_plain(piece.where)


_PART = JsonForm(StreamPart, "a slice of a p-stream")


@dataclass(slots=True)
class StreamSource(Source):
    """Reads a p-stream as `reader`. `event_time` names the column that the stream's watermarks are about, where this
    reader goes by them. `derived` says that the rows are results of a stateful operator: which of them comes first
    depends on its partitions and means nothing. `pushed` says that clients fill the stream; `foreign`, that another
    pipeline writes it."""

    stream: str
    schema: pl.Schema
    event_time: str | None = None
    derived: bool = False
    pushed: bool = False
    foreign: bool = False
    bad_rows: BadRows = "fail"
    reader: str = ""
    root: Path | None = None
    sync: bool = True
    log: PStream | None = field(default=None, repr=False)
    keeps = True

    def __getstate__(self) -> dict[str, object]:
        names = ("stream", "schema", "event_time", "derived", "foreign", "bad_rows", "pushed", "reader", "root", "sync")
        return {name: getattr(self, name) for name in names}

    def __setstate__(self, state: Mapping[str, object]) -> None:
        for name, value in state.items():
            setattr(self, name, value)
        self.log = None

    def bound(self, log: PStream, root: Path, reader: str, event_time: str | None) -> StreamSource:
        """This source on a store, for one reader that goes by `event_time`, or by the watermarks it finds itself."""
        description = StreamDescription.decode(log.state().description)
        known = description.schema
        for column, dtype in self.schema.items():
            if known.get(column) != str(dtype):
                has = ", ".join(f"{name} {kind}" for name, kind in known.items())
                raise UnknownStreamError(
                    f"p-stream '{self.stream}' has no column '{column}' of type {dtype}",
                    cure=f"it has {has}; declare it with push_up=False to keep every column",
                )
        place = description.placement.place if self.foreign and description.placement is not None else None
        if place is not None and (place.window is not None or place.after != description.declared):
            raise UnknownStreamError(
                f"p-stream '{self.stream}' was moved behind '{place.after}'"
                + (f", to the partial aggregates for '{place.window}'" if place.window else "")
                + ": it does not hold the rows that it was declared for",
                cure="declare it with push_up=False, in a new store, to have others read it",
            )
        marked = event_time if description.time == event_time else None
        return replace(self, log=log, root=root, reader=reader, sync=log.store.sync, event_time=marked)

    @property
    def _log(self) -> PStream:
        if self.log is None:
            raise UnknownStreamError(
                f"p-stream '{self.stream}' is not open", cure="run the pipeline on the store that holds the stream"
            )
        return self.log

    def start(self) -> Position:
        marker = self._log.subscribe(self.reader)
        return {"number": marker.number, "offset": marker.offset}

    def take(self, position: Position, rows: int, pieces: int) -> Take:
        entries = self._log.read(position["number"], rows)
        if not entries:
            state = self._log.state()
            if state.number <= position["number"]:
                return Take((), position, state.ended)
            entries = self._log.read(position["number"], rows)  # it was written between the two looks
        self._check_gap(position["number"], entries)
        slices = []
        for entry in entries:
            groups: list[list[StreamUnit]] = [[unit] for unit in entry.units] or [[]]
            offset = entry.offset
            for number, units in enumerate(groups, start=1):
                count = sum(unit.rows for unit in units)
                # Only the last part of an entry brings event time forward: the others are read beside it.
                part = StreamPart(units, entry.after if number == len(groups) else None)
                slices.append(Slice(offset, count, part.where()))
                offset += count
        last = entries[-1]
        return Take(tuple(slices), {"number": last.number, "offset": last.offset + last.rows}, last.ended)

    def _check_gap(self, after: int, entries: list[StreamEntry]) -> None:
        """Nothing goes without the reader's word; but somebody may have made it leave, and come back."""
        if not entries or entries[0].number != after + 1:
            raise StreamGapError(
                f"p-stream '{self.stream}' no longer has entry {after + 1}, which '{self.reader}' is to read next",
                cure="it was removed while this reader was not subscribed; give the reader another name or choose"
                " another --store to start afresh",
            )

    def read(self, piece: Slice) -> Iterator[Chunk]:
        assert self.root is not None
        store = stream_store(self.root, self.stream, self.sync)
        wanted = [*self.schema, BOUND]
        part = StreamPart.of(piece)
        frames = [self._conform(read_unit(store, unit, wanted)) for unit in part.units]
        for number, (unit, frame) in enumerate(zip(part.units, frames, strict=True), start=1):
            after = part.after if number == len(frames) else None
            yield Chunk(frame, marks=self._marks(unit.before, after))
        if not frames:
            yield Chunk(pl.DataFrame(schema=self.schema), marks=self._marks(None, part.after))

    def _marks(self, before: int | None, after: int | None) -> Marks | None:
        return Marks(before, after) if self.event_time is not None else None

    def _conform(self, frame: pl.DataFrame) -> pl.DataFrame:
        hidden = [BOUND] if BOUND in frame.columns and self.event_time is not None else []
        return frame.select(*self.schema.names(), *hidden)

    def lag(self, position: Position) -> int | None:
        return self._log.waiting(position["number"])

    def describe(self) -> str:
        return f"p-stream {self.stream}"


def pstream(name: str, schema: AnySchema, bad_rows: BadRows = "fail") -> StreamSource:
    """Read a p-stream of the same store that another pipeline writes: `name` is `pipeline.cut`.

    The reader has its own progress, and nothing goes before it has read it. With the stream's own event time and no
    lateness of its own, what is late is what was late for the writer; with another one, `bad_rows` says what happens
    to a row whose event time is missing or not allowed. Declare the cut with `push_up=False` to keep all columns for
    others.
    """
    return StreamSource(
        name, as_schema(schema, "pstream()"), foreign=True, bad_rows=check_bad_rows("pstream()", bad_rows)
    )
