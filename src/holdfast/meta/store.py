"""Epochs, and what a pipeline was, in a SQL database through SQLAlchemy Core.

Everything that decides exactly-once happens here in transactions: the plan of an epoch is written before it runs and
the first writer wins; an epoch is committed once, and only by the holder of the lease. Data never comes here.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from holdfast.errors import HoldfastError, LeaseLostError
from holdfast.meta.chained import as_change, chain_of, split_change, whole_before
from holdfast.meta.engine import check_exists
from holdfast.meta.generations import GENERATION, check_generation
from holdfast.meta.leases import Lease, Leases
from holdfast.meta.sealed import SealedPlace
from holdfast.meta.sql_tables import epochs as _epochs
from holdfast.meta.sql_tables import info as _info
from holdfast.meta.sql_tables import pipelines as _pipelines
from holdfast.meta.versions import take_turns

__all__ = ["Commit", "MetaStore", "PlannedEpoch", "opened_meta"]

# Statements of every epoch are made once: making one takes longer than the database needs for it.
_IDENTITY = sa.select(_info.c.value).where(_info.c.key == "identity")
_SHAPE = sa.select(_pipelines.c.shape).where(_pipelines.c.pipeline == sa.bindparam("of"))
_FORGET_SHAPE = _pipelines.delete().where(_pipelines.c.pipeline == sa.bindparam("of"))
_NEW_SHAPE = _pipelines.insert()
_MINE = _epochs.c.pipeline == sa.bindparam("of")
_THIS = _MINE, _epochs.c.epoch == sa.bindparam("number")
_ONE = sa.select(_epochs).where(*_THIS)
_ALL = sa.select(_epochs).where(_MINE).order_by(_epochs.c.epoch)
_LAST = sa.select(sa.func.max(_epochs.c.epoch)).where(_MINE, _epochs.c.record.is_not(None))
_LAST_OF = sa.select(_LAST.scalar_subquery().label("epoch"), GENERATION.label("generation"))
_KNOWN = sa.select(sa.exists().where(*_THIS).label("known"), GENERATION.label("generation"))
_PLAN = _epochs.insert()
_COMMIT = (
    _epochs.update()
    .where(*_THIS, _epochs.c.record.is_(None))
    .values(record=sa.bindparam("sealed"), committed_at=sa.bindparam("now"))
)
_FORGET = _epochs.delete().where(*_THIS)
_BETWEEN = sa.select(_epochs).where(
    _MINE, _epochs.c.epoch >= sa.bindparam("first"), _epochs.c.epoch <= sa.bindparam("last")
)


@dataclass(frozen=True, slots=True)
class PlannedEpoch:
    """`plan` is JSON text; what is in it is known above (`holdfast.epoch`)."""

    epoch: int
    plan: str


@dataclass(frozen=True, slots=True)
class Commit:
    """`plan` and `record` are JSON text; what is in it is known above (`holdfast.epoch`). Where `record` is only what
    the epoch has changed, `since` are the texts that it goes back to: a whole record, and the changes after it."""

    epoch: int
    plan: str
    record: str
    planned_at: float
    committed_at: float
    since: tuple[str, ...] = ()


class MetaStore(Leases):
    """Open with a directory (SQLite inside it), or with the URL of a PostgreSQL or SQLite database.

    Not promised: that reads see a commit of another process at once; only that nothing committed is lost and that
    no two commits of an epoch succeed.
    """

    def identity(self) -> str:
        """A name of the store that no other store has, and that it keeps wherever it is moved to."""
        with self.reading() as connection:
            found = connection.execute(_IDENTITY).scalar_one_or_none()
        return self._named() if found is None else str(found)

    def _named(self) -> str:
        """Its name, which it gets now unless another was faster."""
        with self.writing() as connection:
            take_turns(connection)
            found = connection.execute(_IDENTITY).scalar_one_or_none()
            if found is None:
                found = uuid.uuid4().hex
                connection.execute(_info.insert().values(key="identity", value=found))
            return str(found)

    # pipelines

    def shape(self, pipeline: str) -> str | None:
        """What the pipeline looked like when it last ran, as JSON text; it is known above (`holdfast.state`)."""
        with self.reading() as connection:
            text = connection.execute(_SHAPE, {"of": pipeline}).scalar_one_or_none()
        return None if text is None else SealedPlace("shape", pipeline).opened(text, self.version)

    def write_shape(self, connection: sa.Connection, lease: Lease, shape: str) -> None:
        """What the pipeline looks like from now on; inside a fenced transaction."""
        connection.execute(_FORGET_SHAPE, {"of": lease.pipeline})
        sealed = SealedPlace("shape", lease.pipeline).sealed(shape)
        connection.execute(_NEW_SHAPE, {"pipeline": lease.pipeline, "shape": sealed})

    def pipelines(self) -> list[str]:
        with self.reading() as connection:
            return list(connection.execute(sa.select(_pipelines.c.pipeline).order_by("pipeline")).scalars())

    # epochs, inside a fenced transaction

    def planning(self, connection: sa.Connection, pipeline: str, epoch: int) -> tuple[bool, int]:
        """Whether an epoch is planned, and the generation of what is planned from now on."""
        found = connection.execute(_KNOWN, {"of": pipeline, "number": epoch}).one()
        return bool(found.known), int(found.generation)

    def write_plan(self, connection: sa.Connection, lease: Lease, epoch: int, plan: str, now: float) -> None:
        """Fix the input of an epoch that is not planned yet."""
        if lease.shared and (connection.execute(_LAST, {"of": lease.pipeline}).scalar_one_or_none() or 0) >= epoch:
            raise LeaseLostError(
                f"epoch {epoch} of '{lease.pipeline}' was committed by another host, and is no longer retained",
                cure="nothing to do: this host restarts from the last commit",
                epoch=epoch,
            )
        sealed = SealedPlace("plan", lease.pipeline, epoch).sealed(plan)
        values = {"pipeline": lease.pipeline, "epoch": epoch, "plan": sealed, "planned_at": now}
        connection.execute(_PLAN, values)

    def forget_plans(self, connection: sa.Connection, lease: Lease, epochs: Collection[int]) -> None:
        """Forget the plans of epochs that were never committed."""
        gone = _epochs.delete().where(
            _epochs.c.pipeline == lease.pipeline, _epochs.c.epoch.in_(epochs), _epochs.c.record.is_(None)
        )
        if connection.execute(gone).rowcount != len(epochs):
            raise LeaseLostError(
                f"another host has committed an epoch of '{lease.pipeline}' that was about to be repaired",
                cure="nothing was changed; the next start checks again",
            )

    def write_commit(
        self,
        connection: sa.Connection,
        lease: Lease,
        epoch: int,
        record: str,
        now: float,
        *,
        generation: int = 0,
        whole: int | None = None,
        forget: Collection[int] = (),
    ) -> bool:
        """Commit a planned epoch, of the plan of a generation, and forget other commits. The record goes back to that
        of the epoch `whole`, unless it is whole itself. False if the epoch was committed before: then nothing has
        changed."""
        last = connection.execute(_LAST_OF, {"of": lease.pipeline}).one()
        previous = last.epoch
        if previous is not None and epoch <= previous:
            return False
        if previous is not None and epoch != previous + 1:
            raise HoldfastError(
                f"epoch {epoch} cannot follow epoch {previous}",
                cure="epochs are committed in order; this is a bug in Holdfast",
                epoch=epoch,
            )
        if last.generation:
            check_generation(connection, lease.pipeline, epoch, generation, self.version)
        text = record if whole is None else as_change(record, whole)
        sealed = SealedPlace("record", lease.pipeline, epoch).sealed(text)
        done = connection.execute(_COMMIT, {"of": lease.pipeline, "number": epoch, "sealed": sealed, "now": now})
        if done.rowcount != 1:
            raise HoldfastError(
                f"epoch {epoch} was not planned",
                cure="an epoch is planned before it runs; this is a bug in Holdfast",
                epoch=epoch,
            )
        self.forget_commits(connection, lease, forget)
        return True

    def forget_commits(self, connection: sa.Connection, lease: Lease, epochs: Collection[int]) -> None:
        """Forget epochs that nothing goes back to."""
        if epochs:
            connection.execute(_FORGET, [{"of": lease.pipeline, "number": epoch} for epoch in epochs])

    def rewrite_commit(self, connection: sa.Connection, lease: Lease, epoch: int, record: str) -> None:
        """Replace the record of a committed epoch by another whole one, e.g. because its state was made again and lies
        in other p-units. The record of the next epoch must not be a change of it."""
        done = connection.execute(
            _epochs.update()
            .where(_epochs.c.pipeline == lease.pipeline, _epochs.c.epoch == epoch, _epochs.c.record.is_not(None))
            .values(record=SealedPlace("record", lease.pipeline, epoch).sealed(record))
        )
        if done.rowcount != 1:
            raise HoldfastError(
                f"epoch {epoch} was not committed, or is no longer retained",
                cure="only the record of a committed epoch can be replaced; this is a bug in Holdfast",
                epoch=epoch,
            )

    def rewrite(self, connection: sa.Connection, lease: Lease, epoch: PlannedEpoch | Commit) -> None:
        """Replace the texts of an epoch, its record being whole, e.g. because operators have other names."""
        values = {"plan": SealedPlace("plan", lease.pipeline, epoch.epoch).sealed(epoch.plan)}
        if isinstance(epoch, Commit):
            values["record"] = SealedPlace("record", lease.pipeline, epoch.epoch).sealed(epoch.record)
        mine = _epochs.c.pipeline == lease.pipeline, _epochs.c.epoch == epoch.epoch
        connection.execute(_epochs.update().where(*mine).values(values))

    def find(self, connection: sa.Connection, pipeline: str, epoch: int) -> Commit | PlannedEpoch | None:
        """An epoch as it is now: committed, planned, or not known (any more)."""
        row = connection.execute(_ONE, {"of": pipeline, "number": epoch}).one_or_none()
        if row is None or row.record is None:
            return None if row is None else self._planned_of(row)
        whole = whole_before(self._stored(row))
        rows = [row]
        if whole is not None:
            rows = list(connection.execute(_BETWEEN, {"of": pipeline, "first": whole, "last": epoch}).all())
        return self._commit_of(row, {one.epoch: self._stored(one) for one in rows if one.record is not None})

    def find_last(self, connection: sa.Connection, pipeline: str) -> Commit | None:
        """The last commit, if there is one."""
        epoch = connection.execute(_LAST, {"of": pipeline}).scalar_one()
        found = None if epoch is None else self.find(connection, pipeline, epoch)
        return found if isinstance(found, Commit) else None

    def find_all(self, connection: sa.Connection, pipeline: str) -> list[Commit | PlannedEpoch]:
        """All epochs that are known, oldest first."""
        rows = connection.execute(_ALL, {"of": pipeline}).all()
        stored = {row.epoch: self._stored(row) for row in rows if row.record is not None}
        return [self._planned_of(row) if row.record is None else self._commit_of(row, stored) for row in rows]

    # epochs, as readers see them

    def last_commit(self, pipeline: str) -> Commit | None:
        with self.reading() as connection:
            return self.find_last(connection, pipeline)

    def last_epoch(self, pipeline: str) -> int:
        """The last committed epoch, without its record; 0 before the first."""
        with self.reading() as connection:
            return self.last_committed(connection, pipeline)

    def last_committed(self, connection: sa.Connection, pipeline: str) -> int:
        """The same, as a transaction sees it."""
        return int(connection.execute(_LAST, {"of": pipeline}).scalar() or 0)

    def commits(self, pipeline: str) -> list[Commit]:
        """The commits that are known, newest first."""
        return self.history(pipeline)[0]

    def planned(self, pipeline: str) -> list[PlannedEpoch]:
        """Epochs that were planned and not committed, oldest first: they must run as planned."""
        return self.history(pipeline)[1]

    def history(self, pipeline: str) -> tuple[list[Commit], list[PlannedEpoch]]:
        """The retained commits, newest first, and what was planned behind them, oldest first, as of one moment."""
        with self.reading() as connection:
            known = self.find_all(connection, pipeline)
        commits = [epoch for epoch in reversed(known) if isinstance(epoch, Commit)]
        return commits, [epoch for epoch in known if isinstance(epoch, PlannedEpoch)]

    def look_up(self, pipeline: str, epoch: int) -> Commit | PlannedEpoch | None:
        """An epoch as it is now: committed, planned, or not known (any more)."""
        with self.reading() as connection:
            return self.find(connection, pipeline, epoch)

    def _planned_of(self, row: Any) -> PlannedEpoch:
        return PlannedEpoch(row.epoch, SealedPlace("plan", row.pipeline, row.epoch).opened(row.plan, self.version))

    def _commit_of(self, row: Any, stored: Mapping[int, str]) -> Commit:
        """`stored` has the texts of the records that it may go back to."""
        record, since = split_change(stored[row.epoch]), chain_of(row.pipeline, row.epoch, stored)
        return Commit(row.epoch, self._planned_of(row).plan, record, row.planned_at, row.committed_at, since)

    def _stored(self, row: Any) -> str:
        return SealedPlace("record", row.pipeline, row.epoch).opened(row.record, self.version)


@contextmanager
def opened_meta(store: Path, meta: str | None = None, *, writes: bool = False) -> Iterator[MetaStore]:
    """The meta store of a directory, or that of a URL, which must be there already; to be read, unless one `writes`."""
    check_exists(meta or store)
    opened = MetaStore(meta or store, reads_only=not writes)
    try:
        yield opened
    finally:
        opened.close()
