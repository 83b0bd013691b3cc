"""How rows get into a table of a database: all of an epoch at once, by the fastest way that the database has.

PostgreSQL takes them by COPY, SQLite as tuples of prepared statements; any other database gets what SQLAlchemy makes of
rows. With a key a row takes the place of the one with the same key: in PostgreSQL rows are copied into a temporary
table first, from which one statement inserts or updates.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import polars as pl
import sqlalchemy as sa

from holdfast.connect.sinks.postgres_copy import binary_rows, csv_rows, fits_binary
from holdfast.errors import DeclarationError

__all__ = ["TableWriter", "check_unique", "table_writer"]

_COPIED = "holdfast_copied_rows"
_UPSERTS = ("postgresql", "sqlite")


class TableWriter(Protocol):
    """Writes rows in a transaction that is open."""

    def write(self, connection: sa.Connection, rows: pl.DataFrame) -> None: ...


def table_writer(engine: sa.Engine, table: sa.Table, key: Sequence[str]) -> TableWriter:
    """For the table as it is in the database."""
    quote = engine.dialect.identifier_preparer.quote
    if engine.dialect.name == "postgresql" and engine.dialect.driver == "psycopg":
        statement = _Statement(quote(table.name), [quote(column.name) for column in table.columns], [*map(quote, key)])
        return _PostgresWriter(statement, _types(engine, quote(table.name)), key)
    if engine.dialect.name == "sqlite":
        statement = _Statement(quote(table.name), [quote(column.name) for column in table.columns], [*map(quote, key)])
        return _SqliteWriter(statement, key)
    if key:
        raise DeclarationError(
            f"rows cannot be updated by key in {engine.dialect.name} with the driver '{engine.dialect.driver}'",
            cure=f"use {' or '.join(_UPSERTS)} (postgresql://...), or leave key out",
        )
    return _RowWriter(table)


def check_unique(engine: sa.Engine, table: str, key: Sequence[str]) -> None:
    """Refuse a key that may be there twice: the database would not know which row to update."""
    if not key:
        return
    look = sa.inspect(engine)
    unique: list[Sequence[str | None]] = [look.get_pk_constraint(table)["constrained_columns"]]
    unique += [found["column_names"] for found in look.get_unique_constraints(table)]
    unique += [found["column_names"] for found in look.get_indexes(table) if found["unique"]]
    if not any(set(columns) == set(key) for columns in unique):
        names = ", ".join(key)
        raise DeclarationError(
            f"table '{table}' has no unique index on ({names}), which updates by key need",
            cure=f"CREATE UNIQUE INDEX ON {table} ({names}), or give the key that the table has",
        )


def _last_of_each(rows: pl.DataFrame, key: Sequence[str]) -> pl.DataFrame:
    """Of several rows of an epoch with the same key the last one counts."""
    return rows.unique(subset=key, keep="last", maintain_order=True) if key else rows


@dataclass(frozen=True, slots=True)
class _Statement:
    """The parts of a statement, with their names quoted."""

    table: str
    columns: Sequence[str]
    key: Sequence[str]

    def listed(self) -> str:
        return ", ".join(self.columns)

    def on_conflict(self) -> str:
        if not self.key:
            return ""
        others = [f"{name} = excluded.{name}" for name in self.columns if name not in self.key]
        action = f"DO UPDATE SET {', '.join(others)}" if others else "DO NOTHING"
        return f" ON CONFLICT ({', '.join(self.key)}) {action}"


@dataclass(frozen=True, slots=True)
class _PostgresWriter:
    statement: _Statement
    types: dict[str, str]
    key: Sequence[str] = field(default=())

    def write(self, connection: sa.Connection, rows: pl.DataFrame) -> None:
        statement, rows = self.statement, self._in_utc(_last_of_each(rows, self.key))
        if not self.key:
            self._copy(connection, statement.table, rows)
            return
        connection.exec_driver_sql(
            f"CREATE TEMPORARY TABLE {_COPIED} ON COMMIT DROP AS"
            f" SELECT {statement.listed()} FROM {statement.table} WITH NO DATA"
        )
        self._copy(connection, _COPIED, rows)
        # In one order, so that two writers that update the same rows do not wait for each other.
        connection.exec_driver_sql(
            f"INSERT INTO {statement.table} ({statement.listed()}) SELECT {statement.listed()} FROM {_COPIED}"
            f" ORDER BY {', '.join(statement.key)}{statement.on_conflict()}"
        )
        connection.exec_driver_sql(f"DROP TABLE {_COPIED}")

    def _copy(self, connection: sa.Connection, into: str, rows: pl.DataFrame) -> None:
        binary = fits_binary(rows.schema, self.types)
        how = "FORMAT binary" if binary else "FORMAT csv, NULL '\\N'"
        pieces = binary_rows(rows, self.types) if binary else csv_rows(rows)
        driver = connection.connection.driver_connection
        assert driver is not None
        with (
            driver.cursor() as cursor,
            cursor.copy(f"COPY {into} ({self.statement.listed()}) FROM STDIN ({how})") as copy,
        ):
            for piece in pieces:
                copy.write(piece)

    def _in_utc(self, rows: pl.DataFrame) -> pl.DataFrame:
        """Instants for columns that have no time zone are written as the time in UTC."""
        instants = [
            name
            for name, dtype in rows.schema.items()
            if isinstance(dtype, pl.Datetime) and dtype.time_zone is not None and self.types[name] == "timestamp"
        ]
        return rows.with_columns(pl.col(instants).dt.convert_time_zone("UTC").dt.replace_time_zone(None))


@dataclass(frozen=True, slots=True)
class _SqliteWriter:
    statement: _Statement
    key: Sequence[str]

    def write(self, connection: sa.Connection, rows: pl.DataFrame) -> None:
        marks = ", ".join("?" for _ in self.statement.columns)
        into = f"INSERT INTO {self.statement.table} ({self.statement.listed()}) VALUES ({marks})"
        values = _last_of_each(rows, self.key).select(_as_sqlite(name, dtype) for name, dtype in rows.schema.items())
        connection.exec_driver_sql(f"{into}{self.statement.on_conflict()}", values.rows())


def _as_sqlite(name: str, dtype: pl.DataType) -> pl.Expr:
    """Values as SQLAlchemy writes them: SQLite has no times, and they must compare as those that are there."""
    column = pl.col(name)
    if isinstance(dtype, pl.Datetime):
        return column.dt.to_string("%Y-%m-%d %H:%M:%S%.6f")
    if isinstance(dtype, pl.Date):
        return column.dt.to_string("%Y-%m-%d")
    if isinstance(dtype, pl.Time):
        return column.dt.to_string("%H:%M:%S%.6f")
    return column.cast(pl.Int8) if isinstance(dtype, pl.Boolean) else column


@dataclass(frozen=True, slots=True)
class _RowWriter:
    table: sa.Table

    def write(self, connection: sa.Connection, rows: pl.DataFrame) -> None:
        connection.execute(self.table.insert(), rows.to_dicts())


def _types(engine: sa.Engine, table: str) -> dict[str, str]:
    """PostgreSQL's own names of the types of columns."""
    query = sa.text(
        "SELECT a.attname, t.typname FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid"
        " WHERE a.attrelid = CAST(:name AS regclass) AND a.attnum > 0 AND NOT a.attisdropped"
    )
    with engine.connect() as connection:
        return {str(name): str(kind) for name, kind in connection.execute(query, {"name": table})}
