"""Segments: append-only files that hold what a process has written in many epochs, one piece after the other.

A piece is known as `SEGMENT@OFFSET`. Only the process that has made a segment appends to it, and what is in it never
changes; after a failure nothing is appended to it. So what a power loss leaves after its last sync is torn or missing,
and nothing refers to it. The name of a segment says for which epochs it may be written, and the how many-th of its
writer it is: after those epochs, and when the next one is there, it does not grow.
"""

from __future__ import annotations

import io
import os
import re
import uuid
from collections.abc import Iterable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Protocol

from holdfast.store.durable import full_disk_named, make_directories, sync_directory, sync_names_above
from holdfast.store.sync_clock import synced

__all__ = [
    "LARGE_SEGMENT",
    "SEGMENT_EPOCHS",
    "Appends",
    "OpenSegments",
    "SegmentWriter",
    "SyncedSegments",
    "last_epoch",
    "of_one_epoch",
    "segment_of",
    "start_in",
    "superseded",
    "with_segments",
]

SEGMENT_EPOCHS = 64
"""A standing worker writes to a segment for at most so many epochs."""
LARGE_SEGMENT = 4 << 20
"""A segment that has so many bytes gets no more."""
_ALIGNMENT = 64
_SEGMENT = re.compile(r"\.?(\d+)-(\d+)-([0-9a-f]+)-(\d+)\.segment\b")
_PIECE = re.compile(r"(.*\.segment)@(\d+)", re.DOTALL)


def segment_of(name: str) -> str | None:
    """The segment that a piece was written to; None for what has a file of its own."""
    found = _PIECE.fullmatch(name)
    return found[1] if found is not None else None


def start_in(path: Path, name: str) -> int | None:
    """Where in a file that holds it a piece begins; None if it is all there is in the file."""
    found = _PIECE.fullmatch(name)
    return None if found is None or path.name.endswith(f"@{found[2]}") else int(found[2])


def with_segments(names: Iterable[str]) -> frozenset[str]:
    """The names of all files that may hold these: files of their own, and segments."""
    known = frozenset(names)
    return known | {segment for name in known if (segment := segment_of(name)) is not None}


def of_one_epoch(names: Iterable[str]) -> frozenset[str]:
    """The names of all files that hold these and nothing of other epochs."""
    files = with_segments(names)
    return frozenset(name for name in files if (found := _parts(name)) is None or found[1] == found[2])


def _parts(name: str) -> re.Match[str] | None:
    return _SEGMENT.match(name.rpartition("/")[2])


def superseded(names: Iterable[str], newer: Iterable[str]) -> frozenset[str]:
    """Those segments whose writers have made others since, which are among `newer`."""
    newest: dict[str, int] = {}
    for name in newer:
        if (found := _parts(name)) is not None:
            newest[found[3]] = max(int(found[4]), newest.get(found[3], 0))
    return frozenset(
        name for name in names if (found := _parts(name)) is not None and int(found[4]) < newest.get(found[3], 0)
    )


def last_epoch(name: str) -> int | None:
    """The last epoch for which a segment may be written; None for another file."""
    found = _parts(name)
    return int(found[2]) if found is not None else None


