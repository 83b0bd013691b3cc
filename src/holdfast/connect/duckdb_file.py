"""A DuckDB file, open only while something is read from it or written to it.

A process that has the file open for writing keeps all others out. So it is opened for a moment each time, and whoever
finds it in use waits for a while. That makes it possible for hosts, tasks and other programs to share it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import sqlalchemy as sa

from holdfast.connect.extra_library import require_library
from holdfast.errors import DeclarationError

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

__all__ = ["duckdb_path", "is_duckdb", "opened_duckdb", "quoted"]

_PATIENCE_SECONDS = 30.0
_AGAIN_SECONDS = 0.02


def is_duckdb(url: sa.URL) -> bool:
    return url.drivername == "duckdb"


def duckdb_path(url: sa.URL, by: str) -> str:
    """The file that a URL names; absolute, because tasks may run in another working directory than the driver."""
    require_library("duckdb", "duckdb", f"{by} with a URL of DuckDB")
    if not url.database or url.database == ":memory:" or url.host or url.query:
        raise DeclarationError(
            f"{by}: the URL of DuckDB does not name a file", cure="write it as in 'duckdb:///results.db'"
        )
    return os.path.abspath(url.database)


@contextmanager
def opened_duckdb(path: str, *, write: bool = False) -> Iterator[DuckDBPyConnection]:
    """Waits while another process has the file open. Raises DuckDB's errors."""
    import duckdb  # noqa: PLC0415 - an extra

    deadline = time.monotonic() + _PATIENCE_SECONDS
    while True:
        try:
            connection = duckdb.connect(path, read_only=not write)
            break
        except (duckdb.IOException, duckdb.ConnectionException) as error:
            in_use = "lock" in str(error) or isinstance(error, duckdb.ConnectionException)
            if not in_use or time.monotonic() > deadline:
                raise
        time.sleep(_AGAIN_SECONDS)
    try:
        # A time without a zone is one of UTC, wherever this runs.
        connection.execute("SET TimeZone = 'UTC'")
        yield connection
    finally:
        connection.close()


def quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
