"""Rows into a table of a DuckDB file, exactly once: those of an epoch as one Arrow table, in one transaction with the
epoch's number and vector.

The file is open only while an epoch is written, so that other programs can read the results in between. Only one
process can write at a time, and waits for the others.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import polars as pl
import pyarrow as pa

from holdfast.connect.base import DriverSink, Owner, Position
from holdfast.connect.duckdb_file import opened_duckdb, quoted
from holdfast.connect.sinks.delivery_progress import PROGRESS_TABLE, DeliveryProgress, progress_of
from holdfast.errors import DeclarationError, OperatorError

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

__all__ = ["DuckdbSink"]

_ROWS = "holdfast_rows"
_REFUSED = (pl.Object, pl.Unknown, pl.Int128, pl.Null)


@dataclass(slots=True)
class DuckdbSink(DriverSink):
    """See `database`."""

    path: str
    table: str
    writer: str | None
    key: tuple[str, ...] = ()
    guarantee: str = field(
        default="exactly once: rows, epoch and the vector of source positions are one transaction of the database",
        init=False,
    )
    _owner: Owner | None = field(default=None, init=False, repr=False)

    @property
    def place(self) -> str | None:
        """By default a writer has the name of its sink, which no other sink has."""
        return None if self.writer is None else f"writer '{self.writer}' of {self.path}"

    def accept(self, schema: pl.Schema) -> None:
        for name, dtype in schema.items():
            if isinstance(dtype, _REFUSED):
                raise DeclarationError(
                    f"column '{name}' for table '{self.table}' is {dtype}, which DuckDB cannot hold",
                    cure="cast it before the sink",
                )
        for name in self.key:
            if name not in schema:
                raise DeclarationError(
                    f"database: the stream has no column '{name}', which is part of the key",
                    cure=f"name some of {', '.join(schema)}",
                )

    def attach(self, owner: Owner) -> None:
        self._owner = owner

    @property
    def _writer(self) -> str:
        assert self._owner is not None
        return self.writer or f"{self._owner.pipeline}.{self._owner.sink}"

    def bind(self, schema: pl.Schema) -> None:
        """Make the tables if they are not there."""
        with self._opened() as connection:
            self._make_tables(connection, schema)
            found = connection.execute(f"DESCRIBE {quoted(self.table)}").fetchall()
            missing = [name for name in schema if name not in {row[0] for row in found}]
            if missing:
                raise DeclarationError(
                    f"table '{self.table}' has no column '{missing[0]}'",
                    cure="choose another table, or add the column to it",
                )
            if self.key:
                _check_unique(connection, self.table, self.key)

    def _make_tables(self, connection: DuckDBPyConnection, schema: pl.Schema) -> None:
        connection.register(_ROWS, _as_arrow(pl.DataFrame(schema=schema)))
        types = connection.execute(f"DESCRIBE SELECT * FROM {_ROWS}").fetchall()
        connection.unregister(_ROWS)
        columns = [f"{quoted(name)} {kind}" for name, kind, *_ in types]
        if self.key:
            columns.append(f"PRIMARY KEY ({', '.join(map(quoted, self.key))})")
        connection.execute(f"CREATE TABLE IF NOT EXISTS {quoted(self.table)} ({', '.join(columns)})")
        connection.execute(
            f"CREATE TABLE IF NOT EXISTS {PROGRESS_TABLE}"
            " (writer VARCHAR PRIMARY KEY, epoch BIGINT NOT NULL, vector VARCHAR NOT NULL, store VARCHAR)"
        )

    def check(self, committed: int) -> None:
        """Refuse a database that is ahead: it holds results of another history of the pipeline."""
        with self._opened() as connection:
            known = self._known(connection)
        if known is not None:
            known.check_ahead(committed)

    def delivered(self) -> int | None:
        with self._opened() as connection:
            known = self._known(connection)
        return None if known is None else known.epoch

    def deliver(self, epoch: int, rows: pl.DataFrame, vector: Mapping[str, Position]) -> None:
        """Write an epoch, unless it is there. Nobody else has the file meanwhile."""
        assert self._owner is not None
        text = json.dumps(vector)
        with self._opened() as connection:
            known = self._known(connection)
            if known is not None and known.has(epoch, json.loads(text)):
                return
            connection.begin()
            connection.execute(
                f"INSERT OR REPLACE INTO {PROGRESS_TABLE} (writer, epoch, vector, store) VALUES (?, ?, ?, ?)",
                [self._writer, epoch, text, self._owner.store],
            )
            if rows.height:
                self._write(connection, rows)
            connection.commit()

    def _write(self, connection: DuckDBPyConnection, rows: pl.DataFrame) -> None:
        if self.key:  # of several rows of an epoch with the same key the last one counts
            rows = rows.unique(subset=self.key, keep="last", maintain_order=True)
        listed = ", ".join(map(quoted, rows.columns))
        connection.register(_ROWS, _as_arrow(rows))
        connection.execute(
            f"INSERT INTO {quoted(self.table)} ({listed}) SELECT {listed} FROM {_ROWS}"
            f"{_on_conflict(rows.columns, self.key)}"
        )
        connection.unregister(_ROWS)

    def _known(self, connection: DuckDBPyConnection) -> DeliveryProgress | None:
        assert self._owner is not None
        query = f"SELECT epoch, vector, store FROM {PROGRESS_TABLE} WHERE writer = ?"
        found = connection.execute(query, [self._writer]).fetchall()
        return progress_of(self.table, self._writer, self.path, found[0] if found else None, self._owner.store)

    @contextmanager
    def _opened(self) -> Iterator[DuckDBPyConnection]:
        import duckdb  # noqa: PLC0415 - an extra

        try:
            with opened_duckdb(self.path, write=True) as connection:
                yield connection
        except duckdb.Error as error:
            raise OperatorError(
                f"cannot write table '{self.table}' of {self.path}: {error}",
                cure="check that no other program has the file open for long, and that the table accepts these rows",
            ) from error

    def describe(self) -> str:
        return f"table {self.table} of duckdb:///{self.path}"


def _as_arrow(rows: pl.DataFrame) -> pa.Table:
    """In types that DuckDB has. Times of day are microseconds there, as in other databases."""
    texts = [name for name, dtype in rows.schema.items() if isinstance(dtype, pl.Categorical | pl.Enum)]
    made = rows.with_columns(pl.col(texts).cast(pl.String)).to_arrow(compat_level=pl.CompatLevel.oldest())
    fields = [field.with_type(pa.time64("us")) if pa.types.is_time(field.type) else field for field in made.schema]
    return made.cast(pa.schema(fields), safe=False)


def _on_conflict(columns: Sequence[str], key: Sequence[str]) -> str:
    if not key:
        return ""
    others = [f"{quoted(name)} = excluded.{quoted(name)}" for name in columns if name not in key]
    action = f"DO UPDATE SET {', '.join(others)}" if others else "DO NOTHING"
    return f" ON CONFLICT ({', '.join(map(quoted, key))}) {action}"


def _check_unique(connection: DuckDBPyConnection, table: str, key: Sequence[str]) -> None:
    """Refuse a key that may be there twice."""
    found = connection.execute(
        "SELECT constraint_column_names FROM duckdb_constraints() WHERE table_name = ?"
        " AND constraint_type IN ('PRIMARY KEY', 'UNIQUE')",
        [table],
    ).fetchall()
    unique = [set(columns) for (columns,) in found]
    indexes = connection.execute("SELECT expressions FROM duckdb_indexes() WHERE table_name = ? AND is_unique", [table])
    unique += [
        {name.strip().strip("'").strip('"') for name in text.strip("[]").split(",")} for (text,) in indexes.fetchall()
    ]
    if set(key) not in unique:
        names = ", ".join(key)
        raise DeclarationError(
            f"table '{table}' has no unique index on ({names}), which updates by key need",
            cure=f"CREATE UNIQUE INDEX by_key ON {table} ({names}), or give the key that the table has",
        )
