"""The state of the keys that an epoch brings: looked up before an operator's step, and written after it.

It comes from the table in this process's memory if that stands for the manifest, else from the pieces; what is written
is the same either way.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import numpy.typing as npt
import polars as pl

from holdfast.hidden_columns import POSITION
from holdfast.operators.key_numbers import KeyNumbers, NumberedKeys
from holdfast.state.changed_keys import repeated_key, strange_key
from holdfast.state.manifest import Manifest
from holdfast.state.position import Positions, key_positions
from holdfast.state.resident_cache import RESIDENT, TableId
from holdfast.state.resident_table import HeldRows, ResidentTable, SharedPositionError
from holdfast.state.tables import KeyedTable, Writer

__all__ = ["KeyedState", "open_state"]

Ints = npt.NDArray[np.int64]


class KeyedState(Protocol):
    @property
    def keys(self) -> NumberedKeys:
        """The keys of the epoch."""

    @property
    def known(self) -> pl.DataFrame:
        """The rows of those that have state."""

    def write(self, upserts: pl.DataFrame, deletes: pl.DataFrame, keep: pl.Expr | None) -> Manifest:
        """Write what has changed. Only keys of the epoch may be among it, each once."""


def open_state(table: KeyedTable, manifest: Manifest, writer: Writer, touched: pl.DataFrame) -> KeyedState:
    """The state of the keys of rows that have their positions."""
    name = TableId(str(writer.store.root), writer.prefix, table.name, manifest.interval)
    resident = RESIDENT.take(name, table, manifest, touched.height)
    if resident is not None:
        with suppress(SharedPositionError):
            places = resident.admit(touched, touched[POSITION].to_numpy())
            return _ResidentState(name, table, manifest, writer, resident, resident.distinct(places))
        RESIDENT.refuse(name)
    keys = KeyNumbers.of(touched, table.keys)
    return _StoredState(table, manifest, writer, keys, table.lookup(manifest, keys.frame, keys.positions))


@dataclass(frozen=True, slots=True)
class _StoredState:
    table: KeyedTable
    manifest: Manifest
    writer: Writer
    keys: KeyNumbers
    known: pl.DataFrame

    def write(self, upserts: pl.DataFrame, deletes: pl.DataFrame, keep: pl.Expr | None) -> Manifest:
        return self.table.write(self.manifest, self.writer, upserts, deletes, keep, self.keys.positions)


@dataclass(slots=True)
class _ResidentState:
    """`touched` are the places of the epoch's keys, in order."""

    name: TableId
    table: KeyedTable
    manifest: Manifest
    writer: Writer
    resident: ResidentTable
    touched: Ints
    known: pl.DataFrame = field(init=False)
    _held: HeldRows = field(init=False)

    def __post_init__(self) -> None:
        self._held = self.resident.held(self.touched)
        self.known = self.resident.rows(self._held)

    @property
    def keys(self) -> NumberedKeys:
        return _ResidentKeys(self.resident, self.touched)

    def write(self, upserts: pl.DataFrame, deletes: pl.DataFrame, keep: pl.Expr | None) -> Manifest:
        resident, touched = self.resident, self.touched
        put, gone = _places(resident, upserts, self.table.keys), _places(resident, deletes, self.table.keys)
        changed = resident.changed_among(touched, np.concatenate([put, gone]))
        if isinstance(changed, int):
            names = pl.concat([upserts.select(self.table.keys), deletes.select(self.table.keys)])
            raise strange_key(names.row(changed))
        if len(changed) < len(put) + len(gone):
            names = pl.concat([upserts.select(self.table.keys), deletes.select(self.table.keys)])
            raise repeated_key(names.filter(names.is_duplicated()).row(0))
        if len(changed):
            resident.change(upserts, put, gone, self._held, changed)
        manifest = self.table.write(self.manifest, self.writer, upserts, deletes, keep)
        resident.became(manifest.table(self.table.name))
        RESIDENT.put_back(self.name, resident)
        return manifest


def _places(resident: ResidentTable, rows: pl.DataFrame, keys: tuple[str, ...]) -> Ints:
    if not rows.height:
        return np.zeros(0, dtype=np.int64)
    return resident.find(rows, key_positions([rows[key] for key in keys], rows.height))


class _ResidentKeys:
    """Keys at places of a resident table, numbered in the order of their positions."""

    def __init__(self, resident: ResidentTable, touched: Ints) -> None:
        self._resident, self._touched = resident, touched
        order = resident.by_position(touched)
        self.frame = resident.keys(touched)[order]
        self._numbers = np.empty(len(order), dtype=np.int64)
        self._numbers[order] = np.arange(len(order))

    def __len__(self) -> int:
        return len(self._touched)

    def find(self, rows: pl.DataFrame, positions: Positions | None = None) -> Ints:
        if not len(self) or not rows.height:
            return np.full(rows.height, -1, dtype=np.int64)
        if positions is None:
            positions = key_positions([rows[name] for name in self.frame.columns], rows.height)
        places = self._resident.find(rows, positions)
        at = np.minimum(np.searchsorted(self._touched, places), len(self) - 1)
        return np.where(self._touched[at] == places, self._numbers[at], -1)
