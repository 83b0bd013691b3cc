"""Epochs, leases and what a pipeline was, in a SQL database through SQLAlchemy Core.

Everything that decides exactly-once happens here in transactions: the plan of an epoch is written before it runs and
the first writer wins; an epoch is committed once, and only by the holder of the lease. Data never comes here.
"""

from __future__ import annotations

import json
import sqlite3
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy.exc import DatabaseError, IntegrityError, OperationalError, ProgrammingError

from holdfast.errors import AlreadyRunningError, HoldfastError, LeaseLostError, StoreFullError, UnknownVersionError
from holdfast.formats import POSITION_VERSION, STORE_VERSION
from holdfast.meta.tables import epochs as _epochs
from holdfast.meta.tables import info as _info
from holdfast.meta.tables import leases as _leases
from holdfast.meta.tables import metadata as _metadata
from holdfast.meta.tables import pipelines as _pipelines

__all__ = ["Commit", "Lease", "MetaStore", "PlannedEpoch"]

_VERSIONS = {"store": str(STORE_VERSION), "position": str(POSITION_VERSION)}
_UPGRADED = ("1", "2", "3")
_PATIENCE_SECONDS = 10.0
# SQLite tells a full disk from other faults, but not an exceeded quota or size limit: those are failed writes to it.
_SQLITE_NO_SPACE = frozenset({sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR_WRITE, sqlite3.SQLITE_IOERR_SHMSIZE})
_POSTGRESQL_NO_SPACE = "53100"


@dataclass(frozen=True, slots=True)
class Lease:
    """The right to plan and commit epochs of a pipeline; `token` grows with every new holder."""

    pipeline: str
    owner: str
    token: int


@dataclass(frozen=True, slots=True)
class PlannedEpoch:
    epoch: int
    plan: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Commit:
    epoch: int
    plan: Mapping[str, Any]
    record: Mapping[str, Any]
    planned_at: float
    committed_at: float