class SegmentWriter:
    """Appends to segments below `root`, a new one when the last is large or old. Not for two threads at a time.

    What was appended can be read at once; it is durable after the next `sync`.
    """

    def __init__(self, root: Path, sync: bool, epochs: int = 1, large: int = LARGE_SEGMENT) -> None:
        self.root = root
        self.large = large
        self._directory = root / "segments"
        self._sync = sync
        self._epochs = epochs
        self._id = uuid.uuid4().hex[:16]
        self._count = 0
        self._file: io.FileIO | None = None
        self._name = ""
        self._size = 0
        self._last = 0
        self._unsynced = False
        self._new = False

    def append(self, epoch: int, data: memoryview) -> str:
        """Write a piece for an epoch; returns its name."""
        if self._file is not None and (self._size >= self.large or not self._may_hold(self._file, epoch)):
            self._retire()
        file = self._file or self._open(epoch)
        start = -(-self._size // _ALIGNMENT) * _ALIGNMENT
        self._unsynced = True
        try:
            with full_disk_named(self._directory / self._name):
                _write(file, bytes(start - self._size), data)
        except BaseException:
            self.close()  # it is unknown how much of it was written
            raise
        self._size = start + data.nbytes
        return f"segments/{self._name}@{start}"

    def sync(self) -> None:
        """Make all that was appended durable."""
        if self._file is None or not self._unsynced:
            return
        try:
            if self._sync:
                with full_disk_named(self._directory / self._name):
                    synced(self._file.fileno(), data_only=True)
                    if self._new:
                        sync_directory(self._directory)
        except BaseException:
            self.close()  # what was not synced once may never be
            raise
        self._unsynced = self._new = False

    def close(self) -> None:
        """Let go of the segment as it is."""
        file, self._file = self._file, None
        self._unsynced = False
        if file is not None:
            file.close()

    def _may_hold(self, file: io.FileIO, epoch: int) -> bool:
        """Whether the segment is for this epoch, and was not removed by a process that found no reference to it."""
        return self._last - self._epochs < epoch <= self._last and os.fstat(file.fileno()).st_nlink > 0

    def _retire(self) -> None:
        self.sync()
        self.close()

    def _open(self, epoch: int) -> io.FileIO:
        self._last = epoch + self._epochs - 1
        self._name = f"{epoch:012d}-{self._last:012d}-{self._id}-{self._count}.segment"
        self._count += 1
        path = self._directory / self._name
        with full_disk_named(path):
            try:
                self._file = path.open("xb", buffering=0)
            except FileNotFoundError:
                make_directories(path.parent, sync=self._sync)
                self._file = path.open("xb", buffering=0)
        self._size, self._new = 0, True
        return self._file


class SyncedSegments:
    """Segments of a stream that several threads append to, one at a time by `lock`: what was appended is durable at
    once."""

    def __init__(self, root: Path, sync: bool, large: int, lock: AbstractContextManager[Any]) -> None:
        self.root = root
        self.large = large
        self._sync = sync
        self._writer = SegmentWriter(root, sync, SEGMENT_EPOCHS, large)
        self._lock = lock
        self._lasting: set[Path] = set()

    def append(self, epoch: int, data: memoryview) -> str:
        with self._lock:
            name = self._writer.append(epoch, data)
            self._writer.sync()
            self.settle(name)
            return name

    def settle(self, name: str) -> None:
        """Make the names of the directories durable that hold what was written to the stream, up to that of the store:
        their maker may have been killed before it had synced them."""
        if self._sync:
            sync_names_above(self.root / name, self.root.parents[2], self._lasting)

    def close(self) -> None:
        self._writer.close()


class Appends(Protocol):
    """Takes pieces of segments, which are closed when they have `large` bytes."""

    root: Path
    large: int

    def append(self, epoch: int, data: memoryview) -> str:
        """Write a piece for an epoch; returns its name."""
        ...


class OpenSegments:
    """The segments that a process appends to, one in each directory."""

    def __init__(self, epochs: int) -> None:
        self._epochs = epochs
        self._writers: dict[Path, SegmentWriter] = {}

    def at(self, root: Path, sync: bool, large: int = LARGE_SEGMENT) -> SegmentWriter:
        """That below `root`."""
        if root not in self._writers:
            self._writers[root] = SegmentWriter(root, sync, self._epochs, large)
        return self._writers[root]

    def sync(self) -> None:
        """Make all that was appended durable: one sync for each directory that got something."""
        for writer in self._writers.values():
            writer.sync()

    def close(self) -> None:
        for writer in self._writers.values():
            writer.close()


def _write(file: io.FileIO, padding: bytes, data: memoryview) -> None:
    """Both parts, as a rule by one call."""
    rest = [memoryview(padding), data.cast("B")]
    while rest := [part for part in rest if part.nbytes]:
        written = os.writev(file.fileno(), rest)
        while rest and written >= rest[0].nbytes:
            written -= rest.pop(0).nbytes
        if rest:
            rest[0] = rest[0][written:]
