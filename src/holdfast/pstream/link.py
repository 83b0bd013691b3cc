"""The two ends of a p-stream in a pipeline: a sink whose p-units are committed with the writer's epochs, and a source
that reads them.

Both are declared with the stream's name alone and bound to a store when a run begins. What they hold then is pickled
into the tasks, but for the handle on the meta store, which only the driver has.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from holdfast.connect.base import BadRows, Chunk, Marks, Position, Sink, Slice, Source, Take, Where, check_bad_rows
from holdfast.connect.schema import AnySchema, as_schema
from holdfast.errors import StreamGapError, UnknownStreamError
from holdfast.hidden_columns import BOUND, PANE
from holdfast.pstream.codecs import Lossy
from holdfast.pstream.description import StreamDescription
from holdfast.pstream.punit import PUnit
from holdfast.pstream.stream_entry import StreamEntry, StreamUnit, stream_store
from holdfast.pstream.times import all_ahead
from holdfast.pstream.units import read_unit, segment_bytes, unit_writer
from holdfast.store import OpenSegments, Private, of_one_epoch
from holdfast.stored_json import JsonForm

if TYPE_CHECKING:
    from holdfast.pstream.pstream import PStream

__all__ = ["StreamPart", "StreamSink", "StreamSource", "pstream"]

_LARGEST_UNIT = 1_000_000
"""Rows: an entry has several p-units, so that several tasks can read it."""
_READ_TOGETHER = 262_144
"""Rows: p-units are read together up to so many."""


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

    def write(
        self, frame: pl.DataFrame, *, epoch: int, part: str, attempt: str, segments: OpenSegments | None = None
    ) -> list[PUnit]:
        """Write rows, invisible before the commit: durably, or to be synced with `segments`."""
        assert self.root is not None
        store = stream_store(self.root, self.stream, self.sync)
        writer = unit_writer(store, compress=self.compress, lossy=self.lossy)
        into = segments.at(store.root, store.sync, segment_bytes(self.budget)) if segments is not None else None
        pieces = max(1, -(-frame.height // _LARGEST_UNIT))
        rows = -(-frame.height // pieces)
        return [
            writer.write(
                f"{epoch:012d}-{part}-{number}-{attempt[:12]}.arrow", frame.slice(number * rows, rows), into, epoch
            )
            for number in range(pieces)
        ]

    def discard(self, units: Sequence[PUnit]) -> None:
        """Remove what was written for nothing: another attempt was committed."""
        assert self.root is not None
        prepared = Private("prepared by this run, and another attempt was committed")
        stream_store(self.root, self.stream, self.sync).remove(of_one_epoch(unit.name for unit in units), prepared)

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
    reader uses them. `derived` says that the rows are results of a stateful operator: which of them comes first
    depends on its partitions and means nothing. `pushed` says that clients fill the stream; `foreign`, that another
    pipeline writes it."""

    stream: str
    schema: pl.Schema
    event_time: str | None = None
    derived: bool = False
    pushed: bool = False
    foreign: bool = False
    bad_rows: BadRows = "fail"
    marked: bool = False
    """The reader wants to know the watermark before each row."""
    reader: str = ""
    root: Path | None = None
    sync: bool = True
    log: PStream | None = field(default=None, repr=False)
    keeps = True

    def __getstate__(self) -> dict[str, object]:
        return {part.name: getattr(self, part.name) for part in fields(self) if part.name != "log"}

    def __setstate__(self, state: Mapping[str, object]) -> None:
        for name, value in state.items():
            setattr(self, name, value)
        self.log = None

    def bound(
        self, log: PStream, root: Path, reader: str, event_time: str | None, *, marked: bool = False
    ) -> StreamSource:
        """This source on a store, for one reader that uses `event_time`, or the watermarks it finds itself."""
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
                f"p-stream '{self.stream}' was moved after '{place.after}'"
                + (f", to the partial aggregates for '{place.window}'" if place.window else "")
                + ": it does not hold the rows that it was declared for",
                cure="declare it with push_up=False, in a new store, so that others can read it",
            )
        timed = event_time if description.time == event_time else None
        return replace(self, log=log, root=root, reader=reader, sync=log.store.sync, event_time=timed, marked=marked)

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
        slices = _slices(entries, pieces, self._merges)
        last = entries[-1]
        return Take(slices, {"number": last.number, "offset": last.offset + last.rows}, last.ended)

    def between(self, after: int | None, upto: int, pieces: int) -> tuple[Slice, ...]:
        """Slices of the entries behind one, or from the first that the stream holds, up to another one."""
        entries = self._log.between(after or 0, upto)
        if after is not None and after < upto:
            self._check_gap(after, entries)
        return _slices(entries, pieces, self._merges) if entries else ()

    def _check_gap(self, after: int, entries: list[StreamEntry]) -> None:
        """Nothing goes without the reader's word; but somebody may have made it leave, and come back."""
        if not entries or entries[0].number != after + 1:
            raise StreamGapError(
                f"p-stream '{self.stream}' no longer has entry {after + 1}, which '{self.reader}' reads next",
                cure="it was removed while this reader was not subscribed; give the reader another name or choose"
                " another --store to start from the beginning",
            )

    def read(self, piece: Slice) -> Iterator[Chunk]:
        assert self.root is not None
        store = stream_store(self.root, self.stream, self.sync)
        wanted = [*self.schema, BOUND]
        part = StreamPart.of(piece)
        frames = [self._conform(read_unit(store, unit, wanted)) for unit in part.units]
        if not frames:
            yield Chunk(pl.DataFrame(schema=self.schema), marks=self._marks(None, part.after))
        elif len(frames) > 1 and self._merges:
            alike = all(frame.columns == frames[0].columns for frame in frames)
            merged = pl.concat(frames) if alike else pl.concat(frames, how="diagonal")
            if self.event_time is not None and self._wants_bounds(frames, part.units, self.event_time):
                merged = _bounded(merged, part.units)
            yield Chunk(merged, marks=self._marks(_least_before(part.units), part.after))
        else:
            for number, (unit, frame) in enumerate(zip(part.units, frames, strict=True), start=1):
                yield Chunk(frame, marks=self._marks(unit.before, part.after if number == len(frames) else None))

    @property
    def _merges(self) -> bool:
        """Whether p-units may be read together. Partials have no rows that could carry a bound."""
        return PANE not in self.schema

    def _marks(self, before: int | None, after: int | None) -> Marks | None:
        return Marks(before, after) if self.event_time is not None else None

    def _conform(self, frame: pl.DataFrame) -> pl.DataFrame:
        hidden = [BOUND] if BOUND in frame.columns and self.event_time is not None else []
        wanted = [*self.schema.names(), *hidden]
        return frame if frame.columns == wanted else frame.select(wanted)

    def _wants_bounds(self, frames: Sequence[pl.DataFrame], units: Sequence[StreamUnit], event_time: str) -> bool:
        """Whether the watermark that a p-unit found says something about its rows: not where all lie ahead of it."""
        return self.marked or any(
            BOUND in frame.columns
            or (unit.before is not None and frame.height > 0 and not all_ahead(frame[event_time], unit.before))
            for frame, unit in zip(frames, units, strict=True)
        )

    def lag(self, position: Position) -> int | None:
        return self._log.waiting(position["number"])

    def describe(self) -> str:
        return f"p-stream {self.stream}"


