"""A source as somebody outside of Holdfast would write it: the rows of a table of SQLite, in the order of their rowids.

Rows must only ever be added. Then a range of rowids always gives the same rows, and that is all a slice has to be.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import polars as pl

import holdfast as hf
from holdfast.source import Chunk, Position, Slice, Take


class TableSource(hf.source.Source):
    """See `table`."""

    keeps = True

    def __init__(self, path: Path, name: str, schema: pl.Schema, *, ends: bool) -> None:
        self.path, self.name, self.schema, self.bounded = path, name, schema, ends

    def start(self) -> Position:
        return {"row": 0}

    def take(self, position: Position, rows: int, pieces: int) -> Take:
        begin, last = int(position["row"]), self._last()
        end = min(begin + max(1, rows), last)
        done = self.bounded and end >= last
        if end <= begin:
            return Take((), position, done)
        width = -(-(end - begin) // pieces)
        bounds = [(low, min(low + width, end)) for low in range(begin, end, width)]
        slices = tuple(Slice(low, high - low, {"after": low, "until": high}) for low, high in bounds)
        return Take(slices, {"row": end}, done)

    def read(self, piece: Slice) -> Iterator[Chunk]:
        columns = ", ".join(f'"{column}"' for column in self.schema)
        query = f'select {columns} from "{self.name}" where rowid > ? and rowid <= ? order by rowid'
        with closing(sqlite3.connect(self.path)) as database:
            found = database.execute(query, (piece.where["after"], piece.where["until"])).fetchall()
        yield Chunk(pl.DataFrame(found, schema=self.schema, orient="row"), place=f"table {self.name}")

    def lag(self, position: Position) -> int:
        return max(0, self._last() - int(position["row"]))

    def describe(self) -> str:
        return f"table {self.name} in {self.path}"

    def _last(self) -> int:
        with closing(sqlite3.connect(self.path)) as database:
            return int(database.execute(f'select coalesce(max(rowid), 0) from "{self.name}"').fetchone()[0])


def table(path: Path, name: str, schema: pl.Schema, *, ends: bool = False) -> TableSource:
    """The rows of a table, those that are there and those that come; with `ends`, only those that are there."""
    return TableSource(path, name, schema, ends=ends)
