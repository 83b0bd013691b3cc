"""Epochs, leases and what a pipeline was, in a SQL database through SQLAlchemy Core.

Everything that decides exactly-once happens here in transactions: the plan of an epoch is written before it runs and
the first writer wins; an epoch is committed once, and only by the holder of the lease. Data never comes here.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy.exc import IntegrityError

from holdfast.errors import AlreadyRunningError, HoldfastError, LeaseLostError, StoreFullError, StoreUnreachableError
from holdfast.meta.engine import open_engine
from holdfast.meta.generations import check_generation, generation_of
from holdfast.meta.tables import epochs as _epochs
from holdfast.meta.tables import info as _info
from holdfast.meta.tables import leases as _leases
from holdfast.meta.tables import pipelines as _pipelines
from holdfast.meta.tables import replicas as _replicas
from holdfast.meta.versions import prepare_tables, take_turns

__all__ = ["Commit", "Lease", "MetaStore", "PlannedEpoch"]

_AGAIN_SECONDS = 0.1


@dataclass(frozen=True, slots=True)
class Lease:
    """The right to plan and commit epochs of a pipeline; `token` grows with every new holder."""

    pipeline: str
    owner: str
    token: int
    shared: bool = False
    """Whether it is that of a secondary, which may plan and commit beside the primary as long as its seat says so."""


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
    """Open with a directory (SQLite inside it), or with the URL of a PostgreSQL or SQLite database.

    Not promised: that reads see a commit of another process at once; only that nothing committed is lost and that
    no two commits of an epoch succeed.
    """

    def __init__(self, where: Path | str, *, sync: bool = True) -> None:
        self._engine, self._patience = open_engine(where, sync)
        self._writer = self._engine.execution_options(holdfast_writes=True)
        try:
            prepare_tables(self._engine)
        except BaseException:
            self.close()
            raise

    def identity(self) -> str:
        """A name of the store that no other store has, and that it keeps wherever it is moved to."""
        mine = sa.select(_info.c.value).where(_info.c.key == "identity")
        with self.writing() as connection:
            take_turns(connection)
            found = connection.execute(mine).scalar_one_or_none()
            if found is None:
                found = uuid.uuid4().hex
                connection.execute(_info.insert().values(key="identity", value=found))
            return str(found)

    @contextmanager
    def reading(self) -> Iterator[sa.Connection]:
        with self._connect(self._engine) as connection:
            yield connection

    @contextmanager
    def writing(self, epoch: int | None = None) -> Iterator[sa.Connection]:
        """A transaction that writes. If it fails with `StoreUnreachableError`, it may have been committed all the same:
        the answer was lost, and only the store can tell."""
        try:
            with self._connect(self._writer) as connection, connection.begin():
                yield connection
        except (StoreFullError, StoreUnreachableError) as error:
            raise error.at(epoch=epoch) from error.__cause__

    def _connect(self, engine: sa.Engine) -> sa.Connection:
        """A connection. A database that is away is waited for a while: nothing was asked of it yet."""
        deadline = time.monotonic() + self._patience
        while True:
            try:
                return engine.connect()
            except StoreUnreachableError:
                if time.monotonic() >= deadline:
                    raise
                time.sleep(_AGAIN_SECONDS)

    def close(self) -> None:
        self._engine.dispose()

    # leases

    def acquire(self, pipeline: str, owner: str, now: float, seconds: float, dead: bool = False) -> Lease:
        """Take the lease, if it is free, expired, or its owner is known to be `dead`."""
        with self.writing() as connection:
            held = sa.select(_leases).where(_leases.c.pipeline == pipeline).with_for_update()
            row = connection.execute(held).one_or_none()
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
        with self.reading() as connection:
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
        """Touch the lease inside the transaction: fails if somebody else has it. All transactions of a pipeline begin
        here, and so take their turns."""
        mine = _leases.c.pipeline == lease.pipeline
        token = sa.true() if lease.shared else _leases.c.token == lease.token
        own = {"pipeline": lease.pipeline} if lease.shared else {"owner": lease.owner}
        held = connection.execute(_leases.update().where(mine, token).values(values or own)).rowcount == 1
        if held and lease.shared:
            seat = sa.select(_replicas.c.fragment).where(
                mine,
                _replicas.c.fragment == lease.pipeline,
                _replicas.c.primary_token == _leases.c.token,
                _replicas.c.secondary_token == lease.token,
                _replicas.c.sharing.is_(True),
            )
            held = connection.execute(seat).first() is not None
        if not held:
            raise LeaseLostError(
                f"the lease on '{lease.pipeline}' was taken over by another process",
                cure="nothing was committed by this one; let the other run, or stop it first",
            )

    def confirm(self, lease: Lease) -> None:
        """Fails if somebody else has the lease by now."""
        with self.writing() as connection:
            self.fence(connection, lease)

    # pipelines

    def shape(self, pipeline: str) -> Mapping[str, Any] | None:
        """What the pipeline looked like when it last ran."""
        with self.reading() as connection:
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
        with self.reading() as connection:
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
            if generation := generation_of(connection, lease.pipeline):
                plan = {**plan, "generation": generation}
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
        inherit: Callable[[int, Mapping[str, Any]], Mapping[str, Any]] | None = None,
    ) -> bool:
        """Commit a planned epoch and forget commits before `keep_from`, in one transaction.

        `also` writes what must be committed with the epoch or not at all. What the record is to `inherit` follows from
        the number and the record of the epoch before, as that is now. False if the epoch was committed before: then
        nothing has changed.
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
            check_generation(connection, lease.pipeline, epoch, record.get("generation", 0))
            if inherit is not None and previous is not None:
                before = json.loads(connection.execute(_one(lease.pipeline, previous)).one().record)
                record = {**record, **inherit(previous, before)}
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
        with self.reading() as connection:
            return int(connection.execute(query).scalar() or 0)

    def commits(self, pipeline: str, most: int | None = None) -> list[Commit]:
        """The retained commits, newest first."""
        query = (
            sa.select(_epochs)
            .where(_epochs.c.pipeline == pipeline, _epochs.c.record.is_not(None))
            .order_by(_epochs.c.epoch.desc())
        )
        with self.reading() as connection:
            rows = connection.execute(query.limit(most) if most is not None else query).all()
        return [_commit_of(row) for row in rows]

    def planned(self, pipeline: str) -> list[PlannedEpoch]:
        """Epochs that were planned and not committed, oldest first: they must run as planned."""
        return self.history(pipeline)[1]

    def history(self, pipeline: str) -> tuple[list[Commit], list[PlannedEpoch]]:
        """The retained commits, newest first, and what was planned behind them, oldest first, as of one moment."""
        query = sa.select(_epochs).where(_epochs.c.pipeline == pipeline).order_by(_epochs.c.epoch)
        with self.reading() as connection:
            rows = connection.execute(query).all()
        commits = [_commit_of(row) for row in reversed(rows) if row.record is not None]
        return commits, [PlannedEpoch(row.epoch, json.loads(row.plan)) for row in rows if row.record is None]

    def look_up(self, pipeline: str, epoch: int) -> Commit | PlannedEpoch | None:
        """An epoch as it is now: committed, planned, or not known (any more)."""
        with self.reading() as connection:
            row = connection.execute(_one(pipeline, epoch)).one_or_none()
        if row is None:
            return None
        return PlannedEpoch(epoch, json.loads(row.plan)) if row.record is None else _commit_of(row)


def _one(pipeline: str, epoch: int) -> sa.Select[Any]:
    return sa.select(_epochs).where(_epochs.c.pipeline == pipeline, _epochs.c.epoch == epoch)


def _commit_of(row: Any) -> Commit:
    return Commit(row.epoch, json.loads(row.plan), json.loads(row.record), row.planned_at, row.committed_at)


def _taken(pipeline: str, owner: str) -> AlreadyRunningError:
    return AlreadyRunningError(
        f"pipeline '{pipeline}' is being run by {owner}",
        cure="stop the other process first, or wait until its lease expires",
    )
