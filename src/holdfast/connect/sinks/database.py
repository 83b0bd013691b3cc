"""A transactional sink: rows go into a table of a SQL database, exactly once.

The rows of an epoch, the epoch's number and the vector of source positions they depend on are written in one
transaction of that database. After a replay the sink knows by them what it has already. Rows come through the driver;
`table_writer.py` has the ways in which they get into the table.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import polars as pl
import sqlalchemy as sa
from sqlalchemy.exc import IntegrityError, SQLAlchemyError

from holdfast.connect.base import DriverSink, Owner, Position
from holdfast.connect.database_engine import open_engine
from holdfast.connect.duckdb_file import duckdb_path, is_duckdb
from holdfast.connect.extra_library import require_library
from holdfast.connect.sinks.delivery_progress import PROGRESS_TABLE, DeliveryProgress, progress_of
from holdfast.connect.sinks.duckdb_sink import DuckdbSink
from holdfast.connect.sinks.table_writer import TableWriter, check_unique, table_writer
from holdfast.database_url import parse_url, shown_url
from holdfast.errors import DeclarationError, OperatorError

__all__ = ["DatabaseSink", "database"]


class _OutrunError(Exception):
    """Another process has delivered meanwhile."""


@dataclass(slots=True)
class DatabaseSink(DriverSink):
    """See `database`."""

    url: str = field(repr=False)
    table: str
    writer: str | None
    key: tuple[str, ...] = ()
    guarantee: str = field(
        default="exactly once: rows, epoch and the vector of source positions are one transaction of the database",
        init=False,
    )
    _owner: Owner | None = field(default=None, init=False, repr=False)
    _engine: sa.Engine | None = field(default=None, init=False, repr=False)
    _rows: sa.Table | None = field(default=None, init=False, repr=False)
    _progress: sa.Table | None = field(default=None, init=False, repr=False)
    _into: TableWriter | None = field(default=None, init=False, repr=False)

    @property
    def place(self) -> str | None:
        """By default a writer has the name of its sink, which no other sink has."""
        return None if self.writer is None else f"writer '{self.writer}' of {self._safe_url()}"

    def accept(self, schema: pl.Schema) -> None:
        for name, dtype in schema.items():
            _sql_type(self.table, name, dtype)
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
        """Open the database, and make the tables if they are not there."""
        self._rows, self._progress = _tables(self.table, tuple(schema.items()), self.key)
        try:
            self._engine = open_engine(self.url)
            with self._engine.begin() as connection:
                self._rows.metadata.create_all(connection)
                _add_store(connection)
                known = {column["name"] for column in sa.inspect(connection).get_columns(self.table)}
        except (SQLAlchemyError, ImportError) as error:
            raise OperatorError(
                f"cannot open table '{self.table}': {getattr(error, 'orig', None) or error}",
                cure="check that the URL is correct, its driver is installed, and this user may create tables",
            ) from error
        missing = [name for name in schema if name not in known]
        if missing:
            raise DeclarationError(
                f"table '{self.table}' has no column '{missing[0]}'",
                cure="choose another table, or add the column to it",
            )
        check_unique(self._engine, self.table, self.key)
        self._into = table_writer(self._engine, self._rows, self.key)

    def check(self, committed: int) -> None:
        """Refuse a database that is ahead: it holds results of another history of the pipeline."""
        known = self._known()
        if known is not None:
            known.check_ahead(committed)

    def _known(self) -> DeliveryProgress | None:
        """How far this writer has come."""
        assert self._engine is not None
        assert self._progress is not None
        assert self._owner is not None
        query = sa.select(self._progress).where(self._progress.c.writer == self._writer)
        with self._engine.connect() as connection:
            row = connection.execute(query).one_or_none()
        found = None if row is None else (row.epoch, row.vector, row.store)
        return progress_of(self.table, self._writer, self._safe_url(), found, self._owner.store)

    def delivered(self) -> int | None:
        known = self._known()
        return None if known is None else known.epoch

    def deliver(self, epoch: int, rows: pl.DataFrame, vector: Mapping[str, Position]) -> None:
        """Write an epoch, unless it is there."""
        assert self._engine is not None
        assert self._into is not None
        known = self._known()
        text = json.dumps(vector)
        if known is not None and known.has(epoch, json.loads(text)):
            return
        assert self._owner is not None
        values = {"writer": self._writer, "epoch": epoch, "vector": text, "store": self._owner.store}
        try:
            with self._engine.begin() as connection:
                self._advance(connection, known, values)
                if rows.height:
                    self._into.write(connection, rows)
        except (_OutrunError, IntegrityError):
            if self._known() == known:
                raise
            self.deliver(epoch, rows, vector)  # another host was first: it has brought the same rows

    def _advance(self, connection: sa.Connection, known: DeliveryProgress | None, values: Mapping[str, Any]) -> None:
        """Say how far it is, if nobody else has done so meanwhile."""
        assert self._progress is not None
        if known is None:
            connection.execute(self._progress.insert().values(values))
            return
        mine = (self._progress.c.writer == self._writer, self._progress.c.epoch == known.epoch)
        if connection.execute(self._progress.update().where(*mine).values(values)).rowcount != 1:
            raise _OutrunError

    def describe(self) -> str:
        return f"table {self.table} of {self._safe_url()}"

    def _safe_url(self) -> str:
        return shown_url(sa.make_url(self.url))


def database(
    url: str, table: str, *, key: str | Sequence[str] = (), writer: str | None = None
) -> DatabaseSink | DuckdbSink:
    """Write rows into a table of a SQL database, given as an SQLAlchemy URL, exactly once: one transaction per epoch.

    Rows are inserted. With a `key`, the names of one or several columns, a row takes the place of the one with the same
    key, if there is one; of several rows of an epoch the last one counts. PostgreSQL gets rows by COPY, DuckDB (a file,
    "duckdb:///results.db") as Arrow. The table is made if it is not there, with the key as its primary key. `writer`
    tells apart those who write to the same table; by default it is the name of fragment and sink. How far each has come
    is in the table `holdfast_progress`, with the vector of source positions. A PostgreSQL that gives no answer for 5
    minutes, or for the seconds that `timeout=` in the URL says, ends the run with an error.
    """
    found = parse_url(url, "the database", "'postgresql://user@host/database' or 'sqlite:///results.db'")
    if found.drivername in ("postgresql", "postgresql+psycopg"):
        require_library("psycopg", "postgresql", "hf.sink.database() with a URL of PostgreSQL")
    if not table:
        raise DeclarationError("database: the table has no name", cure="name the table to write to")
    keys = (key,) if isinstance(key, str) else tuple(key)
    if is_duckdb(found):
        return DuckdbSink(duckdb_path(found, "hf.sink.database()"), table, writer, keys)
    return DatabaseSink(url, table, writer, keys)


@lru_cache(maxsize=64)
def _tables(table: str, schema: tuple[tuple[str, pl.DataType], ...], key: tuple[str, ...]) -> tuple[sa.Table, sa.Table]:
    """The table of the rows and that of the progress. Each is there once: statements are compiled anew for another."""
    metadata = sa.MetaData()
    columns = [
        sa.Column(name, _sql_type(table, name, dtype), primary_key=name in key, autoincrement=False)
        for name, dtype in schema
    ]
    rows = sa.Table(table, metadata, *columns)
    progress = sa.Table(
        PROGRESS_TABLE,
        metadata,
        sa.Column("writer", sa.String(255), primary_key=True),
        sa.Column("epoch", sa.BigInteger, nullable=False),
        sa.Column("vector", sa.Text, nullable=False),
        sa.Column("store", sa.String(64)),
    )
    return rows, progress


def _add_store(connection: sa.Connection) -> None:
    """Version 0.1 did not note which store a writer is of."""
    columns = {column["name"] for column in sa.inspect(connection).get_columns(PROGRESS_TABLE)}
    if "store" not in columns:
        connection.execute(sa.text(f"ALTER TABLE {PROGRESS_TABLE} ADD COLUMN store VARCHAR(64)"))


_TYPES: dict[type[pl.DataType], type[sa.types.TypeEngine[Any]]] = {
    pl.String: sa.Text,
    pl.Boolean: sa.Boolean,
    pl.Date: sa.Date,
    pl.Time: sa.Time,
    pl.Binary: sa.LargeBinary,
}


def _sql_type(table: str, name: str, dtype: pl.DataType) -> sa.types.TypeEngine[Any]:
    if dtype.is_integer():
        return sa.BigInteger()
    if dtype.is_float():
        return sa.Double()
    if isinstance(dtype, pl.Datetime):
        return sa.DateTime(timezone=dtype.time_zone is not None)
    for kind, made in _TYPES.items():
        if isinstance(dtype, kind):
            return made()
    raise DeclarationError(
        f"column '{name}' for table '{table}' is {dtype}, which no SQL type can hold",
        cure="cast it before the sink, e.g. lists to strings",
    )
