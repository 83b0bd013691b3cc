"""The p-stream: a durable, ordered, trimmable sequence of p-units between fragments, with any number of readers.

Its operations are those of Scabbard's Table 1. `subscribe` makes a reader known, and from then on nothing goes without
its word; `write` puts an entry at the end, in the writer's own transaction; `read` returns what comes next;
`checkpoint` says how far a reader's state is durable; `trim` removes what no reader needs any more; `load` brings rows
back from disk. An offset is the number of rows before a place in the stream. Entries are taken whole, and are known by
their number too.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import polars as pl
import sqlalchemy as sa

from holdfast.meta import Count, Entry, Marker, MarkerKind, MetaStore, NewEntry, StreamMeta, StreamState
from holdfast.pstream.description import StreamDescription
from holdfast.pstream.stream_entry import Control, EntryContent, Lineage, StreamEntry, StreamUnit, stream_store
from holdfast.pstream.units import read_unit
from holdfast.store import (
    SEGMENT_EPOCHS,
    Private,
    Right,
    made_before,
    of_one_epoch,
    superseded,
    with_segments,
)

__all__ = ["PStream", "new_entry"]

_LOADERS = 4
_LOOKED_UP = 64
_FORGOTTEN = Private("the store has forgotten the entries that named it")


def new_entry(
    units: Sequence[StreamUnit],
    *,
    after: int | None,
    ended: bool,
    lineage: Lineage,
    batches: tuple[tuple[str, int, int], ...] = (),
    counts: tuple[Count, ...] = (),
    control: Mapping[str, Control] | None = None,
) -> NewEntry:
    """An entry of these p-units, ready to be written. Control records count as bytes, but not as rows."""
    controls = dict(control or {})
    text = EntryContent(tuple(units), after, ended, lineage, controls).encode()
    rows = sum(unit.rows for unit in units)
    size = sum(unit.bytes for unit in units) + sum(records.bytes for records in controls.values())
    return NewEntry(rows, size, text, after, ended, batches, counts)


class PStream:
    """A p-stream of the store at `root`."""

    def __init__(
        self,
        meta: MetaStore,
        root: Path,
        name: str,
        *,
        sync: bool = True,
        clock: Callable[[], float] = time.time,
        ticks: Callable[[], float] | None = None,
    ) -> None:
        self.name = name
        self.store = stream_store(root, name, sync)
        self._meta = StreamMeta(meta)
        self._clock = clock
        self._ticks = ticks or time.monotonic  # the time of day may be set
        self._releases: deque[tuple[float, int]] = deque()
        self._growing: dict[str, int] = {}
        """Segments of entries that were forgotten, which could not be removed yet, with the last such entry."""

    def declare(self, description: StreamDescription) -> StreamState:
        """Make the stream known, or find it as it is."""
        return self._meta.declare(self.name, description.encode())

    def state(self) -> StreamState:
        return self._meta.state(self.name)

    def markers(self) -> list[Marker]:
        return self._meta.markers(self.name)

    def retained(self, after: int = 0) -> tuple[int, int, int]:
        """How many entries, rows and bytes the stream holds behind entry `after`."""
        return self._meta.retained(self.name, after)

    # readers

    def subscribe(self, reader: str) -> Marker:
        """Retain the stream for a reader: from the first entry that other readers still need, or from where the reader
        stood when it subscribed before. The marker says from where."""
        return self._meta.subscribe(self.name, reader, self._clock())

    def unsubscribe(self, reader: str) -> None:
        """Forget a reader: what only it has retained goes at the next trim."""
        self._meta.unsubscribe(self.name, reader)

    def read(self, after: int, rows: int) -> list[StreamEntry]:
        """The entries behind entry `after`, as many as make up about `rows` rows, at least one if there is one. Less
        than half is all there is: readers that get less take fewer the next time."""
        found: list[StreamEntry] = []
        total = 0
        while total < rows:
            more = self._meta.entries(self.name, found[-1].number if found else after, 64)
            for entry in more:
                if found and total + entry.rows > rows and 2 * total >= rows:
                    return found
                found.append(StreamEntry.of(entry))
                total += entry.rows
            if len(more) < 64:
                break
        return found

    def between(self, after: int, upto: int) -> list[StreamEntry]:
        """The entries behind entry `after`, up to another one."""
        return [StreamEntry.of(entry) for entry in self._meta.entries(self.name, after, upto=upto)]

    def backwards(self) -> Iterator[StreamEntry]:
        """The entries from the newest to the oldest, looked up as they are asked for."""
        before: int | None = None
        while found := self._meta.last_entries(self.name, _LOOKED_UP, before):
            yield from (StreamEntry.of(entry) for entry in found)
            before = found[-1].number

    def waiting(self, after: int) -> int:
        return self._meta.waiting(self.name, after)

    def checkpoint(self, connection: sa.Connection, reader: str, number: int, offset: int, epoch: int) -> None:
        """The reader's state is durable up to here, in the transaction of its commit: it needs nothing that lies
        before."""
        kinds: tuple[MarkerKind, ...] = ("checkpoint", "release")
        self._meta.mark(connection, self.name, kinds, reader, number, offset, epoch, self._clock())

    def release(self, reader: str, number: int, offset: int) -> None:
        """A reader that keeps its own state has all up to here, in a transaction of its own."""
        self._meta.release(self.name, reader, number, offset, self._clock())

    def trim(self, *, alone: bool = False, kept: float = 0.0) -> int:
        """Remove what every reader has released; returns how many bytes went. A stream of control records `alone` has
        no readers but the operator that writes it. What was released less than `kept` seconds ago stays: a reader may
        have a replica that is a little behind.

        The entries go first, in the transaction that sees that they are free, and their files after them: of what an
        interrupted trim leaves, nothing refers to, and the writer sweeps it at its next start.
        """
        upto = self._released_before(kept, self._meta.released(self.name, alone=alone))
        free = self._meta.forget(self.name, upto, alone=alone)
        files = {file: entry.number for entry in free for file in with_segments(StreamEntry.of(entry).files)}
        at_once = of_one_epoch(files)
        self._growing |= {file: number for file, number in files.items() if file not in at_once}
        self.store.remove(at_once | self._let_go(), _FORGOTTEN)
        return sum(entry.bytes for entry in free)

    def _let_go(self) -> frozenset[str]:
        """Segments, of entries that were forgotten, that get no more and hold nothing of other entries.

        A segment holds p-units of so many epochs in a row at most, and an epoch has one entry at most: with as many
        entries behind one that names it, it gets no more, and those that name it, too, are among them. Nor does it get
        more when its writer has made another."""
        if not self._growing:
            return frozenset()
        state, ahead = self.state(), self._meta.entries(self.name, 0, SEGMENT_EPOCHS)
        named = with_segments(name for entry in ahead for name in StreamEntry.of(entry).files)
        old = {file for file, at in self._growing.items() if state.ended or state.number - at >= SEGMENT_EPOCHS}
        old = (old | superseded(self._growing, named | self._growing.keys())) - named
        self._growing = {file: number for file, number in self._growing.items() if file not in old}
        return frozenset(old)

    def _released_before(self, seconds: float, upto: int) -> int:
        """Up to where the stream was released so many seconds ago, as far as this process has seen it."""
        now = self._ticks()
        self._releases.append((now, upto))
        while len(self._releases) > 1 and self._releases[1][0] <= now - seconds:
            self._releases.popleft()
        at, before = self._releases[0]
        return before if at <= now - seconds else 0

    def load(self, entries: Sequence[StreamEntry], columns: Sequence[str] | None = None) -> list[pl.DataFrame]:
        """The rows of entries, p-unit by p-unit in order, read and verified in parallel."""
        units = [unit for entry in entries for unit in entry.units]
        with ThreadPoolExecutor(_LOADERS) as pool:
            return list(pool.map(lambda unit: read_unit(self.store, unit, columns), units))

    # writer

    def write(self, connection: sa.Connection, entries: Sequence[NewEntry]) -> list[Entry]:
        """Put entries whose p-units are on disk at the end, in the transaction of the writer's commit."""
        return self._meta.append(connection, self.name, entries, self._clock())

    def sweep(self, right: Right, before: int | None = None) -> None:
        """Remove files that no entry names. Only for the writer, and only while it writes nothing; with `before`, only
        what was made for epochs before that one, so that others may write meanwhile. The right is checked after the
        names are listed: what another writer makes by now is not among them."""
        found = [name for name in self.store.names() if made_before(name, before)]
        known = with_segments(
            name for entry in self._meta.entries(self.name, 0) for name in StreamEntry.of(entry).files
        )
        self.store.remove([name for name in found if name not in known], right)
