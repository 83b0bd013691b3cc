"""The version of a store: making the tables of a new one, and refusing those of versions that cannot be used.

Who writes needs a store of today's version, and makes one where there is none. Who only reads takes an older one as it
is, if all it asks for is there. Neither ever changes the version: that is `upgrade`'s to do (`meta/migration.py`).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import sqlalchemy as sa
from sqlalchemy.exc import DatabaseError, OperationalError

from holdfast.database_url import shown_url
from holdfast.errors import HoldfastError, OldStoreError, UnknownStateError, UnknownVersionError
from holdfast.formats import POSITION_VERSION, STORE_VERSION
from holdfast.meta.sql_tables import info, metadata

__all__ = [
    "NOT_ALLOWED",
    "STORE_KEY",
    "VERSIONS",
    "lacking",
    "named_faults",
    "readable_version",
    "take_turns",
    "version_of",
    "writable_version",
]

STORE_KEY = "store"
VERSIONS = {STORE_KEY: str(STORE_VERSION), "position": str(POSITION_VERSION)}
NOT_ALLOWED = "42501"
# The lock of PostgreSQL under which tables are made: a number that nothing else should use.
_MAKING = 0x484F4C4446415354
_MAKING_MILLIS = 60_000
_SAID = sa.select(info)


def writable_version(engine: sa.Engine) -> int:
    """The version of a store that is to be written: today's. Where nothing is, the tables are made."""
    with named_faults(engine):
        with engine.connect() as connection:
            found = _said(connection)
        if not found:
            found = _made(engine)
        version = _known(found)
        if version < STORE_VERSION:
            raise _too_old(engine, version, f"this program writes version {STORE_VERSION}")
        return version


def readable_version(engine: sa.Engine) -> int:
    """The version of a store that is only to be read. It may be older, as long as its tables have all columns: tables
    that it lacks altogether are read as empty."""
    with named_faults(engine), engine.connect() as connection:
        found = _said(connection)
        if not found:
            raise UnknownStateError(
                f"there is no store in {shown_url(engine.url)}", cure="give the store of a run with --store, or --meta"
            )
        version = _known(found)
        inspector = sa.inspect(connection)
        for name in set(metadata.tables) - lacking(connection):
            columns = {column["name"] for column in inspector.get_columns(name)}
            if not columns >= set(metadata.tables[name].columns.keys()):
                raise _too_old(engine, version, f"its table '{name}' cannot be read as it is")
        return version


def version_of(connection: sa.Connection) -> int:
    """The version that an existing store has now."""
    found = _said(connection)
    if not found:
        raise UnknownStateError("there is no store to upgrade", cure="give the store of a run with --store, or --meta")
    return _known(found)


def lacking(connection: sa.Connection) -> frozenset[str]:
    """The tables that a store of an older version does not have."""
    return frozenset(metadata.tables) - frozenset(sa.inspect(connection).get_table_names())


def take_turns(connection: sa.Connection) -> None:
    """Until the end of the transaction no other process creates tables, also in a database where writers do not
    wait."""
    if connection.dialect.name == "postgresql":
        connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_MAKING)))


@contextmanager
def named_faults(engine: sa.Engine) -> Iterator[None]:
    """Say what is wrong with a database that cannot be opened as a store."""
    try:
        yield
    except OperationalError as error:
        raise HoldfastError(
            f"cannot open the store {shown_url(engine.url)}: {error.orig}",
            cure="check that the database is reachable and not locked, and that this user may write to it",
        ) from error
    except DatabaseError as error:
        if getattr(error.orig, "sqlstate", None) == NOT_ALLOWED:
            raise HoldfastError(
                f"this user may not create tables, or use those that are there, in {shown_url(engine.url)}:"
                f" {error.orig}",
                cure="set up the meta store as an administrator (`holdfast init postgresql://… --role NAME`), or give"
                " the user a schema of its own (CREATE SCHEMA AUTHORIZATION NAME)",
            ) from error
        raise UnknownVersionError(
            f"{shown_url(engine.url)} is not a Holdfast store: {error.orig}",
            cure="point --store or --meta elsewhere, or restore the database from a copy",
        ) from error


def _said(connection: sa.Connection) -> dict[str, str]:
    """What the store says of itself; nothing if it is new."""
    if not sa.inspect(connection).has_table(info.name):
        return {}
    return {row.key: row.value for row in connection.execute(_SAID)}


def _known(found: dict[str, str]) -> int:
    """The version of the store, if this program knows it."""
    for key, version in VERSIONS.items():
        said = found.get(key, "")
        number = int(said) if said.isdecimal() else 0
        if number > int(version):
            raise UnknownVersionError(
                f"the store has {key} version {number}; this program is older, and knows version {version}",
                cure="pip install --upgrade holdfast: all processes of a store need its newest version",
            )
        older = key == STORE_KEY and 1 <= number < STORE_VERSION
        if said != version and not older:
            raise UnknownVersionError(
                f"the store has {key} version {found.get(key)}; this program knows version {version}",
                cure="run the version of Holdfast that wrote the store, or choose another --store",
            )
    return int(found[STORE_KEY])


def _too_old(engine: sa.Engine, version: int, why: str) -> OldStoreError:
    return OldStoreError(
        f"the store {shown_url(engine.url)} has version {version}, and {why}",
        cure="stop what runs on it and run `holdfast upgrade`, with the same --store and --meta: it keeps a backup of"
        " the meta store first",
    )


def _made(engine: sa.Engine) -> dict[str, str]:
    """Make the tables and write the versions, in one transaction. Somebody else may do so at the same time."""
    with engine.execution_options(holdfast_writes=True, holdfast_waits=True).begin() as connection:
        take_turns(connection)
        if connection.dialect.name == "postgresql":
            # Many statements are written one by one: on a busy machine there are pauses between them.
            connection.execute(sa.text(f"SET LOCAL idle_in_transaction_session_timeout = {_MAKING_MILLIS}"))
        if not _said(connection):
            metadata.create_all(connection)
            connection.execute(info.insert(), [{"key": k, "value": v} for k, v in VERSIONS.items()])
        return _said(connection)
