"""Epochs, and what a pipeline was, in a SQL database through SQLAlchemy Core.

Everything that decides exactly-once happens here in transactions: the plan of an epoch is written before it runs and
the first writer wins; an epoch is committed once, and only by the holder of the lease. Data never comes here.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import sqlalchemy as sa

from holdfast.errors import HoldfastError, LeaseLostError
from holdfast.meta.engine import check_exists
from holdfast.meta.generations import check_generation, generation_of
from holdfast.meta.leases import Lease, Leases
from holdfast.meta.sealed import SealedPlace
from holdfast.meta.tables import epochs as _epochs
from holdfast.meta.tables import info as _info
from holdfast.meta.tables import pipelines as _pipelines
from holdfast.meta.versions import take_turns

__all__ = ["Commit", "MetaStore", "PlannedEpoch", "opened_meta"]

# Statements of every epoch are made once: making one takes longer than the database needs for it.
_IDENTITY = sa.select(_info.c.value).where(_info.c.key == "identity")
_MINE = _epochs.c.pipeline == sa.bindparam("of")
_THIS = _MINE, _epochs.c.epoch == sa.bindparam("number")
_ONE = sa.select(_epochs).where(*_THIS)
_LAST = sa.select(sa.func.max(_epochs.c.epoch)).where(_MINE, _epochs.c.record.is_not(None))
_PLAN = _epochs.insert()
_COMMIT = (
    _epochs.update()
    .where(*_THIS, _epochs.c.record.is_(None))
    .values(record=sa.bindparam("sealed"), committed_at=sa.bindparam("now"))
)
_FORGET = _epochs.delete().where(_MINE, _epochs.c.epoch < sa.bindparam("first"))


@dataclass(frozen=True, slots=True)
class PlannedEpoch:
    """`plan` is JSON text; what is in it is known above (`holdfast.epoch`)."""

    epoch: int
    plan: str


@dataclass(frozen=True, slots=True)
class Commit:
    """`plan` and `record` are JSON text; what is in it is known above (`holdfast.epoch`)."""

    epoch: int
    plan: str
    record: str
    planned_at: float
    committed_at: float


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
            text = connection.execute(
                sa.select(_pipelines.c.shape).where(_pipelines.c.pipeline == pipeline)
            ).scalar_one_or_none()
        return None if text is None else SealedPlace("shape", pipeline).opened(text, self.version)

    def save_shape(
        self,
        lease: Lease,
        shape: str,
        *,
        rewrite: Callable[[Literal["plan", "record"], str], str] | None = None,
        also: Callable[[sa.Connection], None] | None = None,
    ) -> None:
        """Keep what the pipeline looks like from now on, in one transaction with what this means for its epochs:
        `rewrite` gives the text of each plan and each record, `also` writes what else belongs to it."""
        mine = _epochs.c.pipeline == lease.pipeline
        with self.fenced(lease) as connection:
            connection.execute(_pipelines.delete().where(_pipelines.c.pipeline == lease.pipeline))
            sealed = SealedPlace("shape", lease.pipeline).sealed(shape)
            connection.execute(_pipelines.insert().values(pipeline=lease.pipeline, shape=sealed))
            if rewrite is not None:
                for row in connection.execute(sa.select(_epochs).where(mine)).all():
                    texts: dict[Literal["plan", "record"], str | None] = {"plan": row.plan, "record": row.record}
                    fresh = {}
                    for what, text in texts.items():
                        if text is not None:
                            place = SealedPlace(what, lease.pipeline, row.epoch)
                            fresh[what] = place.sealed(rewrite(what, place.opened(text, self.version)))
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
        plan: Callable[[int], str],
        now: float,
        also: Callable[[sa.Connection], None] | None = None,
    ) -> str:
        """Fix the input of an epoch. `plan` gives the text of the plan, for a generation. The first one wins and is
        returned, whoever wrote it. `also` writes what must be written with this plan or not at all."""
        with self.fenced(lease, epoch) as connection:
            known = connection.execute(_ONE, {"of": lease.pipeline, "number": epoch}).one_or_none()
            if known is not None:
                return self._planned_of(known).plan
            if lease.shared and (connection.execute(_LAST, {"of": lease.pipeline}).scalar_one_or_none() or 0) >= epoch:
                raise LeaseLostError(
                    f"epoch {epoch} of '{lease.pipeline}' was committed by another host, and is not kept any more",
                    cure="nothing to do: this host begins again from the last commit",
                    epoch=epoch,
                )
            text = plan(generation_of(connection, lease.pipeline))
            sealed = SealedPlace("plan", lease.pipeline, epoch).sealed(text)
            values = {"pipeline": lease.pipeline, "epoch": epoch, "plan": sealed, "planned_at": now}
            connection.execute(_PLAN, values)
            if also is not None:
                also(connection)
            return text

    def commit(
        self,
        lease: Lease,
        epoch: int,
        record: str,
        now: float,
        *,
        keep_from: int = 0,
        inherit: Callable[[int, str], str] | None = None,
    ) -> bool:
        """Commit a planned epoch alone, in a transaction of its own; see `write_commit`."""
        with self.fenced(lease, epoch) as connection:
            return self.write_commit(connection, lease, epoch, record, now, keep_from=keep_from, inherit=inherit)

    def write_commit(
        self,
        connection: sa.Connection,
        lease: Lease,
        epoch: int,
        record: str,
        now: float,
        *,
        keep_from: int = 0,
        inherit: Callable[[int, str], str] | None = None,
    ) -> bool:
        """Commit a planned epoch and forget commits before `keep_from`, inside a fenced transaction.

        `inherit` gives the record that takes over something from the epoch before, by the number and the record of that
        one, as it is now. False if the epoch was committed before: then nothing has changed.
        """
        previous = connection.execute(_LAST, {"of": lease.pipeline}).scalar_one()
        if previous is not None and epoch <= previous:
            return False
        if previous is not None and epoch != previous + 1:
            raise HoldfastError(
                f"epoch {epoch} cannot follow epoch {previous}",
                cure="epochs are committed in their order; this is a fault in the program",
                epoch=epoch,
            )
        check_generation(connection, lease.pipeline, epoch, record, self.version)
        if inherit is not None and previous is not None:
            row = connection.execute(_ONE, {"of": lease.pipeline, "number": previous}).one()
            before = self._commit_of(row)
            record = inherit(previous, before.record)
        sealed = SealedPlace("record", lease.pipeline, epoch).sealed(record)
        done = connection.execute(_COMMIT, {"of": lease.pipeline, "number": epoch, "sealed": sealed, "now": now})
        if done.rowcount != 1:
            raise HoldfastError(
                f"epoch {epoch} was not planned",
                cure="an epoch is planned before it runs; this is a fault in the program",
                epoch=epoch,
            )
        connection.execute(_FORGET, {"of": lease.pipeline, "first": keep_from})
        return True

    def recommit(self, lease: Lease, epoch: int, record: str, *, keep_from: int = 0) -> None:
        """Replace the record of a committed epoch alone; see `rewrite_commit`."""
        with self.fenced(lease, epoch) as connection:
            self.rewrite_commit(connection, lease, epoch, record, keep_from=keep_from)

    def rewrite_commit(
        self, connection: sa.Connection, lease: Lease, epoch: int, record: str, *, keep_from: int = 0
    ) -> None:
        """Replace the record of a committed epoch, e.g. because its state was made again and lies in other p-units,
        inside a fenced transaction; commits before `keep_from` are forgotten."""
        done = connection.execute(
            _epochs.update()
            .where(_epochs.c.pipeline == lease.pipeline, _epochs.c.epoch == epoch, _epochs.c.record.is_not(None))
            .values(record=SealedPlace("record", lease.pipeline, epoch).sealed(record))
        )
        if done.rowcount != 1:
            raise HoldfastError(
                f"epoch {epoch} was not committed, or is not kept any more",
                cure="only the record of a committed epoch can be replaced; this is a fault in the program",
                epoch=epoch,
            )
        connection.execute(_FORGET, {"of": lease.pipeline, "first": keep_from})

    def last_commit(self, pipeline: str) -> Commit | None:
        commits = self.commits(pipeline, most=1)
        return commits[0] if commits else None

    def last_epoch(self, pipeline: str) -> int:
        """The last committed epoch, without its record; 0 before the first."""
        with self.reading() as connection:
            return int(connection.execute(_LAST, {"of": pipeline}).scalar() or 0)

    def commits(self, pipeline: str, most: int | None = None) -> list[Commit]:
        """The retained commits, newest first."""
        query = (
            sa.select(_epochs)
            .where(_epochs.c.pipeline == pipeline, _epochs.c.record.is_not(None))
            .order_by(_epochs.c.epoch.desc())
        )
        with self.reading() as connection:
            rows = connection.execute(query.limit(most) if most is not None else query).all()
        return [self._commit_of(row) for row in rows]

    def planned(self, pipeline: str) -> list[PlannedEpoch]:
        """Epochs that were planned and not committed, oldest first: they must run as planned."""
        return self.history(pipeline)[1]

    def history(self, pipeline: str) -> tuple[list[Commit], list[PlannedEpoch]]:
        """The retained commits, newest first, and what was planned behind them, oldest first, as of one moment."""
        query = sa.select(_epochs).where(_epochs.c.pipeline == pipeline).order_by(_epochs.c.epoch)
        with self.reading() as connection:
            rows = connection.execute(query).all()
        commits = [self._commit_of(row) for row in reversed(rows) if row.record is not None]
        return commits, [self._planned_of(row) for row in rows if row.record is None]

    def look_up(self, pipeline: str, epoch: int) -> Commit | PlannedEpoch | None:
        """An epoch as it is now: committed, planned, or not known (any more)."""
        with self.reading() as connection:
            row = connection.execute(_ONE, {"of": pipeline, "number": epoch}).one_or_none()
        if row is None:
            return None
        return self._planned_of(row) if row.record is None else self._commit_of(row)

    def _planned_of(self, row: Any) -> PlannedEpoch:
        return PlannedEpoch(row.epoch, SealedPlace("plan", row.pipeline, row.epoch).opened(row.plan, self.version))

    def _commit_of(self, row: Any) -> Commit:
        record = SealedPlace("record", row.pipeline, row.epoch).opened(row.record, self.version)
        return Commit(row.epoch, self._planned_of(row).plan, record, row.planned_at, row.committed_at)


@contextmanager
def opened_meta(store: Path, meta: str | None = None, *, writes: bool = False) -> Iterator[MetaStore]:
    """The meta store of a directory, or that of a URL, which must be there already; to be read, unless one `writes`."""
    check_exists(meta or store)
    opened = MetaStore(meta or store, reads_only=not writes)
    try:
        yield opened
    finally:
        opened.close()
