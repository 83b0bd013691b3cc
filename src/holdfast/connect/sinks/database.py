"""A transactional sink: rows go into a table of a SQL database, exactly once.

The rows of an epoch, the epoch's number and the vector of source positions they depend on are written in one
transaction of that database. After a replay the sink knows by them what it has already. Rows come through the driver,
so this is for results that are small; for bulk output use the file sinks.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import polars as pl
import sqlalchemy as sa
from sqlalchemy.exc import IntegrityError, SQLAlchemyError

from holdfast.connect.base import DriverSink, Owner, Position
from holdfast.database_url import parse_url, shown_url
from holdfast.errors import DeclarationError, OperatorError, OutputConflictError

__all__ = ["DatabaseSink", "database"]

_PROGRESS = "holdfast_progress"
_CURE = f"give another writer=..., write to another database, or remove the rows and the entry in {_PROGRESS}"


class _OutrunError(Exception):
    """Another process has delivered meanwhile."""


@dataclass(slots=True)
class DatabaseSink(DriverSink):
    """See `database`."""

    url: str = field(repr=False)
    table: str
    writer: str | None
    guarantee: str = field(
        default="exactly once: rows, epoch and the vector of source positions are one transaction of the database",
        init=False,
    )
    _owner: Owner | None = field(default=None, init=False, repr=False)
    _engine: sa.Engine | None = field(default=None, init=False, repr=False)
    _rows: sa.Table | None = field(default=None, init=False, repr=False)
    _progress: sa.Table | None = field(default=None, init=False, repr=False)

    @property
    def place(self) -> str | None:
        """By default a writer has the name of its sink, which no other sink has."""
        return None if self.writer is None else f"writer '{self.writer}' of {self._safe_url()}"

    def attach(self, owner: Owner) -> None:
        self._owner = owner

    @property
    def _writer(self) -> str:
        assert self._owner is not None
        return self.writer or f"{self._owner.pipeline}.{self._owner.sink}"

    def bind(self, schema: pl.Schema) -> None:
        """Open the database, and make the tables if they are not there."""
        metadata = sa.MetaData()
        columns = [sa.Column(name, _sql_type(self.table, name, dtype)) for name, dtype in schema.items()]
        self._rows = sa.Table(self.table, metadata, *columns)
        self._progress = sa.Table(
            _PROGRESS,
            metadata,
            sa.Column("writer", sa.String(255), primary_key=True),
            sa.Column("epoch", sa.BigInteger, nullable=False),
            sa.Column("vector", sa.Text, nullable=False),
            sa.Column("store", sa.String(64)),
        )
        try:
            self._engine = sa.create_engine(self.url)
            metadata.create_all(self._engine)
            _add_store(self._engine)
            known = {column["name"] for column in sa.inspect(self._engine).get_columns(self.table)}
        except (SQLAlchemyError, ImportError) as error:
            raise OperatorError(
                f"cannot open table '{self.table}': {getattr(error, 'orig', None) or error}",
                cure="see that the URL is right, its driver installed, and that this user may make tables",
            ) from error
        missing = [name for name in schema if name not in known]
        if missing:
            raise DeclarationError(
                f"table '{self.table}' has no column '{missing[0]}'",
                cure="choose another table, or add the column to it",
            )

    def check(self, committed: int) -> None:
        """Refuse a database that is ahead: it holds results of another history of the pipeline."""
        known = self._known()
        if known is not None and known[0] > committed + 1:
            raise OutputConflictError(
                f"table '{self.table}' has results up to epoch {known[0]} by '{self._writer}'; this store has committed"
                f" {committed}",
                cure=_CURE,
            )

    def _known(self) -> tuple[int, Mapping[str, Any]] | None:
        """How far this writer has come. What another store has written under its name is refused: its epochs have the
        same numbers and other rows."""
        assert self._engine is not None
        assert self._progress is not None
        assert self._owner is not None
        query = sa.select(self._progress).where(self._progress.c.writer == self._writer)
        with self._engine.connect() as connection:
            row = connection.execute(query).one_or_none()
        if row is not None and row.store not in (None, self._owner.store):
            raise OutputConflictError(
                f"'{self._writer}' writes to {self._safe_url()} from store {row.store}; this is store"
                f" {self._owner.store}",
                cure=_CURE,
            )
        return None if row is None else (row.epoch, json.loads(row.vector))

    def delivered(self) -> int | None:
        known = self._known()
        return None if known is None else known[0]

    def deliver(self, epoch: int, rows: pl.DataFrame, vector: Mapping[str, Position]) -> None:
        """Write an epoch, unless it is there."""
        assert self._engine is not None
        assert self._rows is not None
        assert self._progress is not None
        known = self._known()
        said = json.loads(json.dumps(vector))
        if known is not None and epoch < known[0]:
            return  # another host of the pipeline is further; what is of another history was refused at the start
        if known is not None and epoch == known[0]:
            # It comes again, and then it depends on the same rows.
            if known != (epoch, said):
                raise OutputConflictError(
                    f"table '{self.table}' has epoch {known[0]} of '{self._writer}', which depends on {known[1]};"
                    f" epoch {epoch} depends on {said}",
                    cure="somebody else writes under this name: give another writer=..., or write to another table",
                )
            return
        assert self._owner is not None
        values = {"writer": self._writer, "epoch": epoch, "vector": json.dumps(said), "store": self._owner.store}
        try:
            with self._engine.begin() as connection:
                self._advance(connection, known, values)
                if rows.height:
                    connection.execute(self._rows.insert(), rows.to_dicts())
        except (_OutrunError, IntegrityError):
            if self._known() == known:
                raise
            self.deliver(epoch, rows, vector)  # another host was first: it has brought the same rows

    def _advance(
        self, connection: sa.Connection, known: tuple[int, Mapping[str, Any]] | None, values: Mapping[str, Any]
    ) -> None:
        """Say how far it is, if nobody else has done so meanwhile."""
        assert self._progress is not None
        if known is None:
            connection.execute(self._progress.insert().values(values))
            return
        mine = (self._progress.c.writer == self._writer, self._progress.c.epoch == known[0])
        if connection.execute(self._progress.update().where(*mine).values(values)).rowcount != 1:
            raise _OutrunError

    def describe(self) -> str:
        return f"table {self.table} of {self._safe_url()}"

    def _safe_url(self) -> str:
        return shown_url(sa.make_url(self.url))


def database(url: str, table: str, *, writer: str | None = None) -> DatabaseSink:
    """Write rows into a table of a SQL database, given as an SQLAlchemy URL, exactly once.

    The table is made if it is not there. `writer` tells apart those who write to the same table; by default it is the
    name of fragment and sink. How far each has come is in the table `holdfast_progress`, with the vector of source
    positions.
    """
    parse_url(url, "the database", "'postgresql://user@host/database' or 'sqlite:///results.db'")
    if not table:
        raise DeclarationError("database: the table has no name", cure="name the table to write to")
    return DatabaseSink(url, table, writer)


def _add_store(engine: sa.Engine) -> None:
    """Version 0.1 did not note which store a writer is of."""
    with engine.begin() as connection:
        columns = {column["name"] for column in sa.inspect(connection).get_columns(_PROGRESS)}
        if "store" not in columns:
            connection.execute(sa.text(f"ALTER TABLE {_PROGRESS} ADD COLUMN store VARCHAR(64)"))


_TYPES: dict[type[pl.DataType], type[sa.types.TypeEngine[Any]]] = {
    pl.String: sa.Text,
    pl.Boolean: sa.Boolean,
    pl.Date: sa.Date,
    pl.Datetime: sa.DateTime,
    pl.Time: sa.Time,
    pl.Binary: sa.LargeBinary,
}


def _sql_type(table: str, name: str, dtype: pl.DataType) -> sa.types.TypeEngine[Any]:
    if dtype.is_integer():
        return sa.BigInteger()
    if dtype.is_float():
        return sa.Double()
    for kind, made in _TYPES.items():
        if isinstance(dtype, kind):
            return made()
    raise DeclarationError(
        f"column '{name}' for table '{table}' is {dtype}, which no SQL type can hold",
        cure="cast it before the sink, e.g. lists to strings",
    )
