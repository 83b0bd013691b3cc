"""State tables over manifests: rows by pane, and rows by key.

Both are lists of p-units sorted by key position. A *pane table* only grows, each row belonging to a pane of event
time, and forgets whole panes once they lie behind the watermark. A *keyed table* holds the newest row of each key.
Neither changes a file: each operation returns a new manifest and, maybe, writes new p-units.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import polars as pl

from holdfast.hidden_columns import DELETED, PANE, POSITION
from holdfast.pstream import append_punit, write_punit
from holdfast.state.changed_keys import repeated_key, strange_key
from holdfast.state.key_matches import find_rows, newest_rows
from holdfast.state.levels import MOST_PIECES, inline_from, levels_of, sizes_of
from holdfast.state.manifest import Interval, Manifest, Piece, read_piece
from holdfast.state.position import Positions, key_positions
from holdfast.store import DirectoryStore, SegmentWriter

__all__ = ["KeyedTable", "PaneTable", "Writer", "as_now"]


@dataclass(slots=True)
class Writer:
    """Names and writes the p-units of one attempt of one partition's epoch. Names are never used twice.

    Each p-unit is a file of its own or, where there are `segments`, appended to the open one.
    """

    store: DirectoryStore
    prefix: str
    """Where the operator's p-units live, e.g. `state/window-1`."""
    stem: str
    """Unique to the attempt, e.g. `000000000012-0-9f3a`."""
    written: int = 0
    bytes_written: int = 0
    segments: SegmentWriter | None = None
    epoch: int = 0
    """For which the segments are written."""

    def next_name(self, table: str) -> str:
        """The name that the next p-unit of this table will have."""
        return f"{self.prefix}/{table}/{self.stem}-{self.written}.arrow"

    def write(self, interval: Interval, table: str, rows: pl.DataFrame, low: int = 0, high: int = 0) -> Piece:
        """Write rows, sorted by position already, as the piece of `table` that has all of an interval."""
        if self.segments is None:
            punit = write_punit(self.store, self.next_name(table), rows)
        else:
            punit = append_punit(self.segments, self.epoch, rows)
        self.written += 1
        self.bytes_written += punit.bytes
        return Piece(table, punit, interval, interval, low, high)


def _with_rows(pieces: Sequence[Piece], rows: pl.DataFrame | None, most: int) -> tuple[list[list[Piece]], int | None]:
    """The levels of a table that is about to get more rows, and from which of them on to merge those with the rows.

    What is merged at once need not be written before.
    """
    levels = levels_of(pieces)
    added = [int(rows.estimated_size())] if rows is not None and rows.height else []
    return levels, inline_from([*sizes_of(levels), *added], most)


def as_now(rows: pl.DataFrame, schema: pl.Schema, defaults: Mapping[str, Any]) -> pl.DataFrame:
    """Rows of a p-unit in the columns of a table as they are now: a column that was added later has its default, and
    one that is wider now has the same values."""
    hidden = [name for name in (POSITION, DELETED) if name in rows.columns]
    if len(rows.columns) == len(schema) + len(hidden) and all(
        rows.schema.get(name) == dtype for name, dtype in schema.items()
    ):
        return rows if rows.columns[1 : 1 + len(schema)] == schema.names() else _ordered(rows, schema)
    columns = [
        pl.col(name).cast(dtype)
        if name in rows.columns
        else pl.lit(pl.Series([defaults.get(name)], dtype=dtype)).first().alias(name)
        for name, dtype in schema.items()
    ]
    return _ordered(rows.with_columns(columns), schema)


def _ordered(rows: pl.DataFrame, schema: pl.Schema) -> pl.DataFrame:
    return rows.select(POSITION, *schema.names(), *([DELETED] if DELETED in rows.columns else []))


