"""What hosts agree on: which pipelines to run, and which hosts have the seats of each fragment.

What a change of seats means is decided above (`holdfast.replica`); here it is a text that is read and written in one
transaction. The lease of a fragment goes with its first seat, so that whoever had either before is fenced off.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy.exc import IntegrityError

from holdfast.meta.lease_holder import LeaseHolder
from holdfast.meta.leases import Lease
from holdfast.meta.sql_tables import deployments, leases, replicas
from holdfast.meta.store import MetaStore

__all__ = ["ReplicaMeta", "ReplicaRow", "SeatsUpdate"]

_WRONG = ("failed", "failing", "diverged")
# Statements of every beat are made once: making one takes longer than the database needs for it.
_of: sa.BindParameter[str] = sa.bindparam("of")
_all: sa.BindParameter[str] = sa.bindparam("of", expanding=True)
_LOCK = leases.update().where(leases.c.pipeline == _of).values(pipeline=_of)
_SEATS = sa.select(replicas).where(replicas.c.fragment.in_(_all))
_SEATS_OF_ONE = sa.select(replicas).where(replicas.c.fragment == _of)
_LEASES = sa.select(leases).where(leases.c.pipeline.in_(_all))
_LEASE_OF_ONE = sa.select(leases).where(leases.c.pipeline == _of)
_LEASED = (
    leases.update()
    .where(leases.c.pipeline == _of)
    .values({name: sa.bindparam(f"new_{name}") for name in ("token", "owner", "expires")})
)
_DEPLOYED = sa.select(deployments)
_NOTES = sa.select(replicas.c.notes).where(replicas.c.fragment == _of)
_NOTED = replicas.update().where(replicas.c.fragment == _of).values(notes=sa.bindparam("new_notes"))
_SEATED = (
    replicas.update()
    .where(replicas.c.fragment == _of)
    .values({name: sa.bindparam(f"new_{name}") for name in ("seats", "primary_token", "secondary_token", "sharing")})
)


@dataclass(frozen=True, slots=True)
class ReplicaRow:
    """The seats of a fragment, `notes` about it by name, and whether it has come to its end. Seats and notes are JSON
    text; what is in it is known above (`holdfast.replica`)."""

    seats: str
    notes: str
    ended: bool


@dataclass(frozen=True, slots=True)
class SeatsUpdate:
    """What a change of seats leads to. Without `lease` that stays as it is."""

    seats: str
    primary_token: int | None
    secondary_token: int | None
    sharing: bool
    lease: LeaseHolder | None = None


class ReplicaMeta:
    def __init__(self, meta: MetaStore) -> None:
        self._meta = meta

    # deployments

    def deploy(self, pipeline: str, description: str) -> None:
        """Have hosts run a pipeline, by the text of a deployment; what was said of it before is replaced."""
        try:
            with self._meta.writing() as connection:
                mine = deployments.update().where(deployments.c.pipeline == pipeline)
                if connection.execute(mine.values(description=description)).rowcount == 0:
                    connection.execute(deployments.insert().values(pipeline=pipeline, description=description))
        except IntegrityError:  # somebody else was first
            return self.deploy(pipeline, description)

    def withdraw(self, pipeline: str) -> None:
        with self._meta.writing() as connection:
            connection.execute(deployments.delete().where(deployments.c.pipeline == pipeline))

    def deployed(self) -> dict[str, str]:
        """The text of each pipeline's deployment."""
        if not self._meta.has(deployments):
            return {}
        with self._meta.reading() as connection:
            rows = connection.execute(_DEPLOYED).all()
        return {row.pipeline: row.description for row in rows}

    # seats

    def open(self, fragment: str, seats: str, notes: str) -> None:
        """Begin with these seats, unless the fragment has some already; then it continues with what is known of it, but
        for what went wrong."""
        fresh = {"fragment": fragment, "seats": seats, "sharing": False, "ended": False}
        try:
            with self._meta.writing() as connection:
                _lock(connection, fragment)
                mine = replicas.c.fragment == fragment
                text = connection.execute(_NOTES, {"of": fragment}).scalar_one_or_none()
                if text is None:
                    connection.execute(replicas.insert().values({**fresh, "notes": notes}))
                    return None
                kept = {name: note for name, note in json.loads(text).items() if name not in _WRONG}
                values = {"notes": json.dumps({**kept, **json.loads(notes)}), "ended": False}
                connection.execute(replicas.update().where(mine).values(values))
        except IntegrityError:  # somebody else was first
            return self.open(fragment, seats, notes)

    def rows(self, fragments: Sequence[str]) -> dict[str, ReplicaRow]:
        if not self._meta.has(replicas):
            return {}
        with self._meta.reading() as connection:
            return _rows(connection, fragments)

    def change(
        self, fragments: Sequence[str], change: Callable[[str, ReplicaRow, LeaseHolder | None], SeatsUpdate | None]
    ) -> dict[str, ReplicaRow]:
        """Change the seats of fragments in one transaction: `change` gives what they become, or None to leave them.
        Returns the rows as they are then."""
        with self._meta.writing() as connection:
            for fragment in sorted(fragments):  # in one order, so that there is no deadlock
                _lock(connection, fragment)
            found = _rows(connection, fragments)
            held = {
                row.pipeline: LeaseHolder(row.token, row.owner, row.expires)
                for row in _asked(connection, _LEASES, _LEASE_OF_ONE, fragments)
            }
            for fragment, row in found.items():
                after = change(fragment, row, held.get(fragment))
                if after is not None:
                    _write(connection, fragment, after)
                    found[fragment] = ReplicaRow(after.seats, row.notes, row.ended)
            return found

    def note(self, fragment: str, notes: str) -> None:
        """Write down what there is to know about a fragment, under the names given."""
        with self._meta.writing() as connection:
            _lock(connection, fragment)
            text = connection.execute(_NOTES, {"of": fragment}).scalar_one()
            after = json.dumps({**json.loads(text), **json.loads(notes)})
            connection.execute(_NOTED, {"of": fragment, "new_notes": after})

    def end(self, lease: Lease) -> None:
        """The fragment has ended: no host needs to run it. Only its primary can say so."""
        fragment = lease.pipeline
        with self._meta.fenced(lease) as connection:
            connection.execute(replicas.update().where(replicas.c.fragment == fragment).values(ended=True))


