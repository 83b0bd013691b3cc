"""Making the tables of a store, and bringing those of an older version up to date."""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy.exc import DatabaseError, OperationalError

from holdfast.errors import HoldfastError, UnknownVersionError
from holdfast.formats import POSITION_VERSION, STORE_VERSION
from holdfast.meta.tables import info, metadata

__all__ = ["prepare_tables", "take_turns"]

_VERSIONS = {"store": str(STORE_VERSION), "position": str(POSITION_VERSION)}
_UPGRADED = ("1", "2", "3", "4")
_NOT_ALLOWED = "42501"
# The lock of PostgreSQL under which tables are made: a number that nobody else should use.
_MAKING = 0x484F4C4446415354


def prepare_tables(engine: sa.Engine) -> None:
    """Make what is not there, and refuse what is not known."""
    try:
        _check_version(engine)
    except OperationalError as error:
        raise HoldfastError(
            f"cannot open the store {engine.url}: {error.orig}",
            cure="see that the database can be reached, that this user may write it, and that nobody locks it",
        ) from error
    except DatabaseError as error:
        if getattr(error.orig, "sqlstate", None) == _NOT_ALLOWED:
            raise HoldfastError(
                f"this user may not make tables in {engine.url}: {error.orig}",
                cure="give the user a database or a schema of its own, e.g. CREATE SCHEMA AUTHORIZATION holdfast",
            ) from error
        raise UnknownVersionError(
            f"{engine.url} is not a Holdfast store: {error.orig}",
            cure="point --store or --meta elsewhere, or restore the database from a copy",
        ) from error


def take_turns(connection: sa.Connection) -> None:
    """Until the end of the transaction nobody else makes tables, also in a database where writers do not wait."""
    if connection.dialect.name == "postgresql":
        connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_MAKING)))


def _check_version(engine: sa.Engine) -> None:
    with engine.connect() as connection:
        found = _versions(connection)
    if not found or found.get("store") in _UPGRADED:
        found = _made(engine)
    for key, version in _VERSIONS.items():
        if found.get(key) != version:
            raise UnknownVersionError(
                f"the store has {key} version {found.get(key)}; this program knows version {version}",
                cure="run the version of Holdfast that wrote the store, or choose another --store",
            )


def _versions(connection: sa.Connection) -> dict[str, str]:
    """What the store says of itself; nothing if it is new."""
    if not sa.inspect(connection).has_table(info.name):
        return {}
    return {row.key: row.value for row in connection.execute(sa.select(info))}


def _made(engine: sa.Engine) -> dict[str, str]:
    """Make or add tables and write the versions, all in one transaction. Somebody else may do so at the same time.

    Version 1 had no streams and 2 no commands: their tables are added. Version 3 had no control records in entries, and
    records without footings; version 4 knew no hosts. Nothing else has changed.
    """
    with engine.execution_options(holdfast_writes=True).begin() as connection:
        take_turns(connection)
        found = _versions(connection)
        if not found:
            metadata.create_all(connection)
            connection.execute(info.insert(), [{"key": k, "value": v} for k, v in _VERSIONS.items()])
        elif found.get("store") in _UPGRADED:
            metadata.create_all(connection)
            connection.execute(info.update().where(info.c.key == "store").values(value=_VERSIONS["store"]))
        return _versions(connection)
