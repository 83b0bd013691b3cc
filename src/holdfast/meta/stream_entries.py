"""P-streams in the meta store: their entries and their markers.

An entry is a batch of p-units that became durable together: a writer's epoch, or what receivers took in one go. Markers
say what readers and writer have agreed on, at the boundary between two entries:
- `retain`: a reader has subscribed; from this offset on nothing may go without its word.
- `checkpoint`: the reader's state is durable up to here; a recovery begins here.
- `release`: the reader needs nothing before this offset any more.
What lies before the least release marker of all that retain is free to go.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import sqlalchemy as sa
from sqlalchemy.exc import IntegrityError

from holdfast.client_batches import Count, TakenBatch
from holdfast.errors import UnknownStreamError
from holdfast.meta.arrivals import Arrivals
from holdfast.meta.sealed import SealedPlace
from holdfast.meta.sql_tables import entries, markers, streams
from holdfast.meta.store import MetaStore

__all__ = [
    "Entry",
    "Marker",
    "MarkerKind",
    "NewEntry",
    "StreamMeta",
    "StreamState",
    "is_operator",
]

MarkerKind = Literal["retain", "checkpoint", "release"]

# Statements of every batch and every epoch are made once: making one takes longer than the database needs for it.
_STATE = sa.select(streams).where(streams.c.stream == sa.bindparam("of"))
_STATE_TO_APPEND = _STATE.with_for_update(key_share=True)
_NEW_ENTRIES = entries.insert()
_MOVE_END = (
    streams.update()
    .where(streams.c.stream == sa.bindparam("of"))
    .values({name: sa.bindparam(f"its_{name}") for name in ("number", "offset", "watermark", "ended")})
)
_MOVE_MARKERS = (
    markers.update()
    .where(
        markers.c.stream == sa.bindparam("of"),
        markers.c.kind.in_(sa.bindparam("kinds", expanding=True)),
        markers.c.by == sa.bindparam("reader"),
        markers.c.number <= sa.bindparam("its_number"),
    )
    .values({name: sa.bindparam(f"its_{name}") for name in ("number", "offset", "epoch", "at")})
)
_MINE = entries.c.stream == sa.bindparam("of")
_UPTO = entries.c.number <= sa.bindparam("upto")
_BEHIND = sa.select(entries).where(_MINE, entries.c.number > sa.bindparam("after")).order_by(entries.c.number)
_SOME_BEHIND = _BEHIND.limit(sa.bindparam("most"))
_BETWEEN = _BEHIND.where(_UPTO)
_SOME_BETWEEN = _SOME_BEHIND.where(_UPTO)
_BEFORE = sa.select(entries).where(_MINE, _UPTO).order_by(entries.c.number)
_FIRST_BEFORE = _BEFORE.limit(1)
_FORGET = entries.delete().where(_MINE, _UPTO)
_RETAINED = sa.select(sa.func.count(), sa.func.sum(entries.c.rows), sa.func.sum(entries.c.bytes)).where(
    _MINE, entries.c.number > sa.bindparam("after")
)
_STREAMS = sa.select(streams.c.stream).order_by(streams.c.stream)
_MARKERS = sa.select(markers).where(markers.c.stream == sa.bindparam("of")).order_by(markers.c.kind, markers.c.by)
_MARKERS_OF = _MARKERS.where(markers.c.by == sa.bindparam("reader"))
_ROWS_BEHIND = sa.select(sa.func.sum(entries.c.rows)).where(_MINE, entries.c.number > sa.bindparam("after"))


def is_operator(reader: str) -> bool:
    """Whether what holds back a stream is an operator that writes it, as FRAGMENT/OPERATOR."""
    return "/" in reader


@dataclass(frozen=True, slots=True)
class NewEntry:
    """An entry before it has its place. `content` is JSON text; what is in it is known above (`holdfast.pstream`).
    `watermark` is how far event time has come with it. `batches` are the ids that clients gave to parts of it, each
    with the rows before it in the entry and its own rows; `counts` are how far this brings the clients that count, in
    order."""

    rows: int
    bytes: int
    content: str
    watermark: int | None = None
    ended: bool = False
    batches: tuple[tuple[str, int, int], ...] = ()
    counts: tuple[Count, ...] = ()


@dataclass(frozen=True, slots=True)
class Entry:
    """An entry in its place: the `number`-th, after `offset` rows."""

    number: int
    offset: int
    rows: int
    bytes: int
    content: str
    written_at: float

    @property
    def end(self) -> int:
        return self.offset + self.rows


@dataclass(frozen=True, slots=True)
class Marker:
    """Everything up to entry `number`, which ends at `offset`."""

    kind: MarkerKind
    by: str
    number: int
    offset: int
    epoch: int
    at: float

    @property
    def is_of_reader(self) -> bool:
        """Whether it says how far somebody has read. An operator's own marker only holds back its control records."""
        return self.kind == "release" and not is_operator(self.by)


