"""A table with a key that grows, as a source reads it: ranges of the key, and the rows in them.

What a database needs for that, apart from which one it is: `SqlTable` is any that SQLAlchemy knows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol

import polars as pl
import sqlalchemy as sa
from sqlalchemy.exc import SQLAlchemyError

from holdfast.connect.database_engine import open_engine
from holdfast.database_url import shown_url
from holdfast.errors import DeclarationError, InputError

__all__ = [
    "GrowingTable",
    "SqlTable",
    "TableReader",
    "missing_column",
    "no_whole_number",
    "reflected_table",
    "unreadable",
]

_CHUNK_ROWS = 50_000


class TableReader(Protocol):
    """Reads at one moment, while it is open."""

    def least(self) -> int | None: ...

    def greatest(self) -> int | None: ...

    def open_transactions(self) -> tuple[int | None, int | None]:
        """The oldest transaction that is open, and the first that has not begun, where the database can tell."""

    def piece(self, after: int | None, last: int, rows: int) -> tuple[int, int] | None:
        """The next rows: up to which key, and how many. Rows of the same key stay together."""

    def rows(self, columns: pl.Schema, after: int | None, until: int) -> Iterator[pl.DataFrame]:
        """In the order of the key. Raises what polars raises where values do not fit."""


class GrowingTable(Protocol):
    """Not open: it goes into tasks."""

    def reading(self) -> AbstractContextManager[TableReader]: ...

    def check(self, schema: pl.Schema) -> None:
        """Refuse a key or columns that the table has not."""


class SqlTable:
    """See `GrowingTable`."""

    def __init__(self, url: str, table: str, key: str) -> None:
        self._url = url
        self._table = table
        self._key = key
        self._opened: tuple[sa.Engine, sa.Table] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_opened": None}

    @contextmanager
    def reading(self) -> Iterator[TableReader]:
        engine, table = self._open()
        try:
            with engine.connect() as connection:
                yield _SqlReader(connection, table, table.c[self._key])
        except SQLAlchemyError as error:
            raise unreadable(self._table, getattr(error, "orig", None) or error) from error

    def check(self, schema: pl.Schema) -> None:
        table = self._open()[1]
        for name in (self._key, *schema):
            if name not in table.c:
                raise missing_column(self._table, name, [column.name for column in table.columns])
        if not isinstance(table.c[self._key].type, sa.Integer):
            raise no_whole_number(self._table, self._key, str(table.c[self._key].type))

    def _open(self) -> tuple[sa.Engine, sa.Table]:
        if self._opened is None:
            self._opened = reflected_table(self._url, self._table)
        return self._opened


class _SqlReader:
    def __init__(self, connection: sa.Connection, table: sa.Table, key: sa.Column[Any]) -> None:
        self._connection = connection
        self._table = table
        self._key = key

    def least(self) -> int | None:
        return self._end(sa.func.min)

    def greatest(self) -> int | None:
        return self._end(sa.func.max)

    def _end(self, which: Callable[[sa.Column[Any]], sa.ColumnElement[Any]]) -> int | None:
        found = self._connection.execute(sa.select(which(self._key))).scalar()
        return None if found is None else int(found)

    def open_transactions(self) -> tuple[int | None, int | None]:
        if self._connection.dialect.name != "postgresql":
            return None, None
        query = (
            "SELECT pg_snapshot_xmin(s)::text::bigint, pg_snapshot_xmax(s)::text::bigint FROM pg_current_snapshot() s"
        )
        oldest, ahead = self._connection.execute(sa.text(query)).one()
        return int(oldest), int(ahead)

    def piece(self, after: int | None, last: int, rows: int) -> tuple[int, int] | None:
        column = self._key
        within = [column <= last] if after is None else [column > after, column <= last]
        some = sa.select(column).where(*within).order_by(column).limit(rows).subquery()
        until = self._connection.execute(sa.select(sa.func.max(some.c[0]))).scalar()
        if until is None:
            return None
        within[-1] = column <= until
        return int(until), int(self._connection.execute(sa.select(sa.func.count()).where(*within)).scalar_one())

    def rows(self, columns: pl.Schema, after: int | None, until: int) -> Iterator[pl.DataFrame]:
        within = [self._key <= until] if after is None else [self._key <= until, self._key > after]
        query = sa.select(*(self._table.c[name] for name in columns)).where(*within).order_by(self._key)
        # In one transaction, so that all of it is of one moment; rows come as they are asked for.
        rows = self._connection.execution_options(yield_per=_CHUNK_ROWS).execute(query)
        for some in rows.partitions():
            yield pl.DataFrame([tuple(row) for row in some], schema=columns, orient="row")


def reflected_table(url: str, table: str, schema: str | None = None) -> tuple[sa.Engine, sa.Table]:
    """A table as the database describes it."""
    try:
        engine = open_engine(url)
        return engine, sa.Table(table, sa.MetaData(), schema=schema, autoload_with=engine)
    except (SQLAlchemyError, ImportError) as error:
        reason = (
            "it does not exist" if isinstance(error, sa.exc.NoSuchTableError) else getattr(error, "orig", None) or error
        )
        raise InputError(
            f"cannot read table '{table}' of {shown_url(sa.make_url(url))}: {reason}",
            cure="check that the URL is right, its driver installed, and that this user may read the table",
        ) from error


def unreadable(table: str, why: object) -> InputError:
    return InputError(
        f"cannot read table '{table}': {why}",
        cure="check that the database answers and that this user may read the table",
    )


def missing_column(table: str, name: str, there: list[str]) -> DeclarationError:
    return DeclarationError(
        f"database(): table '{table}' has no column '{name}'", cure=f"name some of {', '.join(there)}"
    )


def no_whole_number(table: str, key: str, kind: str) -> DeclarationError:
    return DeclarationError(
        f"database(): the key '{key}' of table '{table}' is {kind}, not a whole number",
        cure="give a column of growing whole numbers, e.g. one that the database increments",
    )