def _least_before(units: Sequence[StreamUnit]) -> int | None:
    found = [unit.before for unit in units if unit.before is not None]
    return min(found) if len(found) == len(units) else None


def _bounded(frame: pl.DataFrame, units: Sequence[StreamUnit]) -> pl.DataFrame:
    """The rows of several p-units, each with the watermark that its own p-unit found as a bound: what is late does not
    depend on what it is read with."""
    found = [unit.before for unit in units]
    if found.count(found[0]) == len(found):
        return frame
    of_rows = pl.Series(BOUND, found, pl.Int64).gather(np.repeat(np.arange(len(units)), [unit.rows for unit in units]))
    own = pl.col(BOUND) if BOUND in frame.columns else pl.lit(None, pl.Int64)
    return frame.with_columns(pl.max_horizontal(own, pl.lit(of_rows)).alias(BOUND))


def _slices(entries: Sequence[StreamEntry], pieces: int, merges: bool) -> tuple[Slice, ...]:
    """Entries cut into about so many slices, at the boundaries of p-units: many small ones are read together, which
    takes hardly longer than one of them; large ones are read by themselves."""
    share = -(-sum(entry.rows for entry in entries) // max(1, pieces))
    slices: list[Slice] = []
    units: list[StreamUnit] = []
    base, rows = entries[0].offset, 0
    after: int | None = None

    def cut() -> None:
        nonlocal base, rows, after
        slices.append(Slice(base, rows, StreamPart(list(units), after).where()))
        base, rows, after = base + rows, 0, None
        units.clear()

    for entry in entries:
        for unit in entry.units:
            if units and (not merges or rows >= share or rows + unit.rows > _READ_TOGETHER):
                cut()
            units.append(unit)
            rows += unit.rows
        # Only the reader of the last part of an entry advances event time: the others are read in parallel.
        after = after if entry.after is None else entry.after
        if not merges:
            cut()
    if units or after is not None or not slices:
        cut()
    return tuple(slices)


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
