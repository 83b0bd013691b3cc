"""Opening the database of the meta store: SQLite in a directory, or what a URL names."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy.exc import ArgumentError, NoSuchModuleError

from holdfast.database_url import parse_url, shown_url
from holdfast.errors import DeclarationError, HoldfastError, StoreBusyError, StoreFullError, UnknownStateError
from holdfast.meta.turns import Turns, turns_at
from holdfast.store import make_private

__all__ = ["BUSY_SECONDS", "FILE", "OpenedDatabase", "check_exists", "open_engine"]

FILE = "meta.db"

BUSY_SECONDS = 10.0
"""How long a lock of another process is waited for, where no lease says how long that makes sense."""
_LOOK_AGAIN_SECONDS, _LOOKED_SECONDS = 0.0002, 0.008
"""A lock of another process is gone within a millisecond or two. SQLite looks again after 1, 3 and 8 ms, and then less
and less often; so it is asked again, and the asking thread looks at the clock after some milliseconds."""
# SQLite tells a full disk from other faults, but not an exceeded quota or size limit: those are failed writes to it.
_SQLITE_NO_SPACE = frozenset({sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR_WRITE, sqlite3.SQLITE_IOERR_SHMSIZE})
_POSTGRESQL_NO_SPACE = "53100"


@dataclass(frozen=True, slots=True)
class OpenedDatabase:
    """`patience` is for how many seconds to try again to connect to a database that was there and is away. Where there
    are `turns`, writers take them."""

    engine: sa.Engine
    patience: float = 0.0
    turns: Turns | None = None


def check_exists(where: Path | str) -> None:
    """Refuse a directory without a store. Whether there is one in a database, only its tables can tell."""
    if isinstance(where, Path) and not (where / FILE).exists():
        raise UnknownStateError(f"there is no store at {where}", cure="give the store of a run with --store")


def open_engine(where: Path | str, sync: bool, *, reads_only: bool = False) -> OpenedDatabase:
    """Open the database. With `reads_only` nothing is made, and the database itself refuses whatever would change
    it."""
    if isinstance(where, Path):
        if reads_only:
            check_exists(where)
        make_private(where)
        _make_own(where / FILE)
        where = f"sqlite:///{where / FILE}"
    patience, turns = 0.0, None
    try:
        url = parse_url(where, "the meta store", "postgresql://user@host/database")
        kind = url.get_backend_name()
        if kind == "postgresql":
            engine, patience = _postgresql(url, sync)
            engine = engine.execution_options(postgresql_readonly=True) if reads_only else engine
        elif kind == "sqlite":
            engine = sa.create_engine(url)
            sa.event.listen(engine, "connect", partial(_prepare_sqlite, sync, reads_only))
            sa.event.listen(engine, "begin", partial(_begin_sqlite, sync))
            turns = turns_at(Path(url.database)) if url.database else None
        else:
            raise DeclarationError(f"the meta store cannot be in {kind}", cure="give a postgresql:// URL, or none")
    except (ArgumentError, NoSuchModuleError):
        raise DeclarationError(
            "the meta store cannot be in such a database", cure="give a postgresql:// URL, or none"
        ) from None
    sa.event.listen(engine, "handle_error", _name_faults)
    return OpenedDatabase(engine, patience, turns)


def _make_own(path: Path) -> None:
    """A new database is its owner's alone, unless others may write where it lies: then it is shared on purpose."""
    shared = path.parent.stat().st_mode & 0o022
    if not shared and not path.exists():
        with contextlib.suppress(FileExistsError):
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))


def _postgresql(url: sa.URL, sync: bool) -> tuple[sa.Engine, float]:
    try:
        from holdfast.meta.postgresql import open_postgresql  # noqa: PLC0415 - its driver is optional
    except ImportError as error:
        raise HoldfastError(
            f"the meta store is in PostgreSQL, and its driver cannot be used: {error}",
            cure="pip install 'holdfast[postgresql]'",
        ) from error
    return open_postgresql(url, sync)


def _prepare_sqlite(sync: bool, reads_only: bool, connection: Any, _: object) -> None:
    # The driver of the standard library commits tables as they are made, unless transactions are left to us.
    connection.isolation_level = None
    cursor = connection.cursor()
    cursor.execute(_wait(BUSY_SECONDS))
    if reads_only:
        cursor.execute("PRAGMA query_only=ON")
    else:
        _use_wal(cursor)
        cursor.execute(_SYNCHRONOUS[sync, True])
    cursor.close()


_SYNCHRONOUS = {
    (sync, now): f"PRAGMA synchronous={('FULL' if now else 'NORMAL') if sync else 'OFF'}"
    for sync in (True, False)
    for now in (True, False)
}
"""NORMAL leaves what is written in the log, in its order: the next transaction that is synced syncs it, too."""


def _begin_sqlite(sync: bool, connection: sa.Connection) -> None:
    """Writers take their turn before they read: a reader that turns writer may find that it is too late."""
    options = connection.get_execution_options()
    if not options.get("holdfast_writes"):
        connection.exec_driver_sql("BEGIN")
        return
    if options.get("holdfast_waits"):
        connection.exec_driver_sql("BEGIN IMMEDIATE")
        return
    # By the driver itself, as every transaction does it; what goes wrong shows at the next try.
    driver: Any = connection.connection.dbapi_connection
    driver.execute(_SYNCHRONOUS[sync, options.get("holdfast_syncs", True)]).close()
    driver.execute(_wait(0)).close()
    try:
        if not _begins_soon(driver):
            connection.exec_driver_sql("BEGIN IMMEDIATE")
    finally:
        driver.execute(_wait(BUSY_SECONDS)).close()


def _begins_soon(driver: sqlite3.Connection) -> bool:
    deadline = time.monotonic() + _LOOKED_SECONDS
    while True:
        try:
            driver.execute("BEGIN IMMEDIATE").close()
            return True
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() >= deadline:
                return False
        time.sleep(_LOOK_AGAIN_SECONDS)


def _wait(seconds: float) -> str:
    return f"PRAGMA busy_timeout={int(seconds * 1000)}"


def _use_wal(cursor: sqlite3.Cursor) -> None:
    """Switch to the write-ahead log. SQLite does not wait when another process is just doing the same."""
    deadline = time.monotonic() + BUSY_SECONDS
    while True:
        try:
            cursor.execute("PRAGMA journal_mode=WAL")
            return
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                raise
            time.sleep(0.01)


def _name_faults(context: sa.engine.ExceptionContext) -> HoldfastError | None:
    """Whatever statement fails, a full disk and a locked database are reported as such."""
    error: Any = context.original_exception
    code = getattr(error, "sqlite_errorcode", None)
    place = shown_url(context.engine.url) if context.engine is not None else "the database"
    if code is not None and code & 0xFF == sqlite3.SQLITE_BUSY:  # there are several kinds of it
        return StoreBusyError(
            f"another process locks the meta store {place}: {error}",
            cure="end the process that has it open, e.g. a backup or a shell, then start again: nothing that was"
            " committed is lost",
        )
    if code not in _SQLITE_NO_SPACE and getattr(error, "sqlstate", None) != _POSTGRESQL_NO_SPACE:
        return None
    return StoreFullError(
        f"cannot write the meta store {place}: {error}",
        cure="free space or raise the quota of the file system that holds it, then start the pipeline again: it"
        " resumes from the last committed epoch",
    )
