"""Opening the database of the meta store: SQLite in a directory, or what a URL names."""

from __future__ import annotations

import sqlite3
import time
from functools import partial
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy.exc import ArgumentError, NoSuchModuleError

from holdfast.database_url import parse_url, shown_url
from holdfast.errors import DeclarationError, HoldfastError, StoreFullError
from holdfast.store import make_private

__all__ = ["open_engine"]

_PATIENCE_SECONDS = 10.0
# SQLite tells a full disk from other faults, but not an exceeded quota or size limit: those are failed writes to it.
_SQLITE_NO_SPACE = frozenset({sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR_WRITE, sqlite3.SQLITE_IOERR_SHMSIZE})
_POSTGRESQL_NO_SPACE = "53100"


def open_engine(where: Path | str, sync: bool) -> tuple[sa.Engine, float]:
    """The engine, and for how many seconds to try again to connect to a database that was there and is away."""
    if isinstance(where, Path):
        make_private(where)
        where = f"sqlite:///{where / 'meta.db'}"
    patience = 0.0
    try:
        url = parse_url(where, "the meta store", "postgresql://user@host/database")
        kind = url.get_backend_name()
        if kind == "postgresql":
            engine, patience = _postgresql(url, sync)
        elif kind == "sqlite":
            engine = sa.create_engine(url)
            sa.event.listen(engine, "connect", partial(_prepare_sqlite, sync))
            sa.event.listen(engine, "begin", _begin_sqlite)
        else:
            raise DeclarationError(f"the meta store cannot be in {kind}", cure="give a postgresql:// URL, or none")
    except (ArgumentError, NoSuchModuleError):
        raise DeclarationError(
            "the meta store cannot be in such a database", cure="give a postgresql:// URL, or none"
        ) from None
    sa.event.listen(engine, "handle_error", _name_full_disk)
    return engine, patience


def _postgresql(url: sa.URL, sync: bool) -> tuple[sa.Engine, float]:
    try:
        from holdfast.meta.postgresql import open_postgresql
    except ImportError as error:
        raise HoldfastError(
            f"the meta store is in PostgreSQL, and its driver cannot be used: {error}",
            cure="pip install 'holdfast[postgresql]'",
        ) from error
    return open_postgresql(url, sync)


def _prepare_sqlite(sync: bool, connection: Any, _: object) -> None:
    # The driver of the standard library commits tables as they are made, unless transactions are left to us.
    connection.isolation_level = None
    cursor = connection.cursor()
    cursor.execute(f"PRAGMA busy_timeout={int(_PATIENCE_SECONDS * 1000)}")
    _use_wal(cursor)
    cursor.execute(f"PRAGMA synchronous={'FULL' if sync else 'OFF'}")
    cursor.close()


def _begin_sqlite(connection: sa.Connection) -> None:
    """Writers take their turn before they read: a reader that turns writer may find that it is too late."""
    writes = connection.get_execution_options().get("holdfast_writes")
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")


def _use_wal(cursor: sqlite3.Cursor) -> None:
    """Switch to the write-ahead log. SQLite does not wait when another process is just doing the same."""
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while True:
        try:
            cursor.execute("PRAGMA journal_mode=WAL")
            return
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                raise
            time.sleep(0.01)


def _name_full_disk(context: sa.engine.ExceptionContext) -> StoreFullError | None:
    """Whatever statement fails, a full disk is told as such."""
    error: Any = context.original_exception
    code = getattr(error, "sqlite_errorcode", None)
    if code not in _SQLITE_NO_SPACE and getattr(error, "sqlstate", None) != _POSTGRESQL_NO_SPACE:
        return None
    place = shown_url(context.engine.url) if context.engine is not None else "the database"
    return StoreFullError(
        f"cannot write the meta store {place}: {error}",
        cure="free space or raise the quota of the file system that holds it, then start the pipeline again: it goes"
        " on from the last committed epoch",
    )
