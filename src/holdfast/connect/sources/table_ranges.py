"""Ranges of rows of the files of a table, and slices of them of about equal size."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from holdfast.connect.base import Slice, Where

__all__ = ["TableRange", "cut_table_ranges"]


@dataclass(frozen=True, slots=True)
class TableRange:
    """Rows of a file; `file` is what a slice says about it."""

    file: Where
    start: int
    stop: int

    @property
    def rows(self) -> int:
        return self.stop - self.start


def cut_table_ranges(ranges: Sequence[TableRange], base: int, pieces: int) -> Iterator[Slice]:
    """Slices of about equal size."""
    share = -(-sum(part.rows for part in ranges) // max(1, pieces))
    some: list[TableRange] = []
    room = share
    for part in ranges:
        start = part.start
        while start < part.stop:
            stop = min(part.stop, start + room)
            some.append(TableRange(part.file, start, stop))
            room -= stop - start
            start = stop
            if not room:
                yield (made := _slice(some, base))
                base += made.rows
                some, room = [], share
    if some:
        yield _slice(some, base)


def _slice(parts: Sequence[TableRange], base: int) -> Slice:
    where = [{**part.file, "start": part.start, "stop": part.stop} for part in parts]
    return Slice(base, sum(part.rows for part in parts), {"parts": where})
