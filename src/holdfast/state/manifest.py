"""Manifests: the processing state of an operator partition as a list of p-units.

A manifest is immutable. Each epoch makes a new one that shares most p-units with the one before; what a manifest
names is all the state there is, so checkpoint, restore and partition are operations on manifests.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec
import numpy as np
import polars as pl

from holdfast.errors import UnknownVersionError
from holdfast.formats import MANIFEST_VERSION
from holdfast.hidden_columns import POSITION
from holdfast.pstream import PUnit, read_punit
from holdfast.store import DirectoryStore
from holdfast.stored_json import JsonForm

__all__ = [
    "FULL_INTERVAL",
    "MANIFEST_FORM",
    "Interval",
    "Manifest",
    "Piece",
    "read_piece",
    "seen_rows_and_bytes",
]


class Interval(msgspec.Struct, frozen=True, array_like=True):
    """Key positions from `lo` up to but not including `hi`."""

    lo: int
    hi: int

    def __post_init__(self) -> None:
        if not 0 <= self.lo <= self.hi <= 1 << 64:
            raise ValueError(f"{self.lo} and {self.hi} are no bounds of positions")

    def contains(self, other: Interval) -> bool:
        return self.lo <= other.lo and other.hi <= self.hi

    def overlaps(self, other: Interval) -> bool:
        return self.lo < other.hi and other.lo < self.hi

    def both(self, other: Interval) -> Interval | None:
        """What two intervals have in common, if anything."""
        lo, hi = max(self.lo, other.lo), min(self.hi, other.hi)
        return Interval(lo, hi) if lo < hi else None


FULL_INTERVAL = Interval(0, 1 << 64)


@dataclass(frozen=True, slots=True)
class Piece:
    """A p-unit as part of a state table, seen through a key interval.

    `low` and `high` bound what the table is ordered by in time (panes, timers), so that a reader can leave a piece
    closed. `span` is the key interval the p-unit was written for.
    """

    table: str
    punit: PUnit
    interval: Interval
    span: Interval
    low: int = 0
    high: int = 0

    @property
    def seen_bytes(self) -> int:
        """About how many bytes of the p-unit are in the interval: positions are hashes, so rows spread evenly."""
        return self.punit.bytes * self.seen_span // (self.span.hi - self.span.lo)

    @property
    def seen_span(self) -> int:
        """How many of the positions that the p-unit was written for are in the interval."""
        return max(0, min(self.interval.hi, self.span.hi) - max(self.interval.lo, self.span.lo))


@dataclass(frozen=True, slots=True)
class Manifest:
    """The state of one partition: its key interval and its pieces, oldest first."""

    interval: Interval = FULL_INTERVAL
    pieces: tuple[Piece, ...] = ()
    version: Any = field(default=MANIFEST_VERSION, kw_only=True)

    def __post_init__(self) -> None:
        if self.version != MANIFEST_VERSION:
            raise UnknownVersionError(
                f"a state manifest has version {self.version}; this program knows version {MANIFEST_VERSION}",
                cure="run the version of Holdfast that wrote the store, or a newer one that can read it",
            )

    def table(self, name: str) -> tuple[Piece, ...]:
        return tuple(piece for piece in self.pieces if piece.table == name)

    def with_table(self, name: str, pieces: Iterable[Piece]) -> Manifest:
        others = tuple(piece for piece in self.pieces if piece.table != name)
        return replace(self, pieces=(*others, *pieces))

    @property
    def rows(self) -> int:
        return sum(piece.punit.rows for piece in self.pieces)


MANIFEST_FORM = JsonForm(Manifest, "a state manifest")


def seen_rows_and_bytes(parts: Iterable[Manifest]) -> tuple[int, int]:
    """The size of the state of all partitions together. They may share a p-unit, each seeing its own part of it."""
    seen: dict[str, tuple[Piece, int]] = {}
    for manifest in parts:
        for piece in manifest.pieces:
            seen[piece.punit.name] = (piece, seen.get(piece.punit.name, (piece, 0))[1] + piece.seen_span)
    found = [(piece.punit, span, piece.span.hi - piece.span.lo) for piece, span in seen.values()]
    return sum(unit.rows * span // all_ for unit, span, all_ in found), sum(
        unit.bytes * span // all_ for unit, span, all_ in found
    )


def read_piece(store: DirectoryStore, piece: Piece) -> pl.DataFrame:
    """The rows of a piece that are in its key interval, sorted by position."""
    frame = read_punit(store, piece.punit)
    if piece.interval.contains(piece.span) or frame.is_empty():
        return frame
    positions = frame[POSITION].to_numpy()
    start = int(np.searchsorted(positions, np.uint64(piece.interval.lo), side="left"))
    stop = frame.height
    if piece.interval.hi < 1 << 64:
        stop = int(np.searchsorted(positions, np.uint64(piece.interval.hi), side="left"))
    return frame.slice(start, stop - start)
