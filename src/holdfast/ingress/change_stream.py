"""Reads a replication slot: whole transactions together, or pieces of large ones, made durable and then confirmed.

A transaction that the slot sends again is left out by its place in the log. One that is too large for the memory is
written in pieces, with a count of its own until it is whole.
"""

from __future__ import annotations

import logging
import time

import psycopg

from holdfast.ingress.change_progress import STATUS_SECONDS, TakenChanges
from holdfast.ingress.change_setup import TableFound
from holdfast.ingress.pgoutput import (
    Change,
    Relation,
    TransactionBegin,
    TransactionEnd,
    Truncate,
    moment,
    parse_message,
)
from holdfast.ingress.replication_connection import KeepAlive, LogRecord, ReplicationConnection
from holdfast.meta import Count

__all__ = ["ChangeStream"]

_LOOK_SECONDS = 0.5
_SILENT_SECONDS = 60.0
"""A server that lives answers when it is asked to."""
_log = logging.getLogger(__name__)


class ChangeStream:
    """Reads the slot: gathers whole transactions, or pieces of large ones, and writes them."""

    def __init__(self, taken: TakenChanges, log: ReplicationConnection, table: TableFound) -> None:
        self._taken = taken
        self._log = log
        self._table = table
        self._rows = taken.rows
        self._relation: int | None = None
        self._begun: TransactionBegin | None = None
        """The transaction that is coming, if it is not durable."""
        self._seq = 0
        """How many changes of the transaction have come."""
        self._durable = 0
        """And how many of them are durable, in pieces."""
        self._whole = 0
        """How many of the rows are of whole transactions."""
        self._end = taken.at
        """Behind the last of those."""
        self._is_first = True
        self._told = time.monotonic()
        self._silent = 0.0
        """For how long nothing has come, as far as it was waited for."""

    def run(self) -> None:
        self._log.stream(self._taken.source.slot, self._taken.source.publication)
        self._taken.streaming = True
        self._tell(self._taken.at)
        going_on = True
        while going_on:
            wait = 0.0 if self._whole else _LOOK_SECONDS
            found = self._log.read(wait)
            self._silent = self._silent + wait if found is None else 0.0
            if self._silent > _SILENT_SECONDS:
                raise psycopg.OperationalError(f"nothing has arrived for {_SILENT_SECONDS:.0f} seconds")
            if isinstance(found, LogRecord):
                self._take(found.data)
            elif isinstance(found, KeepAlive):
                self._keep_alive(found)
            stopping = self._taken.stopping.is_set()
            # Where nothing more comes for now, who waits for these rows should have them.
            if found is None or stopping or self._taken.is_large:
                going_on = self._flush() and not stopping
            if time.monotonic() - self._told > STATUS_SECONDS:
                self._tell(self._taken.confirmed, answer=True)

    def _tell(self, lsn: int, *, answer: bool = False) -> None:
        self._told = time.monotonic()
        self._taken.confirm(lsn, answer=answer)

    def _keep_alive(self, found: KeepAlive) -> None:
        if self._begun is None and self._end == self._taken.at:
            # Nothing up to there is for us: the server need not keep it.
            if found.answer or found.end > self._taken.confirmed:
                self._tell(max(found.end, self._taken.at))
        elif found.answer:
            self._tell(self._taken.confirmed)

    def _take(self, data: bytes) -> None:
        message = parse_message(data)
        if isinstance(message, Relation):
            self._describe(message)
        elif isinstance(message, TransactionBegin):
            self._begin(message)
        elif self._begun is None:
            pass  # of a transaction that is durable
        elif isinstance(message, Change):
            if message.relation == self._relation and self._is_next():
                self._rows.add(message, self._begun.lsn, self._seq - 1, moment(self._begun.time))
        elif isinstance(message, Truncate):
            if self._relation in message.relations and self._is_next():
                self._rows.add_text("truncate", (), self._begun.lsn, self._seq - 1, moment(self._begun.time))
        elif isinstance(message, TransactionEnd):
            self._begun = None
            if self._seq:
                self._end, self._whole = message.end, self._rows.height

    def _begin(self, message: TransactionBegin) -> None:
        self._seq = self._durable = 0
        self._begun = None if message.lsn < self._taken.at else message

    def _is_next(self) -> bool:
        if self._is_first:  # of the transactions with rows of the table, only this one may have been written in pieces
            assert self._begun is not None
            self._is_first = False
            self._durable = self._taken.target.appender.position(self._piece_name(self._begun))
        self._seq += 1
        return self._seq > self._durable

    def _describe(self, relation: Relation) -> None:
        if (relation.schema, relation.table) != (self._table.schema, self._table.name):
            return
        self._relation = relation.number
        more = self._rows.describe(relation)
        if more:
            _log.warning("source '%s': table '%s' has columns that are not declared and are ignored: %s",
                         self._taken.target.name, self._taken.source.table, ", ".join(more))  # fmt: skip

    def _flush(self) -> bool:
        """Write the rows of whole transactions; those of one that is still coming only if they are too many to wait."""
        large = self._taken.is_large
        if self._begun is not None and not large:
            return True
        if self._end == self._taken.at and not self._rows.height:
            return True
        rows = self._rows.take()
        whole, part = rows.head(self._whole), rows.tail(rows.height - self._whole)
        self._whole = 0
        if self._end != self._taken.at:
            if not self._taken.write_whole(whole, self._end):
                return False
            self._tell(self._end)
        if self._begun is not None and part.height:
            if not self._taken.write(part, Count(self._piece_name(self._begun), self._durable, self._seq)):
                return False
            self._durable = self._seq
        return True

    def _piece_name(self, begun: TransactionBegin) -> str:
        return f"{self._taken.name} {begun.lsn:X}"
