"""The first start of a source of changes: its replication slot, and the rows that the table has.

The snapshot is read in the transaction that the making of the slot has exported: it has all that was committed before
the slot begins, and nothing else. One that was interrupted is begun again, with a new slot, behind a row `truncate`:
whoever replays the changes gets the table.
"""

from __future__ import annotations

from datetime import UTC, datetime

import psycopg
from psycopg import sql

from holdfast.errors import InputError
from holdfast.ingress.change_progress import TakenChanges
from holdfast.ingress.change_setup import TableFound, connected, drop_slot, find_slot
from holdfast.ingress.replication_connection import ReplicationConnection, lsn_of
from holdfast.meta import Count

__all__ = ["ChangeBeginning"]


class ChangeBeginning:
    """Makes the slot, and reads the snapshot if one is wanted."""

    def __init__(
        self, taken: TakenChanges, connection: psycopg.Connection, log: ReplicationConnection, table: TableFound
    ) -> None:
        self._taken = taken
        self._source = taken.source
        self._connection = connection
        self._log = log
        self._table = table
        self._name = f"{taken.name} snapshot"
        self._at = taken.target.appender.position(self._name)
        """1 when the slot is about to be made, and one more with each row."""

    def run(self) -> None:
        slot, found = self._source.slot, find_slot(self._connection, self._source.slot)
        if found is not None and not self._at:
            if self._source.snapshot:
                raise InputError(
                    f"the replication slot '{slot}' already exists, and was not created by this pipeline",
                    cure="give slot= another name, or snapshot=False to continue from where the slot is",
                )
            return
        if found is not None:
            if found.active:
                raise psycopg.OperationalError(f"the replication slot '{slot}' is in use")
            drop_slot(self._connection, slot)
        if not self._at and not self._move(1):
            return
        [made] = self._log.execute(f"CREATE_REPLICATION_SLOT {slot} LOGICAL pgoutput EXPORT_SNAPSHOT")
        point = lsn_of(str(made["consistent_point"]))
        if not self._source.snapshot or self._snapshot(str(made["snapshot_name"]), point):
            self._taken.write_whole(self._taken.rows.take(), point)

    def _snapshot(self, name: str, point: int) -> bool:
        """All rows that the table had when the slot was made; what is left over goes with the count of the whole."""
        now, rows = datetime.now(UTC), self._taken.rows
        if self._at > 1:
            rows.add_text("truncate", (), point, 0, now)
        columns = sql.SQL(", ").join(map(sql.Identifier, self._source.columns))
        with connected(self._source) as reader, reader.transaction():
            reader.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
            reader.execute(sql.SQL("SET TRANSACTION SNAPSHOT {}").format(sql.Literal(name)))
            query = sql.SQL("COPY (SELECT {} FROM {}) TO STDOUT").format(columns, self._table.quoted)
            with reader.cursor().copy(query) as copy:
                for number, row in enumerate(copy.rows()):
                    rows.add_text("snapshot", row, point, number, now)
                    large = self._taken.is_large
                    if large and (self._taken.stopping.is_set() or not self._move(rows.height)):
                        return False
        return True

    def _move(self, by: int) -> bool:
        if not self._taken.write(self._taken.rows.take(), Count(self._name, self._at, self._at + by)):
            return False
        self._at += by
        return True
