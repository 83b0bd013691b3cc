"""Meta stores that cost little to open: SQLite databases, one after the other, through one engine.

An engine of SQLAlchemy keeps the statements that it has compiled, and the database of a new store is a copy of an empty
one; otherwise both take longer than a short run. What is done with the database is what is always done.
"""

from __future__ import annotations

import atexit
import shutil
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from holdfast.meta import MetaStore
from holdfast.meta.engine import FILE, open_engine

MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None
"""A directory in memory, where there is one."""


@lru_cache(1)
def _empty() -> Path:
    """The database of a store without anything in it."""
    place = Path(tempfile.mkdtemp(prefix="hf-empty-", dir=MEMORY))
    atexit.register(shutil.rmtree, place, ignore_errors=True)
    MetaStore(place, sync=False).close()
    return place / FILE


class _Engine:
    """`path` is the database that is opened next."""

    def __init__(self) -> None:
        self.path = _empty()
        self.opened = open_engine(f"sqlite:///{self.path}", sync=False)
        sa.event.listen(self.opened.engine, "do_connect", self._connect)

    def _connect(self, dialect: Any, record: Any, positional: list[Any], named: dict[str, Any]) -> sqlite3.Connection:
        connection: sqlite3.Connection = sqlite3.connect(self.path, **named)
        return connection


_idle: list[_Engine] = []


class QuickStore:
    """A directory for a store, in memory. Its meta store may be opened any number of times."""

    def __init__(self, root: Path, engine: _Engine) -> None:
        self.root = root
        self._engine = engine

    def meta(self) -> MetaStore:
        return MetaStore(self._engine.opened)


@contextmanager
def quick_store() -> Iterator[QuickStore]:
    """It is gone in the end."""
    with tempfile.TemporaryDirectory(prefix="hf-", dir=MEMORY) as directory:
        engine = _idle.pop() if _idle else _Engine()
        engine.path = Path(directory) / FILE
        shutil.copy(_empty(), engine.path)
        try:
            yield QuickStore(Path(directory), engine)
        finally:
            engine.opened.engine.dispose()
            _idle.append(engine)
