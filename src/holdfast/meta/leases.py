"""Leases: the right to plan and commit, and the transactions that only its holder can make.

The token of a lease grows with every new holder. A transaction that begins by touching the lease under its own token
either finds it so, and then no other process takes it before the transaction ends, or fails.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import sqlalchemy as sa
from sqlalchemy.exc import IntegrityError

from holdfast.errors import AlreadyRunningError, LeaseLostError
from holdfast.meta.engine import OpenedDatabase
from holdfast.meta.lease_holder import LeaseHolder
from holdfast.meta.sql_tables import leases as _leases
from holdfast.meta.sql_tables import replicas as _replicas
from holdfast.meta.transactions import Database
from holdfast.threads import SYSTEM, Clock

__all__ = ["HeldLease", "Lease", "Leases"]

# Statements of every epoch are made once: making one takes longer than the database needs for it.
_OWN = _leases.c.pipeline == sa.bindparam("of"), _leases.c.token == sa.bindparam("held")
_OF_ALL = _leases.c.pipeline == sa.bindparam("of")
_TOUCH = _leases.update().where(*_OWN).values(owner=sa.bindparam("by"))
_TOUCH_SHARED = _leases.update().where(_OF_ALL).values(pipeline=sa.bindparam("of"))
_EXTEND = _leases.update().where(*_OWN).values(expires=sa.bindparam("until"))
_EXTEND_SHARED = _leases.update().where(_OF_ALL).values(expires=sa.bindparam("until"))
_TAKE = (
    _leases.update()
    .where(*_OWN)
    .values(token=sa.bindparam("new"), owner=sa.bindparam("by"), expires=sa.bindparam("until"))
)
_FOUND = sa.select(_leases).where(_OF_ALL)
_LOCKED = _FOUND.with_for_update()
_HELD = sa.select(_leases.c.token).where(*_OWN)
_HELD_SHARED = sa.select(_leases.c.token).where(
    _OF_ALL,
    _replicas.c.fragment == sa.bindparam("of"),
    _replicas.c.primary_token == _leases.c.token,
    _replicas.c.secondary_token == sa.bindparam("held"),
    _replicas.c.sharing.is_(True),
)


@dataclass(frozen=True, slots=True)
class Lease:
    """The right to plan and commit epochs of a pipeline; `token` grows with every new holder."""

    pipeline: str
    owner: str
    token: int
    shared: bool = False
    """Whether it is that of a secondary, which may plan and commit alongside the primary as long as its seat says
    so."""


class Leases(Database):
    """The database with its leases."""

    def __init__(
        self, where: Path | str | OpenedDatabase, *, sync: bool = True, reads_only: bool = False, clock: Clock = SYSTEM
    ) -> None:
        super().__init__(where, sync=sync, reads_only=reads_only, clock=clock)
        self._held: dict[tuple[str, int], float] = {}
        """Until when leases hold that were taken here, by the monotonic clock."""

    @contextmanager
    def fenced(
        self, lease: Lease, epoch: int | None = None, expires: float | None = None, *, synced: bool = True
    ) -> Iterator[sa.Connection]:
        """A transaction of the holder of the lease, which extends it until `expires` if given. As long as the lease
        holds, a database that another process locks is waited for: no other process can take over meanwhile."""
        until = self._held.get((lease.pipeline, lease.token))
        with self.writing(epoch, until, synced=synced) as connection:
            self.fence(connection, lease, expires)
            yield connection

    def acquire(self, pipeline: str, owner: str, now: float, seconds: float, dead_owner: str | None = None) -> Lease:
        """Take the lease, if it is free or expired, or if it is held by `dead_owner`, which is known to be dead."""
        asked = self._clock.monotonic()
        lease = self._acquired(pipeline, owner, now, seconds, dead_owner)
        self._held[pipeline, lease.token] = asked + seconds
        return lease

    def _acquired(self, pipeline: str, owner: str, now: float, seconds: float, dead_owner: str | None) -> Lease:
        with self.writing() as connection:
            row = connection.execute(_LOCKED, {"of": pipeline}).one_or_none()
            if row is None:
                values = {"pipeline": pipeline, "token": 1, "owner": owner, "expires": now + seconds}
                try:
                    connection.execute(_leases.insert().values(values))
                except IntegrityError as error:
                    raise _taken(pipeline, "another process") from error
                return Lease(pipeline, owner, 1)
            mine = {"of": pipeline, "held": row.token, "until": now + seconds}
            if row.expires <= now or row.owner == dead_owner:
                taken = connection.execute(_TAKE, {**mine, "new": row.token + 1, "by": owner})
                if taken.rowcount != 1:
                    raise _taken(pipeline, "another process")
                return Lease(pipeline, owner, row.token + 1)
            if row.expires > now + seconds:
                # The clock was set back since. Who holds it and lives renews it long before it expires now.
                connection.execute(_EXTEND, mine)
        raise _taken(pipeline, row.owner)

    def lease_holder(self, pipeline: str) -> LeaseHolder | None:
        """Who held the lease last, whether or not it has expired."""
        with self.reading() as connection:
            row = connection.execute(_FOUND, {"of": pipeline}).one_or_none()
        return None if row is None else LeaseHolder(row.token, row.owner, row.expires)

    def runner_of(self, pipeline: str, now: float) -> LeaseHolder | None:
        """What runs the pipeline, alone or as the host with the first seat; None if nothing does."""
        holder = self.lease_holder(pipeline)
        return holder if holder is not None and holder.is_running(now) else None

    def renew(self, lease: Lease, now: float, seconds: float) -> None:
        asked = self._clock.monotonic()
        with self.fenced(lease, expires=now + seconds):
            pass
        self._held[lease.pipeline, lease.token] = asked + seconds

    def release(self, lease: Lease) -> None:
        """Let the next start take over at once."""
        with self.writing() as connection:
            connection.execute(_EXTEND, {**_own(lease), "until": 0.0})

    def fence(self, connection: sa.Connection, lease: Lease, expires: float | None = None) -> None:
        """Touch the lease inside the transaction: fails if somebody else has it. All transactions of a pipeline begin
        here, and so take their turns."""
        mine: dict[str, object] = {"of": lease.pipeline} if lease.shared else _own(lease)
        if expires is not None:
            touched = connection.execute(_EXTEND_SHARED if lease.shared else _EXTEND, {**mine, "until": expires})
        elif lease.shared:
            touched = connection.execute(_TOUCH_SHARED, mine)
        else:
            touched = connection.execute(_TOUCH, {**mine, "by": lease.owner})
        held = touched.rowcount == 1
        if not held or (lease.shared and not _holds(connection, lease)):
            raise _lost(lease)

    def confirm(self, lease: Lease) -> None:
        """Fails if somebody else has the lease by now."""
        with self.reading() as connection:
            if not _holds(connection, lease):
                raise _lost(lease)

    def right(self, lease: Lease) -> HeldLease:
        """The right of the holder of the lease to remove what belongs to the pipeline."""
        return HeldLease(self, lease)


@dataclass(frozen=True, slots=True)
class HeldLease:
    """The right to remove files that goes with a lease."""

    leases: Leases
    lease: Lease

    def check(self) -> None:
        self.leases.confirm(self.lease)


def _holds(connection: sa.Connection, lease: Lease) -> bool:
    """Whether the lease holds, as the transaction sees it."""
    return connection.execute(_HELD_SHARED if lease.shared else _HELD, _own(lease)).first() is not None


def _own(lease: Lease) -> dict[str, object]:
    return {"of": lease.pipeline, "held": lease.token}


def _lost(lease: Lease) -> LeaseLostError:
    return LeaseLostError(
        f"the lease on '{lease.pipeline}' was taken over by another process",
        cure="this process committed nothing; let the other one run, or stop it first",
    )


def _taken(pipeline: str, owner: str) -> AlreadyRunningError:
    return AlreadyRunningError(
        f"pipeline '{pipeline}' is being run by {owner}",
        cure="stop the other process first, or wait until its lease expires",
    )