def _later(rows: pl.DataFrame, expired: int) -> pl.DataFrame:
    """The rows of panes after `expired`. As a rule these are all, which is cheaper to see than to filter."""
    earliest = rows[PANE].min()
    if earliest is None or earliest > expired:  # type: ignore[operator]
        return rows
    return rows.filter(pl.col(PANE) > expired)


Combine = Callable[[pl.DataFrame], pl.DataFrame]


@dataclass(frozen=True, slots=True)
class PaneTable:
    """Rows that belong to panes. `combine` merges rows of the same key and pane, where they can be merged."""

    name: str
    store: DirectoryStore
    combine: Combine | None = None

    def read(self, manifest: Manifest, low: int, high: int) -> list[pl.DataFrame]:
        """The rows of panes `low` up to and including `high`, oldest pieces first."""
        frames = []
        for piece in manifest.table(self.name):
            if piece.low <= high and low <= piece.high:
                frame = read_piece(self.store, piece)
                if piece.low < low or piece.high > high:
                    frame = frame.filter(pl.col(PANE).is_between(low, high))
                frames.append(frame)
        return frames

    def append(self, manifest: Manifest, writer: Writer, rows: pl.DataFrame, expired: int | None) -> Manifest:
        """Add rows, and forget the panes up to and including `expired`."""
        pieces = list(manifest.table(self.name))
        if expired is not None:
            pieces = [piece for piece in pieces if piece.high > expired]
            rows = _later(rows, expired)
        rows = rows.sort(POSITION, maintain_order=True) if rows.height else rows
        levels, start = _with_rows(pieces, rows, MOST_PIECES)
        if start is not None:
            frames = [read_piece(self.store, piece) for level in levels[start:] for piece in level]
            rows = self.merged([*frames, rows] if rows.height else frames, expired)
            pieces = [piece for level in levels[:start] for piece in level]
        if rows.height:
            pieces.append(self.write_rows(manifest.interval, writer, rows))
        return manifest.with_table(self.name, pieces)

    def write_rows(self, interval: Interval, writer: Writer, rows: pl.DataFrame) -> Piece:
        """Write rows, sorted by position and at least one, as a piece."""
        low, high = rows[PANE].min(), rows[PANE].max()
        assert isinstance(low, int)
        assert isinstance(high, int)
        return writer.write(interval, self.name, rows, low, high)

    def merged(self, frames: Sequence[pl.DataFrame], expired: int | None) -> pl.DataFrame:
        """The rows of several pieces, oldest first, as those of one."""
        rows = pl.concat(frames, how="vertical")
        if expired is not None:
            rows = _later(rows, expired)
        if self.combine is not None:
            rows = self.combine(rows)
        return rows.sort(POSITION, maintain_order=True)


