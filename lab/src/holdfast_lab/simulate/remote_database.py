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
from sqlalchemy.pool import ConnectionPoolEntry, Pool, PoolProxiedConnection
from sqlalchemy.util import LRUCache

from holdfast.errors import StoreUnreachableError
from holdfast.meta import MetaStore
from holdfast.meta.engine import OpenedDatabase
from holdfast.meta.sql_tables import info
from holdfast_lab.simulate.scheduler import Process, Scheduler, Task
from holdfast_lab.simulate.simulated_threads import SimulatedThreads

__all__ = ["RemoteDatabase"]

Place = Literal["meta", "sink"]

_PATIENCE_SECONDS = 5.0
_TRIP_SECONDS = 0.002
_template: bytes | None = None
"""An empty store, made once per process: making its tables takes longer than many a simulation."""


@dataclass(slots=True)
class RemoteDatabase:
    """`lost_requests` and `lost_answers` are how many of each that many transactions lose; `broken` is how many
    statements in the middle of one find that the connection is gone."""

    scheduler: Scheduler
    lost_requests: float = 0.0
    lost_answers: float = 0.0
    broken: float = 0.0
    away_until: float = 0.0
    slow_until: float = 0.0
    cut_off: dict[str, float] = field(default_factory=dict)
    """Hosts that do not reach it, until when."""
    transactions: int = 0
    doubts: int = 0
    """How many transactions were done and not answered."""
    breaks: int = 0
    """How many connections were lost in the middle of a transaction."""
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

    def _trip(self, what: str) -> None:
        slow = 100.0 if self.scheduler.time < self.slow_until else 1.0
        self.scheduler.step(what, slow * _TRIP_SECONDS * self.scheduler.random.random())

    def reach(self) -> None:
        """The way of the first request."""
        task = self.scheduler.current
        if task is None:
            return
        self._trip("connect")
        if self._is_away(task) or self.scheduler.random.random() < self.lost_requests:
            self.scheduler.step("no connection", 0.05)
            raise sqlite3.OperationalError("connection refused")

    def go_on(self) -> None:
        """Another statement of a transaction: the connection may be gone, and with it all that was done in it."""
        if self.broken and self.scheduler.random.random() < self.broken:
            self.breaks += 1
            raise sqlite3.OperationalError("server closed the connection")

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
        self._trip("done")


class _Connection(PoolProxiedConnection):
    """One connection of a process, as a driver gives it, and as a pool does. All of them are the one connection to
    SQLite, since only one thread runs and gives way only between transactions."""

    is_valid = True

    def __init__(self, place: Place) -> None:
        self.begun = False
        self.task: Task | None = None
        self.pool: _Connections | None = None
        self._place = place
        self._remote = _current[place]

    @property
    def dbapi_connection(self) -> Any:  # type: ignore[override]
        return self

    def take(self) -> None:
        """Somebody begins to use it."""
        self.begun = False
        self._remote = _current[self._place]
        self._remote.reach()
        self.task = self._remote.scheduler.current

    def __getattr__(self, name: str) -> Any:
        return getattr(self._remote.connection, name)

    def begin(self) -> None:
        self._use()
        self._remote.connection.execute("BEGIN")

    def cursor(self, *_: Any, **__: Any) -> Any:
        if self.begun:
            self._remote.go_on()
        self._use()
        return self._remote.connection.cursor()

    def _use(self) -> None:
        """From here to its end, a transaction."""
        if not self.begun and self.task is not None:
            if not self.task.process.alive:
                raise sqlite3.OperationalError("the process is dead")
            self.begun = True
            self.task.busy += 1

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
        """Nobody uses it any more."""
        self.rollback()
        self._close_special()

    def _close_special(self, transaction_reset: bool = False) -> None:
        """The same, after a transaction that has ended."""
        self.end()
        if self.pool is not None:
            self.pool.give_back(self)


_current: dict[Place, RemoteDatabase] = {}
"""The databases of the simulation that runs now."""
_engines: list[sa.Engine] = []
_compiled: LRUCache[Any, Any] = LRUCache(500)
"""Statements of all engines."""


class _Connections(Pool):
    """Connections that nobody uses now. Only one simulated thread runs at a time, so they need no lock; and they are
    good for every simulation of this process, so they are never closed. They are handed out as they are: what pools
    wrap around connections, for threads and lost ones, would cost more than a small transaction."""

    def __init__(self, creator: Callable[[], Any], **options: Any) -> None:
        super().__init__(creator, **options)
        self._free: list[_Connection] = []
        self._is_known = False

    def connect(self) -> PoolProxiedConnection:
        connection = self._free.pop() if self._free else self._new()
        try:
            connection.take()
        except BaseException:
            self._free.append(connection)
            raise
        return connection

    def _new(self) -> _Connection:
        """By the first one SQLAlchemy gets to know the database."""
        create: Callable[[], Any] = self._creator if self._is_known else self._create_connection  # type: ignore[assignment]
        connection: _Connection = create().dbapi_connection
        self._is_known = True
        connection.pool = self
        return connection

    def give_back(self, connection: _Connection) -> None:
        self._free.append(connection)

    def _do_get(self) -> ConnectionPoolEntry:
        raise NotImplementedError

    def _do_return_conn(self, record: ConnectionPoolEntry) -> None:
        raise NotImplementedError

    def recreate(self) -> _Connections:
        return self

    def dispose(self) -> None:
        pass

    def status(self) -> str:
        return f"{len(self._free)} connections wait"


class _Dialect(SQLiteDialect_pysqlite):
    """SQLite whose transactions begin by a call of ours: a listener of SQLAlchemy would cost more than the rest of a
    small one. Engines know what others have compiled, which they find by their equal dialects."""

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other)

    def __hash__(self) -> int:
        return hash(type(self))

    @classmethod
    def get_pool_class(cls, url: sa.URL) -> type[Pool]:
        return _Connections

    @classmethod
    def engine_created(cls, engine: sa.Engine) -> None:
        engine.update_execution_options(compiled_cache=_compiled)

    def do_begin(self, dbapi_connection: Any) -> None:
        dbapi_connection.dbapi_connection.begin()


class MetaDialect(_Dialect):
    """How the meta store opens its database."""

    driver = "simulated_meta"
    supports_statement_cache = True

    def connect(self, *_: Any, **__: Any) -> Any:
        return _Connection("meta")


class SinkDialect(_Dialect):
    """How a sink opens its database: by a URL that begins with sqlite+simulated."""

    driver = "simulated"
    supports_statement_cache = True

    def connect(self, *_: Any, **__: Any) -> Any:
        return _Connection("sink")


def _engine() -> sa.Engine:
    """One engine for all simulations of this process: it knows statements that it has seen before."""
    if not _engines:
        engine = sa.create_engine("sqlite+simulated_meta://")
        sa.event.listen(engine, "handle_error", _name_lost_database)
        _engines.append(engine)
    return _engines[0]


registry.register("sqlite.simulated_meta", __name__, MetaDialect.__name__)
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
