"""What a database must have before its changes can be read: settings, rights, a publication and a replication slot."""

from __future__ import annotations

from dataclasses import dataclass

import psycopg
from psycopg import sql

from holdfast.connect.bounded_connection import BoundedConnection
from holdfast.connect.sources.postgres_changes import ChangesSource
from holdfast.errors import InputError
from holdfast.ingress.replication_connection import conninfo_of

__all__ = ["SlotFound", "TableFound", "connected", "drop_slot", "find_slot", "find_table", "publish"]


@dataclass(frozen=True, slots=True)
class TableFound:
    """A table by its full name."""

    schema: str
    name: str

    @property
    def quoted(self) -> sql.Identifier:
        return sql.Identifier(self.schema, self.name)


@dataclass(frozen=True, slots=True)
class SlotFound:
    active: bool
    lost: bool


_TABLE = """
SELECT n.nspname, c.relname, c.relreplident::text, current_setting('wal_level'),
       (SELECT rolreplication OR rolsuper FROM pg_roles WHERE rolname = current_user),
       CASE c.relreplident
         WHEN 'f' THEN ARRAY(SELECT attname::text FROM pg_attribute WHERE attrelid = c.oid AND attnum > 0)
         ELSE ARRAY(SELECT a.attname::text FROM pg_index i JOIN pg_attribute a
                    ON a.attrelid = c.oid AND a.attnum = ANY(i.indkey) WHERE i.indrelid = c.oid
                    AND CASE c.relreplident WHEN 'd' THEN i.indisprimary ELSE i.indisreplident END)
       END
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = to_regclass(%s)
"""


def connected(source: ChangesSource) -> psycopg.Connection:
    """A connection for queries."""
    connection = BoundedConnection.connect(conninfo_of(source.url), autocommit=True)
    connection.answer_seconds = source.answer_seconds
    return connection


def find_table(connection: psycopg.Connection, source: ChangesSource) -> TableFound:
    """The table, if its changes can be read."""
    where, _, name = source.table.rpartition(".")
    text = f'"{where}"."{name}"' if where else f'"{name}"'
    found = connection.execute(_TABLE, [text]).fetchone()
    if found is None:
        raise InputError(f"there is no table '{source.table}'", cure="name one that this user sees, or schema.table")
    schema, name, identity, level, may, known = found
    if level != "logical":
        raise InputError(
            f"the database writes its log with wal_level = {level}",
            cure="set wal_level = logical in postgresql.conf and restart the server",
        )
    if not may:
        raise InputError(
            "this user may not read the log of changes", cure="ALTER ROLE ... REPLICATION, or use one that may"
        )
    missing = [key for key in source.key if key not in known]
    if identity == "n" or missing:
        has = ", ".join(known) or "nothing"
        raise InputError(
            f"updates and deletes of table '{source.table}' do not say which row it was: they would say {has}, but"
            f" the key is {', '.join(source.key)}",
            cure=f"give the table a primary key of these columns, or ALTER TABLE {source.table} REPLICA IDENTITY FULL",
        )
    return TableFound(schema, name)


def publish(connection: psycopg.Connection, source: ChangesSource, table: TableFound) -> None:
    """Make the publication if it is not there; see that it has the table."""
    name = source.publication
    if connection.execute("SELECT 1 FROM pg_publication WHERE pubname = %s", [name]).fetchone() is None:
        try:
            connection.execute(
                sql.SQL("CREATE PUBLICATION {} FOR TABLE {} WITH (publish_via_partition_root = true)").format(
                    sql.Identifier(name), table.quoted
                )
            )
        except psycopg.errors.InsufficientPrivilege as error:
            raise InputError(
                f"this user may not create the publication '{name}': {error}",
                cure=f"have the owner run: CREATE PUBLICATION {name} FOR TABLE {source.table} WITH"
                " (publish_via_partition_root = true)",
            ) from None
        except psycopg.errors.DuplicateObject:
            pass  # another host was faster
    has = connection.execute(
        "SELECT 1 FROM pg_publication_tables WHERE pubname = %s AND schemaname = %s AND tablename = %s",
        [name, table.schema, table.name],
    ).fetchone()
    if has is None:
        raise InputError(
            f"the publication '{name}' does not have table '{source.table}'",
            cure=f"ALTER PUBLICATION {name} ADD TABLE {source.table}, or give publication= another name",
        )


def find_slot(connection: psycopg.Connection, slot: str) -> SlotFound | None:
    found = connection.execute(
        "SELECT plugin, active, wal_status = 'lost', database = current_database() FROM pg_replication_slots"
        " WHERE slot_name = %s",
        [slot],
    ).fetchone()
    if found is None:
        return None
    plugin, active, lost, here = found
    if plugin != "pgoutput" or not here:
        raise InputError(
            f"the replication slot '{slot}' belongs to something else, {plugin or 'a copy of the server'}",
            cure="give slot= another name",
        )
    return SlotFound(bool(active), bool(lost))


def drop_slot(connection: psycopg.Connection, slot: str) -> None:
    """Only for slots that this source has made, and has read nothing from."""
    connection.execute("SELECT pg_drop_replication_slot(%s)", [slot])
