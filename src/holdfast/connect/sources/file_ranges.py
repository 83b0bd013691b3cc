"""Ranges of files: what a take of a file source has planned to read, cut into the slices of its tasks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import ceil

from holdfast.connect.base import Slice, Where
from holdfast.connect.sources.file_set import FileId

__all__ = ["FileRange", "cut_into_slices", "recall", "remember"]


@dataclass(frozen=True, slots=True)
class FileRange:
    """Units [start, stop) of a file that is yet to be cut into slices."""

    file: FileId
    start: int
    stop: int
    per_row: float

    @property
    def rows(self) -> int:
        return max(1, ceil((self.stop - self.start) / self.per_row))

    def where(self) -> Where:
        return {**remember(self.file), "start": self.start, "stop": self.stop}


def cut_into_slices(
    ranges: Sequence[FileRange], base: int, pieces: int, cut: Callable[[FileId, int, int, int], int]
) -> Iterator[Slice]:
    """Cut the ranges into at most `pieces` slices of about equal size, keeping their order. `cut` finds the place in a
    file at which a range may end that begins at a unit, from another one on and before a third."""
    share = max(1, ceil(sum(part.rows for part in ranges) / max(1, pieces)))
    parts: list[FileRange] = []
    room = share
    for whole in ranges:
        part = whole
        while part.rows > room:
            middle = cut(part.file, part.start, part.start + max(1, ceil(room * part.per_row)), part.stop)
            if middle >= part.stop:
                break
            parts.append(FileRange(part.file, part.start, middle, part.per_row))
            part = FileRange(part.file, middle, part.stop, part.per_row)
            yield _slice(parts, base)
            base += sum(p.stop - p.start for p in parts)
            parts, room = [], share
        parts.append(part)
        room -= part.rows
        if room <= 0:
            yield _slice(parts, base)
            base += sum(p.stop - p.start for p in parts)
            parts, room = [], share
    if parts:
        yield _slice(parts, base)


def _slice(parts: Sequence[FileRange], base: int) -> Slice:
    return Slice(base, sum(part.rows for part in parts), {"parts": [part.where() for part in parts]})


def remember(file: FileId) -> Where:
    """A file as positions and slices hold it."""
    return {"name": file.name, "size": file.size, "mtime_ns": file.mtime_ns, "ctime_ns": file.ctime_ns}


def recall(where: Where) -> FileId:
    """The file that a position or a slice holds."""
    return FileId(where["name"], int(where["size"]), int(where["mtime_ns"]), int(where["ctime_ns"]))
