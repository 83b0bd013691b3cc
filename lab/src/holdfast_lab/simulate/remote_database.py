"""A database behind a network that fails: the meta store's own code runs on it, as it does on PostgreSQL.

It is SQLite in memory. A transaction is done at one moment, as databases promise; before that moment it is on its way
and may be lost, after it the answer is, so that who asked cannot know whether it was done.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

import sqlalchemy as sa
from sqlalchemy.dialects import registry
from sqlalchemy.dialects.sqlite.pysqlite import SQLiteDialect_pysqlite
from sqlalchemy.pool import Pool, QueuePool

from holdfast.errors import StoreUnreachableError
from holdfast.meta import MetaStore
from holdfast.meta.engine import OpenedDatabase
from holdfast.meta.tables import info
from holdfast_lab.simulate.scheduler import Process, Scheduler, Task
from holdfast_lab.simulate.simulated_threads import SimulatedThreads

__all__ = ["RemoteDatabase"]

Place = Literal["meta", "sink"]

_PATIENCE_SECONDS = 5.0
_TRIP_SECONDS = 0.002
_POOL = 50
_template: bytes | None = None
"""An empty store, made once per process: making its tables takes longer than many a simulation."""


@dataclass(slots=True)
class RemoteDatabase:
    """`lost_requests` and `lost_answers` are how many of each that many transactions lose."""

    scheduler: Scheduler
    lost_requests: float = 0.0
    lost_answers: float = 0.0
    away_until: float = 0.0
    cut_off: dict[str, float] = field(default_factory=dict)
    """Hosts that do not reach it, until when."""
    transactions: int = 0
    doubts: int = 0
    """How many transactions were done and not answered."""
    on_commit: Callable[[Process], None] = lambda process: None
    """Called when a process has done a transaction, before anybody knows."""
    connection: sqlite3.Connection = field(init=False)

    def __post_init__(self) -> None:
        self.connection = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)

    def empty(self) -> None:
        """Make it an empty meta store."""
        self.connection.deserialize(_empty_store())

    def meta(self, threads: SimulatedThreads) -> MetaStore:
        """A meta store on it, as a process opens one."""
        _current["meta"] = self
        return MetaStore(OpenedDatabase(_engine(), _PATIENCE_SECONDS), clock=threads)

    def serve_sinks(self) -> str:
        """Have sinks find this database under a URL."""
        _current["sink"] = self
        return "sqlite+simulated://"

    def _is_away(self, task: Task) -> bool:
        now = self.scheduler.time
        return now < self.away_until or now < self.cut_off.get(task.process.host, 0.0)

    # the way there and back

    def reach(self) -> None:
        """The way of the first request."""
        task = self.scheduler.current
        if task is None:
            return
        self.scheduler.step("connect", _TRIP_SECONDS * self.scheduler.random.random())
        if self._is_away(task) or self.scheduler.random.random() < self.lost_requests:
            self.scheduler.step("no connection", 0.05)
            raise sqlite3.OperationalError("connection refused")

    def commit(self, connection: _Connection) -> None:
        task = connection.task
        if task is None:
            self.connection.execute("COMMIT")
            return
        draw = self.scheduler.random.random()
        if draw < self.lost_requests:
            self.connection.execute("ROLLBACK")
            connection.end()
            self.scheduler.step("request lost", 0.5)
            raise sqlite3.OperationalError("server closed the connection")
        self.connection.execute("COMMIT")
        self.transactions += 1
        self.on_commit(task.process)
        connection.end()
        if draw > 1 - self.lost_answers or self._is_away(task):
            self.doubts += 1
            self.scheduler.step("done, but the answer is lost", 0.5)
            raise sqlite3.OperationalError("server closed the connection")
        self.scheduler.step("done", _TRIP_SECONDS * self.scheduler.random.random())


class _Connection:
    """One connection of a process, as a driver gives it. All of them are the one connection to SQLite, since only one
    thread runs and gives way only between transactions."""

    __slots__ = ("_place", "_remote", "begun", "task")

    def __init__(self, place: Place) -> None:
        self.begun = False
        self.task: Task | None = None
        self._place = place
        self._remote = _current[place]

    def take(self) -> None:
        """Somebody begins to use it."""
        self.begun = False
        self._remote = _current[self._place]
        self._remote.reach()
        self.task = self._remote.scheduler.current

    def __getattr__(self, name: str) -> Any:
        return getattr(self._remote.connection, name)

    def cursor(self) -> sqlite3.Cursor:
        if not self.begun and self.task is not None:
            if not self.task.process.alive:
                raise sqlite3.OperationalError("the process is dead")
            self.begun = True
            self.task.busy += 1
        return self._remote.connection.cursor()

    def end(self) -> None:
        if self.begun and self.task is not None:
            self.begun = False
            self.task.busy -= 1

    def commit(self) -> None:
        if self._remote.connection.in_transaction and (self.task is None or self.begun):
            self._remote.commit(self)
        self.end()

    def rollback(self) -> None:
        if (self.begun or self.task is None) and self._remote.connection.in_transaction:
            self._remote.connection.execute("ROLLBACK")
        self.end()

    def close(self) -> None:
        self.end()


_current: dict[Place, RemoteDatabase] = {}
"""The databases of the simulation that runs now."""
_engines: list[sa.Engine] = []


def _engine() -> sa.Engine:
    """One engine for all simulations of this process: it knows statements that it has seen before."""
    if not _engines:
        engine = sa.create_engine(
            "sqlite://", creator=lambda: _Connection("meta"), poolclass=QueuePool, pool_size=_POOL, max_overflow=-1
        )
        _prepare(engine)
        sa.event.listen(engine, "handle_error", _name_lost_database)
        _engines.append(engine)
    return _engines[0]


def _prepare(engine: sa.Engine) -> None:
    sa.event.listen(engine, "checkout", lambda connection, *_: connection.take())
    sa.event.listen(engine, "begin", lambda connection: connection.exec_driver_sql("BEGIN"))


class SinkDialect(SQLiteDialect_pysqlite):
    """How a sink opens its database: by a URL that begins with sqlite+simulated."""

    driver = "simulated"
    supports_statement_cache = True

    @classmethod
    def get_pool_class(cls, url: sa.URL) -> type[Pool]:
        return QueuePool

    @classmethod
    def engine_created(cls, engine: sa.Engine) -> None:
        _prepare(engine)

    def connect(self, *_: Any, **__: Any) -> Any:
        return _Connection("sink")


registry.register("sqlite.simulated", __name__, SinkDialect.__name__)


def _name_lost_database(context: sa.engine.ExceptionContext) -> StoreUnreachableError | None:
    """As for PostgreSQL: a database that does not answer is told as such."""
    error = context.original_exception
    if not isinstance(error, sqlite3.OperationalError) or getattr(error, "sqlite_errorcode", None) is not None:
        return None
    return StoreUnreachableError(f"cannot reach the simulated meta store: {error}", cure="try again")


def _empty_store() -> bytes:
    global _template
    if _template is None:
        _current["meta"] = RemoteDatabase(Scheduler(0))
        MetaStore(OpenedDatabase(_engine())).identity()
        with _engine().begin() as connection:
            connection.execute(info.update().where(info.c.key == "identity").values(value="simulated"))
        _template = _current["meta"].connection.serialize()
    return _template
