"""The resident tables of a process: which tables stay in memory, and for how long.

A table is taken out for a step and put back after it; what an error interrupts is gone, and is read from its pieces
again. So no thread finds a half-changed table, and two threads never have the same one.

To make a table resident costs as much as to look up a good part of it in its pieces. So it is done once that much was
looked up, and never in the first step of a process, which may be its last. Together the tables take no more than the
budget: those that were used longest ago go, and one that would push out others in constant use does not come in.
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from dataclasses import dataclass

import numpy as np
import polars as pl
import psutil

from holdfast.hidden_columns import DELETED, POSITION
from holdfast.state.key_matches import newest_rows
from holdfast.state.manifest import Interval, Manifest
from holdfast.state.resident_table import ResidentTable, SharedPositionError
from holdfast.state.tables import KeyedTable

__all__ = ["RESIDENT", "ResidentCache", "TableId", "default_budget"]

_EARLY = 4
"""A table becomes resident when one row of so many was looked up in its pieces."""
_OVERHEAD = 2
"""About how many times the bytes of its pieces a table takes in memory."""


@dataclass(frozen=True, slots=True)
class TableId:
    """The table of a partition. `place` tells stores apart."""

    place: str
    operator: str
    table: str
    interval: Interval


@dataclass(slots=True)
class _Visit:
    """Of a table that is not resident: how many rows were looked up, when it was last asked for, and whether keys of
    it share a position."""

    rows: int = 0
    turn: int = 0
    shared: bool = False


@dataclass(slots=True)
class _Kept:
    table: ResidentTable
    turn: int


class ResidentCache:
    """`budget` is in bytes; 0 for none."""

    def __init__(self, budget: int) -> None:
        self.budget = budget
        self._kept: OrderedDict[TableId, _Kept] = OrderedDict()
        self._visits: dict[TableId, _Visit] = {}
        self._turn = 0
        self._lock = threading.Lock()

    def take(self, name: TableId, table: KeyedTable, manifest: Manifest, wanted: int) -> ResidentTable | None:
        """The table as it is by a manifest, for a step that looks up so many rows; None if it is not resident."""
        pieces = manifest.table(table.name)
        with self._lock:
            self._turn += 1
            kept = self._kept.pop(name, None)
            visit = self._visits.setdefault(name, _Visit())
            before, visit.turn = visit.turn, self._turn
        if kept is not None and kept.table.schema == table.schema:
            try:
                if kept.table.go_to(pieces, table.read):
                    return kept.table
            except SharedPositionError:
                visit.shared = True
        size = _OVERHEAD * sum(piece.seen_bytes for piece in pieces)
        rows = sum(piece.punit.rows for piece in pieces)
        due = before and _EARLY * visit.rows >= rows
        visit.rows += wanted
        if visit.shared or not due or not self._has_room(size, before):
            return None
        visit.rows = 0
        try:
            return made_resident(table, manifest)
        except SharedPositionError:
            visit.shared = True
            return None

    def _has_room(self, size: int, before: int) -> bool:
        """Whether a table of this size fits beside those that were used since it was last asked for itself."""
        with self._lock:
            busy = sum(kept.table.nbytes for kept in self._kept.values() if kept.turn > before)
        return busy + size <= self.budget

    def put_back(self, name: TableId, table: ResidentTable) -> None:
        with self._lock:
            self._kept[name] = _Kept(table, self._turn)
            taken = sum(kept.table.nbytes for kept in self._kept.values())
            while taken > self.budget:
                _, gone = self._kept.popitem(last=False)
                taken -= gone.table.nbytes

    def rewritten(self, place: str, operator: str, before: Manifest, after: Manifest) -> None:
        """The rows of a partition were written again, as other pieces."""
        if before == after:
            return
        with self._lock:
            for name, kept in self._kept.items():
                if (name.place, name.operator, name.interval) == (place, operator, before.interval):
                    kept.table.rewritten(before.table(name.table), after.table(name.table))

    def refuse(self, name: TableId) -> None:
        """Different keys of the table share a position: it does not become resident again."""
        with self._lock:
            self._visits.setdefault(name, _Visit()).shared = True

    def close_others(self, place: str, operator: str, intervals: list[Interval]) -> None:
        """Forget the tables of partitions that an operator does not have any more."""
        with self._lock:
            for found in (self._kept, self._visits):
                mine = [name for name in found if (name.place, name.operator) == (place, operator)]
                for name in mine:
                    if name.interval not in intervals:
                        del found[name]

    def clear(self) -> None:
        with self._lock:
            self._kept.clear()
            self._visits.clear()


def made_resident(table: KeyedTable, manifest: Manifest) -> ResidentTable:
    """A table, read from its pieces."""
    pieces = manifest.table(table.name)
    if pieces:
        rows = newest_rows([table.read(piece) for piece in pieces], table.keys)
        if rows[DELETED].any():
            rows = rows.filter(~pl.col(DELETED))
    else:
        empty = pl.DataFrame(schema=table.schema)
        rows = empty.insert_column(0, pl.Series(POSITION, np.zeros(0, dtype=np.uint64)))
    return ResidentTable(table.keys, table.schema, rows, pieces)


def default_budget() -> int:
    """Half of the machine's memory, if each of its cores has a process with such tables."""
    return int(psutil.virtual_memory().total // 2 // max(1, os.cpu_count() or 1))


RESIDENT = ResidentCache(default_budget())
"""Those of this process."""
