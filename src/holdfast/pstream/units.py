"""P-units of streams: encoded column by column on the way to the disk, decoded on the way back.

State is searched in place, so its p-units stay plain; rows of a stream are written once and read whole, so theirs are
compressed. The encodings are chosen while running, by samples of the rows and by the bandwidth that the disk shows; a
reader needs nothing but the file.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import polars as pl
import pyarrow as pa

from holdfast.pstream.codecs import Chooser, Lossy, decode_frame, encode_frame, is_encoded
from holdfast.pstream.punit import PUnit, append_table, as_frame, open_table, write_table
from holdfast.store import LARGE_SEGMENT, Appends, DirectoryStore, SyncedSegments

__all__ = ["UnitWriter", "read_unit", "segment_bytes", "synced_segments", "unit_writer"]

_FIRST_GUESS = 500e6
_PASSES = 2
"""A byte is paid for twice: it is written, and later read by the stream's readers."""
_LARGE_ENOUGH = 256_000
"""Smaller writes tell the latency of the disk, not its bandwidth. They are gathered in segments, where there are some:
larger p-units would leave too much dead space there, and are files of their own."""
_WORTH_ENCODING = 16_384
"""Of fewer bytes nearly all is the frame around the columns: to encode them takes longer than to write them, and saves
nothing."""


def segment_bytes(budget: int | None) -> int:
    """How large the segments of a stream get: what is dead in them must not count against its budget."""
    return LARGE_SEGMENT if budget is None else min(LARGE_SEGMENT, budget // 256)


def synced_segments(store: DirectoryStore, budget: int | None, lock: AbstractContextManager[Any]) -> SyncedSegments:
    """Segments of a stream that several threads write."""
    return SyncedSegments(store.root, store.sync, segment_bytes(budget), lock)


class UnitWriter:
    """Writes the p-units of one stream; safe to use from several threads.

    `compress=False` writes plain Arrow. `lossy` names float columns that may be rounded, with the largest error.
    """

    def __init__(
        self,
        store: DirectoryStore,
        *,
        compress: bool = True,
        lossy: Iterable[Lossy] = (),
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.store = store
        self._lossy = tuple(lossy)
        self._clock = clock
        self._lock = threading.Lock()
        self._bandwidth = _FIRST_GUESS
        self._chooser = Chooser(_FIRST_GUESS / _PASSES, self._lossy) if compress else None

    @property
    def bandwidth(self) -> float:
        """What the disk takes, in bytes per second, as far as this writer has seen."""
        return self._bandwidth

    def reasons(self) -> dict[str, str]:
        """Why each column is encoded as it is."""
        with self._lock:
            return self._chooser.reasons() if self._chooser is not None else {}

    def write(self, name: str, frame: pl.DataFrame, segments: Appends | None = None, epoch: int = 0) -> PUnit:
        """Write rows durably under a new name. If they are few and there are `segments`, they are appended there, and
        durable when those are synced."""
        small = not self._lossy and frame.estimated_size() < _WORTH_ENCODING
        if self._chooser is None or not frame.width or small:
            return self._put(name, frame.rechunk().to_arrow(), frame.height, segments, epoch)
        with self._lock:
            plan = self._chooser.plan()
            new = not plan
            if new:
                self._chooser.observe(frame)
                plan = self._chooser.plan()
        encoded = encode_frame(frame, plan, self._lossy)
        started = self._clock()
        unit = self._put(name, encoded.table, frame.height, segments, epoch)
        seconds = self._clock() - started
        with self._lock:
            if not new:
                self._chooser.observe(frame, encoded)
            if unit.bytes >= _LARGE_ENOUGH and self.store.sync:
                self._bandwidth += 0.2 * (unit.bytes / max(seconds, 1e-6) - self._bandwidth)
                self._chooser.set_bandwidth(self._bandwidth / _PASSES)
        return unit

    def _put(self, name: str, table: pa.Table, rows: int, segments: Appends | None, epoch: int) -> PUnit:
        if segments is not None and table.nbytes < min(_LARGE_ENOUGH, segments.large // 4):
            return append_table(segments, epoch, table, rows)
        return write_table(self.store, name, table, rows)


_writers: dict[tuple[str, bool, tuple[Lossy, ...]], UnitWriter] = {}
_writers_lock = threading.Lock()


def unit_writer(store: DirectoryStore, *, compress: bool = True, lossy: Iterable[Lossy] = ()) -> UnitWriter:
    """The writer of a stream in this process: what it has learned stays from task to task."""
    key = (str(store.root), compress, tuple(lossy))
    with _writers_lock:
        if key not in _writers:
            _writers[key] = UnitWriter(store, compress=compress, lossy=lossy)
        return _writers[key]


def read_unit(store: DirectoryStore, punit: PUnit, columns: Sequence[str] | None = None) -> pl.DataFrame:
    """The rows of a p-unit; with `columns`, only those of them that it has."""
    table = open_table(store, punit)
    if is_encoded(table):
        return decode_frame(table, columns)
    if columns is not None:
        table = table.select([name for name in table.column_names if name in columns])
    return as_frame(table, punit)