class MetaStore:
    """Open with a directory (SQLite inside it) or an SQLAlchemy URL.

    Not promised: that reads see a commit of another process at once; only that nothing committed is lost and that
    no two commits of an epoch succeed.
    """

    def __init__(self, where: Path | str, *, sync: bool = True) -> None:
        self._sync = sync
        if isinstance(where, Path):
            where.mkdir(parents=True, exist_ok=True)
            where = f"sqlite:///{where / 'meta.db'}"
        self._engine = sa.create_engine(where)
        if self._engine.dialect.name == "sqlite":
            sa.event.listen(self._engine, "connect", self._prepare_sqlite)
            sa.event.listen(self._engine, "begin", _begin_sqlite)
        sa.event.listen(self._engine, "handle_error", _name_full_disk)
        self._writer = self._engine.execution_options(holdfast_writes=True)
        try:
            self._check_version()
        except OperationalError as error:
            raise HoldfastError(
                f"cannot open the store {self._engine.url}: {error.orig}",
                cure="see that the database can be reached, that this user may write it, and that nobody locks it",
            ) from error
        except DatabaseError as error:
            raise UnknownVersionError(
                f"{where} is not a Holdfast store: {error.orig}",
                cure="point --store at another directory, or restore meta.db from a copy",
            ) from error

    def _check_version(self) -> None:
        found = self._versions()
        if not found:
            self._initialise()
            found = self._versions()
        if found.get("store") in _UPGRADED:
            self._upgrade()
            found = self._versions()
        for key, version in _VERSIONS.items():
            if found.get(key) != version:
                raise UnknownVersionError(
                    f"the store has {key} version {found.get(key)}; this program knows version {version}",
                    cure="run the version of Holdfast that wrote the store, or choose another --store",
                )

    def _versions(self) -> dict[str, str]:
        """What the store says of itself; nothing if it is new."""
        with self._engine.connect() as connection:
            if not sa.inspect(connection).has_table(_info.name):
                return {}
            return {row.key: row.value for row in connection.execute(sa.select(_info))}

    def _initialise(self) -> None:
        """Make the tables and write the versions, all in one transaction. Somebody else may do so at the same time."""
        try:
            with self.writing() as connection:
                _metadata.create_all(connection)
                if connection.execute(sa.select(_info)).first() is None:
                    connection.execute(_info.insert(), [{"key": k, "value": v} for k, v in _VERSIONS.items()])
        except (IntegrityError, ProgrammingError):
            # PostgreSQL lets two create the same table, until the first of them commits. Then the store is there.
            if not self._versions():
                raise

    def identity(self) -> str:
        """A name of the store that no other store has, and that it keeps wherever it is moved to."""
        mine = sa.select(_info.c.value).where(_info.c.key == "identity")
        with self.writing() as connection:
            found = connection.execute(mine).scalar_one_or_none()
            if found is None:
                found = uuid.uuid4().hex
                connection.execute(_info.insert().values(key="identity", value=found))
            return str(found)

    def _upgrade(self) -> None:
        """From version 1, which had no streams, and 2, which had no commands: add their tables. Version 3 had no
        control records in entries, and records without footings. Nothing else has changed."""
        with self.writing() as connection:
            _metadata.create_all(connection)
            connection.execute(_info.update().where(_info.c.key == "store").values(value=_VERSIONS["store"]))

    @contextmanager
    def reading(self) -> Iterator[sa.Connection]:
        with self._engine.connect() as connection:
            yield connection

    @contextmanager
    def writing(self, epoch: int | None = None) -> Iterator[sa.Connection]:
        """A transaction that writes."""
        try:
            with self._writer.begin() as connection:
                yield connection
        except StoreFullError as error:
            raise error.at(epoch=epoch) from error.__cause__

    def _prepare_sqlite(self, connection: Any, _: object) -> None:
        # The driver of the standard library commits tables as they are made, unless transactions are left to us.
        connection.isolation_level = None
        cursor = connection.cursor()
        cursor.execute(f"PRAGMA busy_timeout={int(_PATIENCE_SECONDS * 1000)}")
        _use_wal(cursor)
        cursor.execute(f"PRAGMA synchronous={'FULL' if self._sync else 'OFF'}")
        cursor.close()

    def close(self) -> None:
        self._engine.dispose()

    # leases

    def acquire(self, pipeline: str, owner: str, now: float, seconds: float, dead: bool = False) -> Lease:
        """Take the lease, if it is free, expired, or its owner is known to be `dead`."""
        with self.writing() as connection:
            row = connection.execute(sa.select(_leases).where(_leases.c.pipeline == pipeline)).one_or_none()
            if row is None:
                values = {"pipeline": pipeline, "token": 1, "owner": owner, "expires": now + seconds}
                try:
                    connection.execute(_leases.insert().values(values))
                except IntegrityError as error:
                    raise _taken(pipeline, "another process") from error
                return Lease(pipeline, owner, 1)
            if row.expires > now and not dead:
                raise _taken(pipeline, row.owner)
            taken = connection.execute(
                _leases.update()
                .where(_leases.c.pipeline == pipeline, _leases.c.token == row.token)
                .values(token=row.token + 1, owner=owner, expires=now + seconds)
            )
            if taken.rowcount != 1:
                raise _taken(pipeline, "another process")
            return Lease(pipeline, owner, row.token + 1)

    def owner_of(self, pipeline: str) -> tuple[str, float] | None:
        """Who holds the lease, and until when."""
        with self._engine.connect() as connection:
            row = connection.execute(sa.select(_leases).where(_leases.c.pipeline == pipeline)).one_or_none()
        return None if row is None else (row.owner, row.expires)

    def renew(self, lease: Lease, now: float, seconds: float) -> None:
        with self.writing() as connection:
            self.fence(connection, lease, {"expires": now + seconds})

    def release(self, lease: Lease) -> None:
        """Let the next start take over at once."""
        with self.writing() as connection:
            connection.execute(
                _leases.update()
                .where(_leases.c.pipeline == lease.pipeline, _leases.c.token == lease.token)
                .values(expires=0.0)
            )

    def fence(self, connection: sa.Connection, lease: Lease, values: Mapping[str, Any] | None = None) -> None:
        """Touch the lease inside the transaction: fails if somebody else has it."""
        held = connection.execute(
            _leases.update()
            .where(_leases.c.pipeline == lease.pipeline, _leases.c.token == lease.token)
            .values(values or {"owner": lease.owner})
        )
        if held.rowcount != 1:
            raise LeaseLostError(
                f"the lease on '{lease.pipeline}' was taken over by another process",
                cure="nothing was committed by this one; let the other run, or stop it first",
            )

    # pipelines

    def shape(self, pipeline: str) -> Mapping[str, Any] | None:
        """What the pipeline looked like when it last ran."""
        with self._engine.connect() as connection:
            text = connection.execute(
                sa.select(_pipelines.c.shape).where(_pipelines.c.pipeline == pipeline)
            ).scalar_one_or_none()
        return None if text is None else json.loads(text)

    def save_shape(
        self,
        lease: Lease,
        shape: Mapping[str, Any],
        *,
        rewrite: Callable[[Mapping[str, Any]], Mapping[str, Any]] | None = None,
        also: Callable[[sa.Connection], None] | None = None,
    ) -> None:
        """Keep what the pipeline looks like from now on, in one transaction with what this means for its epochs:
        `rewrite` gives each plan and each record another form, `also` writes what else belongs to it."""
        mine = _epochs.c.pipeline == lease.pipeline
        with self.writing() as connection:
            self.fence(connection, lease)
            connection.execute(_pipelines.delete().where(_pipelines.c.pipeline == lease.pipeline))
            connection.execute(_pipelines.insert().values(pipeline=lease.pipeline, shape=json.dumps(shape)))
            if rewrite is not None:
                for row in connection.execute(sa.select(_epochs).where(mine)).all():
                    texts = {"plan": row.plan, "record": row.record}
                    fresh = {name: json.dumps(rewrite(json.loads(text))) for name, text in texts.items() if text}
                    connection.execute(_epochs.update().where(mine, _epochs.c.epoch == row.epoch).values(fresh))
            if also is not None:
                also(connection)

    def pipelines(self) -> list[str]:
        with self._engine.connect() as connection:
            return list(connection.execute(sa.select(_pipelines.c.pipeline).order_by("pipeline")).scalars())

    # epochs

    def plan(
        self,
        lease: Lease,
        epoch: int,
        plan: Mapping[str, Any],
        now: float,
        also: Callable[[sa.Connection], None] | None = None,
    ) -> Mapping[str, Any]:
        """Fix the input of an epoch. The first plan wins and is returned, whoever wrote it. `also` writes what must be
        written with this plan or not at all."""
        with self.writing(epoch) as connection:
            self.fence(connection, lease)
            known = connection.execute(
                sa.select(_epochs.c.plan).where(_epochs.c.pipeline == lease.pipeline, _epochs.c.epoch == epoch)
            ).scalar_one_or_none()
            if known is not None:
                return json.loads(known)  # type: ignore[no-any-return]
            connection.execute(
                _epochs.insert().values(pipeline=lease.pipeline, epoch=epoch, plan=json.dumps(plan), planned_at=now)
            )
            if also is not None:
                also(connection)
            return plan

    def commit(
        self,
        lease: Lease,
        epoch: int,
        record: Mapping[str, Any],
        now: float,
        *,
        keep_from: int = 0,
        also: Callable[[sa.Connection], None] | None = None,
    ) -> bool:
        """Commit a planned epoch and forget commits before `keep_from`, in one transaction.

        `also` writes what must be committed with the epoch or not at all. False if the epoch was committed before:
        then nothing has changed.
        """
        with self.writing(epoch) as connection:
            self.fence(connection, lease)
            previous = connection.execute(
                sa.select(sa.func.max(_epochs.c.epoch)).where(
                    _epochs.c.pipeline == lease.pipeline, _epochs.c.record.is_not(None)
                )
            ).scalar_one()
            if previous is not None and epoch <= previous:
                return False
            if previous is not None and epoch != previous + 1:
                raise HoldfastError(
                    f"epoch {epoch} cannot follow epoch {previous}",
                    cure="epochs are committed in their order; this is a fault in the program",
                    epoch=epoch,
                )
            done = connection.execute(
                _epochs.update()
                .where(_epochs.c.pipeline == lease.pipeline, _epochs.c.epoch == epoch, _epochs.c.record.is_(None))
                .values(record=json.dumps(record), committed_at=now)
            )
            if done.rowcount != 1:
                raise HoldfastError(
                    f"epoch {epoch} was not planned",
                    cure="an epoch is planned before it runs; this is a fault in the program",
                    epoch=epoch,
                )
            connection.execute(
                _epochs.delete().where(_epochs.c.pipeline == lease.pipeline, _epochs.c.epoch < keep_from)
            )
            if also is not None:
                also(connection)
            return True

    def recommit(
        self,
        lease: Lease,
        epoch: int,
        record: Mapping[str, Any],
        also: Callable[[sa.Connection], None] | None = None,
        keep_from: int = 0,
    ) -> None:
        """Replace the record of a committed epoch, e.g. because its state was made again and lies in other p-units.

        `also` writes what must be changed with it; commits before `keep_from` are forgotten.
        """
        with self.writing(epoch) as connection:
            self.fence(connection, lease)
            done = connection.execute(
                _epochs.update()
                .where(_epochs.c.pipeline == lease.pipeline, _epochs.c.epoch == epoch, _epochs.c.record.is_not(None))
                .values(record=json.dumps(record))
            )
            if done.rowcount != 1:
                raise HoldfastError(
                    f"epoch {epoch} was not committed, or is not kept any more",
                    cure="only the record of a committed epoch can be replaced; this is a fault in the program",
                    epoch=epoch,
                )
            connection.execute(
                _epochs.delete().where(_epochs.c.pipeline == lease.pipeline, _epochs.c.epoch < keep_from)
            )
            if also is not None:
                also(connection)

    def last_commit(self, pipeline: str) -> Commit | None:
        commits = self.commits(pipeline, most=1)
        return commits[0] if commits else None

    def last_epoch(self, pipeline: str) -> int:
        """The last committed epoch, without its record; 0 before the first."""
        query = sa.select(sa.func.max(_epochs.c.epoch)).where(
            _epochs.c.pipeline == pipeline, _epochs.c.record.is_not(None)
        )
        with self._engine.connect() as connection:
            return int(connection.execute(query).scalar() or 0)

    def commits(self, pipeline: str, most: int | None = None) -> list[Commit]:
        """The retained commits, newest first."""
        query = (
            sa.select(_epochs)
            .where(_epochs.c.pipeline == pipeline, _epochs.c.record.is_not(None))
            .order_by(_epochs.c.epoch.desc())
        )
        with self._engine.connect() as connection:
            rows = connection.execute(query.limit(most) if most is not None else query).all()
        return [
            Commit(row.epoch, json.loads(row.plan), json.loads(row.record), row.planned_at, row.committed_at)
            for row in rows
        ]

    def planned(self, pipeline: str) -> list[PlannedEpoch]:
        """Epochs that were planned and not committed, oldest first: they must run as planned."""
        query = (
            sa.select(_epochs.c.epoch, _epochs.c.plan)
            .where(_epochs.c.pipeline == pipeline, _epochs.c.record.is_(None))
            .order_by(_epochs.c.epoch)
        )
        with self._engine.connect() as connection:
            return [PlannedEpoch(row.epoch, json.loads(row.plan)) for row in connection.execute(query)]


def _taken(pipeline: str, owner: str) -> AlreadyRunningError:
    return AlreadyRunningError(
        f"pipeline '{pipeline}' is being run by {owner}",
        cure="stop the other process first, or wait until its lease expires",
    )


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
    place = context.engine.url if context.engine is not None else "the database"
    return StoreFullError(
        f"cannot write the meta store {place}: {error}",
        cure="free space or raise the quota of the file system that holds it, then start the pipeline again: it goes"
        " on from the last committed epoch",
    )
