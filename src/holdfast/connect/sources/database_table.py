"""A table of a SQL database as a source: rows in the order of a key that grows.

A slice is a range of the key, and says how many rows it has. Rows must only be added, with keys above those that are
there; then a range always gives the same rows, and one that does not is told. Keys are given out before transactions
commit, so a row may appear below the greatest key for a moment: the table is read up to the key that was the greatest
one `settle` ago. In PostgreSQL all transactions that were open then must have ended, too: they are waited for, however
long that takes.

Not promised: that a row is read whose transaction, outside of PostgreSQL, commits later than `settle` after a row with
a greater key, or whose key was not taken in the transaction that adds it.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Iterator
from contextlib import AbstractContextManager
from copy import copy
from typing import Any

import polars as pl
import sqlalchemy as sa

from holdfast.connect.base import Chunk, Position, Slice, Source, Take
from holdfast.connect.duckdb_file import duckdb_path, is_duckdb
from holdfast.connect.extra_library import require_library
from holdfast.connect.schema import AnySchema, as_schema
from holdfast.connect.source_need import SourceNeed
from holdfast.connect.sources.duckdb_table import DuckdbTable, duckdb_schema
from holdfast.connect.sources.growing_table import GrowingTable, SqlTable, TableReader, reflected_table
from holdfast.database_url import parse_url, shown_url
from holdfast.errors import BadRowError, DeclarationError, InputError
from holdfast.spans import Duration, seconds_of

__all__ = ["DatabaseSource", "database", "schema_of_table"]


class DatabaseSource(Source):
    """See `database`."""

    keeps = True

    def __init__(
        self, table: GrowingTable, name: str, key: str, schema: pl.Schema, *, grow: bool, settle: float, shown: str
    ) -> None:
        self._table = table
        self._shown = shown
        self._checked = False
        self.table = name
        self.key = key
        self.schema = self._declared = schema
        self.bounded = not grow
        self.settle = settle if grow else 0.0
        self._seen: deque[tuple[float, int, int | None]] = deque(maxlen=10_000)
        """When which key was the greatest one, and which transaction had not begun then."""
        self._safe: int | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_checked": False}

    def start(self) -> Position:
        return {"base": 0, "key": None, "last": None}

    def narrowed(self, need: SourceNeed) -> DatabaseSource:
        other = copy(self)
        other.schema = pl.Schema({name: self._declared[name] for name in need.columns})
        return other

    def take(self, position: Position, rows: int, pieces: int) -> Take:
        with self._reading() as table:
            if self.bounded:
                last = position["last"]
                last = table.greatest() if last is None else last
            else:
                last = self._settled(table)
            base, key = int(position["base"]), position["key"]
            slices: list[Slice] = []
            share = -(-max(1, rows) // max(1, pieces))
            while last is not None and len(slices) < pieces and (key is None or key < last):
                piece = table.piece(key, last, min(share, max(1, rows)))
                if piece is None:
                    break
                until, count = piece
                slices.append(Slice(base, count, {"after": key, "until": until, "rows": count}))
                base, key, rows = base + count, until, rows - count
                if rows <= 0:
                    break
        done = self.bounded and (last is None or (key is not None and key >= last))
        if not slices:
            return Take((), position, done)
        return Take(tuple(slices), {"base": base, "key": key, "last": last if self.bounded else None}, done)

    def _settled(self, table: TableReader) -> int | None:
        """Up to which key nothing is added any more."""
        now = time.monotonic()
        greatest = table.greatest()
        oldest, ahead = table.open_transactions()  # only now: who has a lower key has begun by then
        if greatest is not None and (not self._seen or self._seen[-1][1] != greatest):
            self._seen.append((now, greatest, ahead))
        while self._seen and now - self._seen[0][0] >= self.settle:
            _, key, ahead = self._seen[0]
            if oldest is not None and ahead is not None and oldest < ahead:
                break  # a transaction of that time is still open
            self._safe = key
            self._seen.popleft()
        return self._safe

    def read(self, piece: Slice) -> Iterator[Chunk]:
        where = piece.where
        found = 0
        with self._reading() as table:
            for frame in self._fitting(table.rows(self.schema, where["after"], where["until"])):
                found += frame.height
                yield Chunk(frame, place=f"table {self.table}, {self.key} up to {where['until']}")
        if found != where["rows"]:
            raise InputError(
                f"table '{self.table}' had {where['rows']:,} rows with '{self.key}' above {where['after']} up to"
                f" {where['until']} when they were planned, but has {found:,} now",
                cure="rows may only be added, with keys above those that are there: give a longer settle= if they are"
                " added by long transactions, or read the table into a new store",
            )

    def _fitting(self, frames: Iterator[pl.DataFrame]) -> Iterator[pl.DataFrame]:
        try:
            yield from frames
        except (TypeError, ValueError, OverflowError, pl.exceptions.PolarsError) as error:
            raise BadRowError(
                f"rows of table '{self.table}' do not fit the schema: {error}",
                cure="declare the columns in types that hold the values of the table",
            ) from error

    def awaits(self, position: Position) -> bool:
        return bool(self._seen) and (position["key"] is None or self._seen[-1][1] > position["key"])

    def lag(self, position: Position) -> int | None:
        """An estimate: the distance of keys, and how many rows the keys had that were read. It is asked for in each
        epoch, and the ends of an index are found at once, where rows would have to be counted."""
        with self._reading() as table:
            least, greatest = table.least(), table.greatest()
        key, read = position["key"], int(position["base"])
        if least is None or greatest is None:
            return 0
        if key is None:
            return greatest - least + 1
        rows_per_key = (read - 1) / (int(key) - least) if read > 1 and key > least else 1.0
        return max(0, round((greatest - int(key)) * rows_per_key))

    def describe(self) -> str:
        return f"table {self.table} of {self._shown}, by {self.key}{'' if self.bounded else ', growing'}"

    def _reading(self) -> AbstractContextManager[TableReader]:
        if not self._checked:
            self._table.check(self.schema)
            self._checked = True
        return self._table.reading()


_TYPES: tuple[tuple[type[sa.types.TypeEngine[Any]], pl.DataType], ...] = (
    (sa.SmallInteger, pl.Int16()),
    (sa.BigInteger, pl.Int64()),
    (sa.Integer, pl.Int64()),
    (sa.Float, pl.Float64()),
    (sa.Boolean, pl.Boolean()),
    (sa.Date, pl.Date()),
    (sa.Time, pl.Time()),
    (sa.LargeBinary, pl.Binary()),
    (sa.String, pl.String()),
)


def schema_of_table(table: sa.Table, by: str = "database()") -> pl.Schema:
    """The types that its columns have here."""
    columns: dict[str, pl.DataType] = {}
    for column in table.columns:
        found = next((dtype for kind, dtype in _TYPES if isinstance(column.type, kind)), None)
        if isinstance(column.type, sa.DateTime):
            found = pl.Datetime("us", "UTC" if column.type.timezone else None)
        if found is None:
            raise DeclarationError(
                f"{by}: column '{column.name}' of table '{table.name}' is {column.type}, which has no single type here",
                cure=f"give {by} a schema, with the columns to read and their types",
            )
        columns[column.name] = found
    return pl.Schema(columns)


def database(
    url: str,
    table: str,
    key: str,
    *,
    schema: AnySchema | None = None,
    grow: bool = True,
    settle: Duration = "1s",
) -> DatabaseSource:
    """The rows of a table of a SQL database, given as an SQLAlchemy URL, in the order of a `key` that grows. A file of
    DuckDB is "duckdb:///events.db".

    Rows must only be added, with whole numbers as keys that are greater than those before, as the database counts them
    up. A row is read when its key was `settle` ago not above the greatest one, and in PostgreSQL all transactions that
    were open then have ended. With `grow=False` the table ends at the greatest key that it has when the pipeline
    starts. Without a `schema` all columns are read. A PostgreSQL that gives no answer for 5 minutes, or for the seconds
    that `timeout=` in the URL says, ends the run with an error.
    """
    found = parse_url(url, "the database", "'postgresql://user@host/database' or 'sqlite:///events.db'")
    given = None if schema is None else as_schema(schema, "database()")
    reader: GrowingTable
    if is_duckdb(found):
        path = duckdb_path(found, "hf.source.database()")
        reader = DuckdbTable(path, table, key)
        wanted = duckdb_schema(path, table) if given is None else given
    else:
        if found.drivername in ("postgresql", "postgresql+psycopg"):
            require_library("psycopg", "postgresql", "hf.source.database() with a URL of PostgreSQL")
        if found.get_backend_name() == "sqlite" and found.database:
            # Absolute, because tasks may run in another working directory than the driver.
            url = found.set(database=os.path.abspath(found.database)).render_as_string(hide_password=False)
        reader = SqlTable(url, table, key)
        wanted = schema_of_table(reflected_table(url, table)[1]) if given is None else given
    return DatabaseSource(
        reader, table, key, wanted, grow=grow, settle=seconds_of("database(): settle", settle), shown=shown_url(found)
    )
