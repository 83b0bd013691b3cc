"""The meta store's place in PostgreSQL, made by an administrator: a role with the rights that runs need, and no others.

The tables are in a schema that is called like the role, where the role finds them by its usual search path. Schema and
tables belong to the administrator: the role reads and writes rows, and can neither make, change nor drop a table. All
statements may be run again, so what is shown (`setup_script`) is what is done (`set_up_database`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.exc import DatabaseError
from sqlalchemy.schema import CreateIndex, CreateTable

from holdfast.database_url import parse_url, shown_url
from holdfast.errors import DeclarationError, HoldfastError, OldStoreError
from holdfast.formats import STORE_VERSION
from holdfast.meta.engine import open_engine
from holdfast.meta.sql_tables import info, metadata
from holdfast.meta.versions import NOT_ALLOWED, VERSIONS, take_turns, version_of

__all__ = ["DatabaseSetup", "admin_url", "set_up_database", "setup_script"]

_DIALECT: Any = postgresql.dialect()  # type: ignore[no-untyped-call]
_NAME = re.compile(r"(?!pg_|public$)[a-z_][a-z0-9_]{0,62}")
_RIGHTS = "SELECT, INSERT, UPDATE, DELETE"
_ROLE = sa.text(
    "SELECT rolsuper, rolcreaterole, rolcreatedb, rolcanlogin, rolname = current_user AS mine FROM pg_roles"
    " WHERE rolname = :role"
)
_OWNERS = sa.text(
    "SELECT pg_get_userbyid(nspowner) AS owner FROM pg_namespace WHERE nspname = :role UNION"
    " SELECT tableowner FROM pg_tables WHERE schemaname = :role"
)
_CONNECTS = sa.text("SELECT has_database_privilege(:role, current_database(), 'CONNECT')")
_MAKES_ELSEWHERE = sa.text(
    "SELECT nspname FROM pg_namespace WHERE has_schema_privilege(:role, oid, 'CREATE') ORDER BY nspname"
)


@dataclass(frozen=True, slots=True)
class DatabaseSetup:
    """What was done: what is not new was there before."""

    new_role: bool
    new_schema: bool
    new_tables: bool
    password_set: bool
    url: str
    """With which runs open the store, without a password."""
    makes_tables_in: tuple[str, ...]
    """Schemas where the role may make tables all the same, because everybody may."""


def set_up_database(url: str, role: str, password: str | None = None) -> DatabaseSetup:
    """Make role, schema and tables where they are missing, in one transaction. An existing store stays as it is."""
    _check_name(role)
    engine = open_engine(url, sync=True).engine
    if engine.dialect.name != "postgresql":
        raise DeclarationError("only PostgreSQL has roles", cure="leave out --role, or give a postgresql:// URL")
    try:
        with _named_rights(engine, role), engine.begin() as connection:
            take_turns(connection)
            new_role = _is_new(connection, role)
            _check_owners(connection, role)
            new_schema = not sa.inspect(connection).has_schema(role)
            connection.exec_driver_sql(f"SET LOCAL search_path = {_quoted(role)}")
            new_tables = new_schema or not sa.inspect(connection).has_table(info.name, schema=role)
            if not new_tables:
                _check_version(connection, url, role)
            for statement in _statements(role):
                connection.exec_driver_sql(statement)
            if not connection.execute(_CONNECTS, {"role": role}).scalar_one():
                database = _quoted(connection.execute(sa.text("SELECT current_database()")).scalar_one())
                connection.exec_driver_sql(f"GRANT CONNECT ON DATABASE {database} TO {_quoted(role)}")
            if password is not None:
                verifier = _verifier(connection, role, password)
                connection.exec_driver_sql(f"ALTER ROLE {_quoted(role)} PASSWORD {verifier}")
            elsewhere = tuple(connection.execute(_MAKES_ELSEWHERE, {"role": role}).scalars())
        return DatabaseSetup(new_role, new_schema, new_tables, password is not None, _url_of(url, role), elsewhere)
    finally:
        engine.dispose()


def setup_script(role: str) -> str:
    """The same as SQL, for `psql` or for somebody who looks at it first. It has no password."""
    _check_name(role)
    lines = ["BEGIN;", *(f"{statement.strip()};" for statement in _statements(role)), "COMMIT;"]
    return "\n".join(lines) + "\n"


def admin_url(url: str, role: str) -> str:
    """With which the owner of the tables finds them, without a password."""
    parsed = parse_url(url, "the meta store", "postgresql://user@host/database")
    given = parsed.query.get("options", "")
    return _shown(parsed.update_query_dict({"options": f"{given} -csearch_path={role}".lstrip()}))


def _url_of(url: str, role: str) -> str:
    parsed = parse_url(url, "the meta store", "postgresql://user@host/database")
    return _shown(parsed.set(username=role, password=None))


def _shown(url: sa.URL) -> str:
    """To be used again: a password that it had is left out."""
    return shown_url(url._replace(password=None))


def _check_name(role: str) -> None:
    if not _NAME.fullmatch(role):
        raise DeclarationError(
            f"a role and its schema cannot be called {role!r}",
            cure="choose a --role of lower-case letters, digits and _, not public, and not beginning with pg_",
        )


def _statements(role: str) -> Iterator[str]:
    """What leads from nothing, or from a part of it, to the whole."""
    name = _quoted(role)
    yield (
        f"DO $holdfast$ BEGIN IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = {_literal(role)}) THEN"
        f" CREATE ROLE {name} LOGIN NOSUPERUSER NOCREATEDB NOCREATEROLE; END IF; END $holdfast$"
    )
    yield f"CREATE SCHEMA IF NOT EXISTS {name}"
    yield f"SET LOCAL search_path = {name}"
    for table in metadata.sorted_tables:
        yield str(CreateTable(table, if_not_exists=True).compile(dialect=_DIALECT))
        for index in sorted(table.indexes, key=lambda index: str(index.name)):
            yield str(CreateIndex(index, if_not_exists=True).compile(dialect=_DIALECT))
    for key, value in VERSIONS.items():
        line = insert(info).values(key=key, value=value).on_conflict_do_nothing()
        yield str(line.compile(dialect=_DIALECT, compile_kwargs={"literal_binds": True}))
    yield f"GRANT USAGE ON SCHEMA {name} TO {name}"
    yield f"GRANT {_RIGHTS} ON ALL TABLES IN SCHEMA {name} TO {name}"
    yield f"GRANT USAGE ON ALL SEQUENCES IN SCHEMA {name} TO {name}"
    # For the tables that an upgrade adds.
    yield f"ALTER DEFAULT PRIVILEGES IN SCHEMA {name} GRANT {_RIGHTS} ON TABLES TO {name}"
    yield f"ALTER DEFAULT PRIVILEGES IN SCHEMA {name} GRANT USAGE ON SEQUENCES TO {name}"


def _is_new(connection: sa.Connection, role: str) -> bool:
    """Whether there is no such role yet. One that has more rights than are given here is refused."""
    found = connection.execute(_ROLE, {"role": role}).one_or_none()
    if found is None:
        return True
    if found.mine:
        raise DeclarationError(
            f"'{role}' is the user of the URL, which owns the tables and so may do anything with them",
            cure="connect as an administrator, and give the name of another user with --role",
        )
    if found.rolsuper or found.rolcreaterole or found.rolcreatedb:
        raise DeclarationError(
            f"the role '{role}' already exists, and may create roles or databases", cure="choose another --role"
        )
    if not found.rolcanlogin:
        raise DeclarationError(
            f"the role '{role}' exists, but may not log in", cure=f"choose another --role, or ALTER ROLE {role} LOGIN"
        )
    return False


def _check_owners(connection: sa.Connection, role: str) -> None:
    me = connection.execute(sa.text("SELECT current_user")).scalar_one()
    others = sorted(set(connection.execute(_OWNERS, {"role": role}).scalars()) - {me})
    if role in others:
        raise DeclarationError(
            f"the schema '{role}' or tables in it belong to the role itself, which may do anything with them",
            cure=f"choose another --role; or make them yours, as a superuser: REASSIGN OWNED BY {role} TO {me}",
        )
    if others:
        raise DeclarationError(
            f"the schema '{role}' or tables in it belong to {', '.join(others)}, not to '{me}'",
            cure=f"connect as {others[0]}, or choose another --role",
        )


def _check_version(connection: sa.Connection, url: str, role: str) -> None:
    version = version_of(connection)
    if version < STORE_VERSION:
        raise OldStoreError(
            f"the store in schema '{role}' has version {version}, but this program writes version {STORE_VERSION}",
            cure="stop what runs on it, then run `holdfast upgrade --store DIR --meta"
            f" '{admin_url(url, role)}'`: it keeps a backup of the meta store first",
        )


def _verifier(connection: sa.Connection, role: str, password: str) -> str:
    """What the server needs to check a password. The password itself does not leave this process, so that no log of
    statements has it."""
    opened: Any = connection.connection.driver_connection
    return _literal(opened.pgconn.encrypt_password(password.encode(), role.encode(), b"scram-sha-256").decode())


@contextmanager
def _named_rights(engine: sa.Engine, role: str) -> Iterator[None]:
    try:
        yield
    except DatabaseError as error:
        if getattr(error.orig, "sqlstate", None) != NOT_ALLOWED:
            raise HoldfastError(
                f"{shown_url(engine.url)} cannot be set up: {error.orig}",
                cure="see what the database says; nothing was changed",
            ) from None
        raise HoldfastError(
            f"this user may not set up the meta store in {shown_url(engine.url)}: {error.orig}",
            cure="connect as a user that may create roles (CREATEROLE) and schemas (CREATE on the database), or give an"
            f" administrator the SQL of `holdfast init URL --role {role} --dry-run`; nothing was changed",
        ) from None


def _quoted(name: str) -> str:
    return str(_DIALECT.identifier_preparer.quote(name))


def _literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
