"""A backup of the meta store: all its tables in one SQLite file, as they are in one transaction.

The file is a whole meta store of the version it was made from: that version of Holdfast opens it with
`--meta sqlite:///FILE`, or, where the meta store is SQLite in the store's directory, in place of `meta.db`. It is
written next to its final name, synced and checked, and renamed last.
"""

from __future__ import annotations

import os
import sqlite3
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from holdfast.errors import CorruptFileError
from holdfast.meta.sql_tables import metadata
from holdfast.store import Private, full_disk_named, make_directories, remove_files, sync_directory

__all__ = ["write_backup"]

_AT_ONCE = 1_000


def write_backup(connection: sa.Connection, directory: Path, version: int, now: float) -> Path:
    """Copy the store. The transaction has written nothing yet, and no other process writes until it ends."""
    made = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(now))
    target = directory / f"meta-{version}-{made}.db"
    draft = target.with_name(f".{target.name}.{os.getpid()}")
    make_directories(directory)
    with full_disk_named(draft):
        os.close(os.open(draft, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        try:
            if connection.dialect.name == "sqlite":
                _copy_file(connection, draft)
            else:
                _copy_tables(connection, draft)
            _check(connection, draft)
            os.link(draft, target)  # fails where the name is taken
        finally:
            remove_files([draft], Private("a draft, or another name of what is finished"))
        sync_directory(directory)
    return target


def _copy_file(connection: sa.Connection, path: Path) -> None:
    # By a connection of its own, since the one of the transaction is busy with that.
    with closing(_opened(str(connection.engine.url.database))) as source, closing(_opened(path)) as target:
        source.backup(target)
        target.execute("PRAGMA journal_mode=DELETE")  # one file, without a separate log


def _copy_tables(connection: sa.Connection, path: Path) -> None:
    there = sa.MetaData()
    sa.event.listen(there, "column_reflect", _plainly)
    known = [name for name in sa.inspect(connection).get_table_names() if name in metadata.tables]
    there.reflect(connection, only=known)
    copy = sa.create_engine(f"sqlite:///{path}")
    try:
        with copy.begin() as writing:
            there.create_all(writing)
            for table in there.sorted_tables:
                for rows in connection.execute(sa.select(table)).mappings().partitions(_AT_ONCE):
                    writing.execute(table.insert(), [dict(row) for row in rows])
    finally:
        copy.dispose()


def _plainly(inspector: object, table: object, column: dict[str, Any]) -> None:
    """Columns without what only their own kind of database knows."""
    column["type"] = column["type"].as_generic()
    column["default"] = None


def _check(connection: sa.Connection, path: Path) -> None:
    """The copy is sound, and has all rows."""
    with closing(_opened(path)) as copy:
        said = copy.execute("PRAGMA integrity_check").fetchone()[0]
        for (name,) in copy.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall():
            counted = copy.execute(f"SELECT count(*) FROM {name}").fetchone()[0]
            if counted != connection.execute(sa.text(f"SELECT count(*) FROM {name}")).scalar_one():
                said = f"rows of {name} are missing"
    if said != "ok":
        raise CorruptFileError(
            f"the backup of the meta store in {path.parent} is damaged: {said}",
            cure="check the disk, then upgrade again; nothing was changed",
        )
    with path.open("rb") as file:
        os.fsync(file.fileno())


def _opened(path: Path | str) -> sqlite3.Connection:
    return sqlite3.connect(path, isolation_level=None)