@dataclass(frozen=True, slots=True)
class KeyedTable:
    """The newest row per key. Rows have POSITION, the key columns, value columns and DELETED."""

    name: str
    keys: tuple[str, ...]
    schema: pl.Schema
    """Key and value columns, without the hidden ones."""
    store: DirectoryStore
    most_pieces: int = MOST_PIECES
    defaults: Mapping[str, Any] = field(default_factory=dict)
    """Values of columns that p-units written before the column was added do not have."""

    def read(self, piece: Piece) -> pl.DataFrame:
        """The rows of a piece, with the columns that the table has now."""
        return as_now(read_piece(self.store, piece), self.schema, self.defaults)

    def lookup(self, manifest: Manifest, keys: pl.DataFrame, positions: Positions) -> pl.DataFrame:
        """The live rows of these distinct keys, in no particular order."""
        wanted = keys.select(self.keys)
        if len(positions) > 1 and not (positions[1:] >= positions[:-1]).all():
            order = np.argsort(positions)
            wanted, positions = wanted[order], positions[order]
        found = find_rows(levels_of(manifest.table(self.name)), self.read, wanted, positions, self.keys)
        return pl.concat(found).pipe(self._live) if found else pl.DataFrame(schema=self.schema)

    def _live(self, rows: pl.DataFrame) -> pl.DataFrame:
        if rows[DELETED].any():
            rows = rows.filter(~pl.col(DELETED))
        return rows.select(self.schema.names())

    def scan(self, manifest: Manifest) -> pl.DataFrame:
        """All live rows, sorted by position."""
        pieces = manifest.table(self.name)
        if not pieces:
            return pl.DataFrame(schema=self.schema)
        return self._live(newest_rows([self.read(piece) for piece in pieces], self.keys))

    def write(
        self,
        manifest: Manifest,
        writer: Writer,
        upserts: pl.DataFrame | None,
        deletes: pl.DataFrame | None,
        keep: pl.Expr | None = None,
        among: Positions | None = None,
    ) -> Manifest:
        """Put in rows and tombstones; each key comes at most once. Merges may drop live rows that fail `keep`.

        `among` are the sorted positions of the keys that may be written, if not all may.
        """
        changes = []
        if upserts is not None and upserts.height:
            changes.append(upserts.select(self.schema.names()).with_columns(pl.lit(False).alias(DELETED)))
        if deletes is not None and deletes.height:
            values = [pl.lit(None, dtype).alias(c) for c, dtype in self.schema.items() if c not in self.keys]
            gone = deletes.select(*self.keys, *values).select(self.schema.names())
            changes.append(gone.with_columns(pl.lit(True).alias(DELETED)))
        return self.append(manifest, writer, self._sorted(pl.concat(changes), among) if changes else None, keep)

    def append(
        self, manifest: Manifest, writer: Writer, rows: pl.DataFrame | None, keep: pl.Expr | None = None
    ) -> Manifest:
        """Put in rows and tombstones that are sorted by position and have it, as pieces do."""
        pieces = list(manifest.table(self.name))
        levels, start = _with_rows(pieces, rows, self.most_pieces)
        if start is not None:
            frames = [self.read(piece) for level in levels[start:] for piece in level]
            rows = self.merged([*frames, rows] if rows is not None else frames, oldest=start == 0, keep=keep)
            pieces = [piece for level in levels[:start] for piece in level]
        if rows is not None and rows.height:
            pieces.append(writer.write(manifest.interval, self.name, rows))
        return manifest.with_table(self.name, pieces)

    def merged(self, frames: Sequence[pl.DataFrame], *, oldest: bool, keep: pl.Expr | None) -> pl.DataFrame:
        """The rows of several pieces, oldest first, as those of one. Tombstones, and live rows that fail `keep`, may
        go where nothing older is hidden by them."""
        rows = newest_rows(frames, self.keys)
        if oldest and rows[DELETED].any():
            rows = rows.filter(~pl.col(DELETED))
        return rows.filter(keep) if oldest and keep is not None else rows

    def _sorted(self, rows: pl.DataFrame, among: Positions | None) -> pl.DataFrame:
        positions = key_positions([rows[key] for key in self.keys], rows.height)
        order = np.argsort(positions)
        positions = positions[order]
        rows = rows[order]
        if among is not None:
            self._no_strangers(rows, positions, among)
        at = np.flatnonzero(positions[1:] == positions[:-1])
        if len(at) and rows[np.unique([at, at + 1])].select(self.keys).is_duplicated().any():
            repeated = rows[np.unique([at, at + 1])].select(self.keys)
            raise repeated_key(repeated.filter(repeated.is_duplicated()).row(0))
        return rows.insert_column(0, pl.Series(POSITION, positions))

    def _no_strangers(self, rows: pl.DataFrame, positions: Positions, among: Positions) -> None:
        """The state of a key that no row brought may live in another partition: it cannot be changed from here."""
        at = np.minimum(np.searchsorted(among, positions), len(among) - 1)
        strange = np.flatnonzero(among[at] != positions)
        if len(strange):
            raise strange_key(rows.select(self.keys).row(int(strange[0])))