def _lock(connection: sa.Connection, fragment: str) -> None:
    """All transactions of a fragment begin by touching its lease."""
    touched = connection.execute(_LOCK, {"of": fragment})
    if touched.rowcount == 0:
        values = {"pipeline": fragment, "token": 0, "owner": "", "expires": 0.0}
        connection.execute(leases.insert().values(values))


def _rows(connection: sa.Connection, fragments: Sequence[str]) -> dict[str, ReplicaRow]:
    found = _asked(connection, _SEATS, _SEATS_OF_ONE, fragments)
    return {row.fragment: ReplicaRow(row.seats, row.notes, row.ended) for row in found}


def _asked(
    connection: sa.Connection, of_all: sa.Select[Any], of_one: sa.Select[Any], fragments: Sequence[str]
) -> Sequence[sa.Row[Any]]:
    """Most pipelines are one fragment: a statement whose length does not depend on what is given is ready at once."""
    if len(fragments) == 1:
        return connection.execute(of_one, {"of": fragments[0]}).all()
    return connection.execute(of_all, {"of": list(fragments)}).all()


def _write(connection: sa.Connection, fragment: str, after: SeatsUpdate) -> None:
    values = {
        "of": fragment,
        "new_seats": after.seats,
        "new_primary_token": after.primary_token,
        "new_secondary_token": after.secondary_token,
        "new_sharing": after.sharing,
    }
    connection.execute(_SEATED, values)
    if after.lease is not None:
        lease = {"new_token": after.lease.token, "new_owner": after.lease.owner, "new_expires": after.lease.expires}
        connection.execute(_LEASED, {"of": fragment, **lease})
