"""From the version of an old store to today's, step by step, in one transaction, with a backup of what was before.

A version that only added tables needs no step: what is missing is made at the end. A step is a function of the
connection, and works with the tables as the version before had them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import sqlalchemy as sa

from holdfast.errors import AlreadyRunningError, HoldfastError
from holdfast.formats import STORE_VERSION
from holdfast.meta.backup import write_backup
from holdfast.meta.engine import check_exists, open_engine
from holdfast.meta.lease_holder import LeaseHolder
from holdfast.meta.outputs import unpublished_before_version_6
from holdfast.meta.sealed import SealedPlace
from holdfast.meta.sql_tables import info, leases, metadata
from holdfast.meta.versions import STORE_KEY, named_faults, take_turns, version_of

__all__ = ["STEPS", "Step", "Upgraded", "upgrade"]

Step = Callable[[sa.Connection], None]
_MOST_SECONDS = 3600.0
_THE_TABLE = f"FROM pg_class WHERE oid = to_regclass('{info.name}')"
_MAY_CHANGE = sa.text(f"SELECT pg_has_role(relowner, 'USAGE') {_THE_TABLE}")
_OWNER = sa.text(f"SELECT current_user, pg_get_userbyid(relowner), relnamespace::regnamespace::text {_THE_TABLE}")


@dataclass(frozen=True, slots=True)
class Upgraded:
    """What an upgrade has done: nothing, and without a backup, where the version was today's already."""

    before: int
    after: int
    backup: Path | None


def upgrade(where: Path | str, directory: Path, *, now: float) -> Upgraded:
    """Bring a store to today's version, after a backup into the directory. Refused while anybody runs on the
    store."""
    check_exists(where)
    engine = open_engine(where, sync=True).engine
    try:
        with engine.execution_options(holdfast_writes=True, holdfast_waits=True).begin() as connection:
            with named_faults(engine):
                take_turns(connection)
                before = version_of(connection)
            if before == STORE_VERSION:
                return Upgraded(before, before, None)
            _check_owner(connection)
            _stand_alone(connection)
            _refuse_runs(connection, now)
            backup = write_backup(connection, directory, before, now)
            # As a new holder would do: a process that held a lease under the old version is locked out for good.
            connection.execute(leases.update().values(token=leases.c.token + 1))
            _migrate(connection, before)
        return Upgraded(before, STORE_VERSION, backup)
    finally:
        engine.dispose()


def _check_owner(connection: sa.Connection) -> None:
    """The role that runs pipelines may not change tables, if `holdfast init` has made it: tell that before anything
    is done."""
    if connection.dialect.name != "postgresql" or connection.execute(_MAY_CHANGE).scalar_one():
        return
    me, owner, schema = connection.execute(_OWNER).one()
    raise HoldfastError(
        f"'{me}' may not change the tables of the meta store, which belong to '{owner}'",
        cure=f"upgrade as '{owner}', with ?options=-csearch_path%3D{schema} at the end of --meta; nothing was changed",
    )


def _stand_alone(connection: sa.Connection) -> None:
    """No other process writes until the transaction ends; what is being written finishes first."""
    if connection.dialect.name != "postgresql":
        return
    from holdfast.meta.postgresql import take_time  # noqa: PLC0415 - its driver is optional

    take_time(connection, _MOST_SECONDS)
    there = sa.inspect(connection).get_table_names()
    # Leases first: the others' transactions begin there, too.
    names = [leases.name, *sorted(name for name in metadata.tables if name != leases.name and name in there)]
    connection.execute(sa.text(f"LOCK TABLE {', '.join(names)} IN SHARE ROW EXCLUSIVE MODE"))


def _refuse_runs(connection: sa.Connection, now: float) -> None:
    for row in connection.execute(sa.select(leases).order_by(leases.c.pipeline)):
        if LeaseHolder(row.token, row.owner, row.expires).is_running(now):
            raise AlreadyRunningError(
                f"'{row.pipeline}' is being run by {row.owner}",
                cure="stop all pipelines, hosts and receivers of the store first, or wait until the lease expires;"
                " nothing was changed",
            )


def _migrate(connection: sa.Connection, version: int) -> None:
    for known in range(version, STORE_VERSION):
        for step in STEPS[known]:
            step(connection)
    metadata.create_all(connection)
    connection.execute(info.update().where(info.c.key == STORE_KEY).values(value=str(STORE_VERSION)))


def _seal(connection: sa.Connection, table: str, texts: Mapping[str, str], owner: str, number: str | None) -> None:
    """Give the texts of a table their checksums. `texts` says what is in which column."""
    keys = [owner] if number is None else [owner, number]
    known = sa.table(table, *(sa.column(name) for name in (*keys, *texts)))
    for row in connection.execute(sa.select(known)).mappings().all():
        whose = (row[owner], None if number is None else row[number])
        sealed = {
            name: SealedPlace(what, *whose).sealed(row[name]) for name, what in texts.items() if row[name] is not None
        }
        mine = [known.c[key] == row[key] for key in keys]
        connection.execute(known.update().where(*mine).values(sealed))


def _seal_all(connection: sa.Connection) -> None:
    there = sa.inspect(connection).get_table_names()
    _seal(connection, "epochs", {"plan": "plan", "record": "record"}, "pipeline", "epoch")
    _seal(connection, "pipelines", {"shape": "shape"}, "pipeline", None)
    if "stream_entries" in there:
        _seal(connection, "stream_entries", {"content": "entry"}, "stream", "number")


STEPS: Mapping[int, Sequence[Step]] = {
    1: (),  # had no streams
    2: (),  # had no commands
    3: (),  # had no control records in entries, and records without footings
    4: (),  # knew no hosts
    5: (unpublished_before_version_6, _seal_all),  # did not know what was published, and had no checksums
    6: (),  # had whole records only, and a file for each p-unit
}
"""What leads from each version to the next."""