@dataclass(frozen=True, slots=True)
class StreamState:
    """Where a stream stands: the last entry's number, the offset behind it, and event time. `description` is JSON text;
    what is in it is known above (`holdfast.pstream`)."""

    description: str
    number: int
    offset: int
    watermark: int | None
    ended: bool


def _state_of(row: sa.Row[Any] | None) -> StreamState | None:
    return None if row is None else StreamState(row.description, row.number, row.offset, row.watermark, row.ended)


def _stored(stream: str, entry: Entry) -> dict[str, Any]:
    content = SealedPlace("entry", stream, entry.number).sealed(entry.content)
    return {
        "stream": stream, "number": entry.number, "offset": entry.offset, "rows": entry.rows, "bytes": entry.bytes,
        "content": content, "written_at": entry.written_at,
    }  # fmt: skip


class StreamMeta:
    """Reads and writes p-streams. Methods with a `connection` are part of somebody's transaction."""

    def __init__(self, meta: MetaStore) -> None:
        self._meta = meta
        self.arrivals = Arrivals(meta)

    # streams

    def declare(self, stream: str, description: str) -> StreamState:
        """Make the stream, or find it as it was made: the first description stays."""
        try:
            with self._meta.writing() as connection:
                known = self._state(connection, stream)
                if known is None:
                    fresh = {"stream": stream, "description": description, "number": 0, "offset": 0, "ended": False}
                    connection.execute(streams.insert().values(fresh))
                    known = StreamState(description, 0, 0, None, False)
                return known
        except IntegrityError:  # somebody else made it at the same moment
            return self.state(stream)

    def state(self, stream: str) -> StreamState:
        with self._meta.reading() as connection:
            found = self._state(connection, stream)
        if found is None:
            raise UnknownStreamError(
                f"there is no p-stream '{stream}'",
                cure=f"the store has: {', '.join(self.streams()) or 'none'}; run the pipeline that writes it first",
            )
        return found

    def _state(self, connection: sa.Connection, stream: str) -> StreamState | None:
        if not self._meta.has(streams):
            return None
        return _state_of(connection.execute(_STATE, {"of": stream}).one_or_none())

    def watermark(self, connection: sa.Connection, stream: str) -> int | None:
        """How far event time has advanced; nothing is appended until the transaction is over."""
        state = _state_of(connection.execute(_STATE_TO_APPEND, {"of": stream}).one_or_none())
        return None if state is None else state.watermark

    def streams(self) -> list[str]:
        if not self._meta.has(streams):
            return []
        with self._meta.reading() as connection:
            return list(connection.execute(_STREAMS).scalars())

    # entries

    def append(self, connection: sa.Connection, stream: str, new: Sequence[NewEntry], now: float) -> list[Entry]:
        """Give entries their place at the end of the stream, and remember their batches. None of them has one, if
        anything in them was taken before: `TakenBeforeError` says what."""
        # Processes that append to a stream take turns, also in a database where writers do not wait for one another.
        state = _state_of(connection.execute(_STATE_TO_APPEND, {"of": stream}).one_or_none())
        ids = [batch for item in new for batch, _, _ in item.batches]
        self.arrivals.refuse_taken(connection, stream, ids, [count for item in new for count in item.counts])
        if state is None:
            raise UnknownStreamError(f"there is no p-stream '{stream}'", cure="declare it before writing to it")
        number, offset, watermark, ended = state.number, state.offset, state.watermark, state.ended
        made = []
        for item in new:
            number += 1
            made.append(Entry(number, offset, item.rows, item.bytes, item.content, now))
            taken = {batch: TakenBatch(number, offset + before, rows) for batch, before, rows in item.batches}
            self.arrivals.remember(connection, stream, taken, item.counts, now)
            offset += item.rows
            watermark = item.watermark if item.watermark is not None else watermark
            ended = ended or item.ended
        if made:
            connection.execute(_NEW_ENTRIES, [_stored(stream, entry) for entry in made])
        moved = {"its_number": number, "its_offset": offset, "its_watermark": watermark, "its_ended": ended}
        connection.execute(_MOVE_END, {"of": stream, **moved})
        return made

    def _entry(self, row: sa.Row[Any]) -> Entry:
        content = SealedPlace("entry", row.stream, row.number).opened(row.content, self._meta.version)
        return Entry(row.number, row.offset, row.rows, row.bytes, content, row.written_at)

    def entries(self, stream: str, after: int, most: int | None = None, *, upto: int | None = None) -> list[Entry]:
        """The entries with numbers above `after`, in order; `most` of them, and none above `upto`."""
        if upto is None:
            query = _BEHIND if most is None else _SOME_BEHIND
        else:
            query = _BETWEEN if most is None else _SOME_BETWEEN
        bounds = {"after": after, "most": most, "upto": upto}
        given = {"of": stream, **{name: bound for name, bound in bounds.items() if bound is not None}}
        with self._meta.reading() as connection:
            return [self._entry(row) for row in connection.execute(query, given)]

    def last_entries(self, stream: str, most: int, before: int | None = None) -> list[Entry]:
        """The last entries, or those before a number, newest first."""
        query = sa.select(entries).where(entries.c.stream == stream).order_by(entries.c.number.desc()).limit(most)
        if before is not None:
            query = query.where(entries.c.number < before)
        with self._meta.reading() as connection:
            return [self._entry(row) for row in connection.execute(query)]

    def waiting(self, stream: str, after: int) -> int:
        """How many rows lie behind entry `after`."""
        with self._meta.reading() as connection:
            return int(connection.execute(_ROWS_BEHIND, {"of": stream, "after": after}).scalar_one() or 0)

    def retained(self, stream: str, after: int = 0) -> tuple[int, int, int]:
        """How many entries, rows and bytes the stream holds behind entry `after`."""
        with self._meta.reading() as connection:
            count, rows, size = connection.execute(_RETAINED, {"of": stream, "after": after}).one()
        return int(count), int(rows or 0), int(size or 0)

    def forget(self, stream: str, upto: int, *, alone: bool = False) -> list[Entry]:
        """Remove the entries up to a number that no reader needs, as `released` says; returns them. Nothing refers to
        their p-units then: a reader that subscribes later begins after them."""
        with self._meta.reading() as connection:
            if connection.execute(_FIRST_BEFORE, {"of": stream, "upto": upto}).first() is None:
                return []
        with self._meta.writing() as connection:
            self._lock(connection, stream, "subscribe")
            gone = {"of": stream, "upto": min(upto, self._released(connection, stream, alone=alone))}
            found = [self._entry(row) for row in connection.execute(_BEFORE, gone)]
            connection.execute(_FORGET, gone)
            return found

    # markers

    def subscribe(self, stream: str, reader: str, now: float) -> Marker:
        """Retain the stream for a reader, from what has not been released yet; where it has subscribed before, from
        where it stood."""
        with self._meta.writing() as connection:
            self._lock(connection, stream, "subscribe")
            for marker in self._markers(connection, stream, by=reader):
                if marker.kind == "release":
                    return marker
            number, offset = self._beginning(connection, stream)
            for kind in ("retain", "checkpoint", "release"):
                connection.execute(
                    markers.insert().values(
                        stream=stream, kind=kind, by=reader, number=number, offset=offset, epoch=0, at=now
                    )
                )
            return Marker("release", reader, number, offset, 0, now)

    def _beginning(self, connection: sa.Connection, stream: str) -> tuple[int, int]:
        """After which entry a new reader begins. What others have released may just be going, and its entries are the
        last to go: so their word counts, and not only what is there."""
        state = self._state(connection, stream)
        if state is None:
            raise UnknownStreamError(f"there is no p-stream '{stream}'", cure="declare it before reading from it")
        oldest = connection.execute(
            sa.select(entries).where(entries.c.stream == stream).order_by(entries.c.number).limit(1)
        ).one_or_none()
        there = (state.number, state.offset) if oldest is None else (oldest.number - 1, oldest.offset)
        released = [(m.number, m.offset) for m in self._markers(connection, stream) if m.is_of_reader]
        return max(there, min(released)) if released else there

    def unsubscribe(self, stream: str, reader: str) -> None:
        with self._meta.writing() as connection:
            connection.execute(markers.delete().where(markers.c.stream == stream, markers.c.by == reader))

    def mark(
        self,
        connection: sa.Connection,
        stream: str,
        kinds: Collection[MarkerKind],
        by: str,
        number: int,
        offset: int,
        epoch: int,
        now: float,
    ) -> None:
        """Move markers of a reader that has subscribed. Markers only go forward: an older one changes nothing."""
        self._lock(connection, stream, "mark")
        moved = {"its_number": number, "its_offset": offset, "its_epoch": epoch, "its_at": now}
        connection.execute(_MOVE_MARKERS, {"of": stream, "kinds": list(kinds), "reader": by, **moved})

    def release(self, stream: str, by: str, number: int, offset: int, now: float) -> None:
        """Move the markers of a reader that has no transaction of its own for it."""
        with self._meta.writing() as connection:
            self.mark(connection, stream, ("checkpoint", "release"), by, number, offset, 0, now)

    def _lock(self, connection: sa.Connection, stream: str, purpose: Literal["mark", "subscribe"]) -> None:
        """Subscribing to a stream and releasing take turns, also in a database where writers do not wait for one
        another by themselves.

        Appending and marking do not wait for one another: each of them has several streams in one
        transaction, in an order of its own.
        """
        if connection.dialect.name == "sqlite":
            return  # where a transaction that writes has the database for itself
        query = sa.select(streams.c.stream).where(streams.c.stream == stream)
        connection.execute(query.with_for_update(read=purpose == "mark", key_share=purpose != "subscribe"))

    def markers(self, stream: str) -> list[Marker]:
        with self._meta.reading() as connection:
            return self._markers(connection, stream)

    def _markers(self, connection: sa.Connection, stream: str, by: str | None = None) -> list[Marker]:
        if by is None:
            rows = connection.execute(_MARKERS, {"of": stream})
        else:
            rows = connection.execute(_MARKERS_OF, {"of": stream, "reader": by})
        return [Marker(row.kind, row.by, row.number, row.offset, row.epoch, row.at) for row in rows]

    def released(self, stream: str, *, alone: bool = False) -> int:
        """The number of the last entry that no reader needs; 0 while there is no reader. An operator that holds back
        its own control records is no reader, unless the stream has nothing else (`alone`)."""
        with self._meta.reading() as connection:
            return self._released(connection, stream, alone=alone)

    def _released(self, connection: sa.Connection, stream: str, *, alone: bool) -> int:
        found = [marker for marker in self._markers(connection, stream) if marker.kind == "release"]
        if not alone and all(is_operator(marker.by) for marker in found):
            return 0
        return min((marker.number for marker in found), default=0)
