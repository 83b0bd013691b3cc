"""State tables over manifests: rows by pane, and rows by key.

Both are lists of p-units sorted by key position. A *pane table* only grows, each row belonging to a pane of event
time, and forgets whole panes once they lie behind the watermark. A *keyed table* holds the newest row of each key.
Neither changes a file: each operation returns a new manifest and, maybe, writes new p-units.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import polars as pl

from holdfast.errors import OperatorError
from holdfast.pstream import write_punit
from holdfast.state.compaction import MOST_PIECES, merge_from
from holdfast.state.manifest import POSITION, Manifest, Piece, read_piece
from holdfast.state.position import Positions, key_positions
from holdfast.store import DirectoryStore

__all__ = ["DELETED", "PANE", "KeyedTable", "PaneTable", "Writer", "as_now", "group_by_position", "join_on_keys"]

PANE = "__hf_pane"
DELETED = "__hf_deleted"


@dataclass(slots=True)
class Writer:
    """Names and writes the p-units of one attempt of one partition's epoch. Names are never used twice."""

    store: DirectoryStore
    prefix: str
    """Where the operator's p-units live, e.g. `state/window-1`."""
    stem: str
    """Unique to the attempt, e.g. `000000000012-0-9f3a`."""
    written: int = 0
    bytes_written: int = 0

    def next_name(self, table: str) -> str:
        """The name that the next p-unit of this table will have."""
        return f"{self.prefix}/{table}/{self.stem}-{self.written}.arrow"

    def write(self, manifest: Manifest, table: str, rows: pl.DataFrame, low: int = 0, high: int = 0) -> Piece:
        """Write rows, sorted by position already, as a piece of `table`."""
        name = self.next_name(table)
        self.written += 1
        punit = write_punit(self.store, name, rows)
        self.bytes_written += punit.bytes
        return Piece(table, punit, manifest.interval, manifest.interval, low, high)


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
            rows = rows.filter(pl.col(PANE) > expired)
        if rows.height:
            pieces.append(self._write(manifest, writer, rows))
        start = merge_from([piece.punit.rows for piece in pieces])
        if start is not None:
            pieces[start:] = self._merge(manifest, writer, pieces[start:], expired)
        return manifest.with_table(self.name, pieces)

    def _write(self, manifest: Manifest, writer: Writer, rows: pl.DataFrame) -> Piece:
        panes = rows[PANE]
        low, high = panes.min(), panes.max()
        assert isinstance(low, int)
        assert isinstance(high, int)
        return writer.write(manifest, self.name, rows.sort(POSITION, maintain_order=True), low, high)

    def _merge(self, manifest: Manifest, writer: Writer, pieces: Sequence[Piece], expired: int | None) -> list[Piece]:
        rows = pl.concat([read_piece(self.store, piece) for piece in pieces], how="vertical")
        if expired is not None:
            rows = rows.filter(pl.col(PANE) > expired)
        if self.combine is not None:
            rows = self.combine(rows)
        return [self._write(manifest, writer, rows)] if rows.height else []


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

    def _read(self, piece: Piece) -> pl.DataFrame:
        """The rows of a piece, with the columns that the table has now."""
        return as_now(read_piece(self.store, piece), self.schema, self.defaults)

    def lookup(self, manifest: Manifest, keys: pl.DataFrame, positions: Positions) -> pl.DataFrame:
        """The live rows of these distinct keys, in no particular order."""
        wanted, sorted_positions = keys.select(self.keys), positions
        if len(positions) > 1 and not (positions[1:] >= positions[:-1]).all():
            order = np.argsort(positions)
            wanted, sorted_positions = wanted[order], positions[order]
        found: list[pl.DataFrame] = []
        for piece in reversed(manifest.table(self.name)):
            if not len(sorted_positions):
                break
            rows = self._read(piece)
            hit, index = _match(rows, wanted, sorted_positions, self.keys)
            if len(index):
                found.append(rows[index])
                miss = ~hit
                wanted, sorted_positions = wanted.filter(miss), sorted_positions[miss]
        live = [frame.filter(~pl.col(DELETED)).select(self.schema.names()) for frame in found]
        return pl.concat(live) if live else pl.DataFrame(schema=self.schema)

    def scan(self, manifest: Manifest) -> pl.DataFrame:
        """All live rows, sorted by position."""
        merged = self._newest([self._read(piece) for piece in manifest.table(self.name)])
        if merged is None:
            return pl.DataFrame(schema=self.schema)
        return merged.filter(~pl.col(DELETED)).select(self.schema.names())

    def write(
        self,
        manifest: Manifest,
        writer: Writer,
        upserts: pl.DataFrame | None,
        deletes: pl.DataFrame | None,
        keep: pl.Expr | None = None,
    ) -> Manifest:
        """Put in rows and tombstones; each key comes at most once. Merges may drop live rows that fail `keep`."""
        changes = []
        if upserts is not None and upserts.height:
            changes.append(upserts.select(self.schema.names()).with_columns(pl.lit(False).alias(DELETED)))
        if deletes is not None and deletes.height:
            values = [pl.lit(None, dtype).alias(c) for c, dtype in self.schema.items() if c not in self.keys]
            gone = deletes.select(*self.keys, *values).select(self.schema.names())
            changes.append(gone.with_columns(pl.lit(True).alias(DELETED)))
        pieces = list(manifest.table(self.name))
        if changes:
            rows = self._sorted(pl.concat(changes))
            pieces.append(writer.write(manifest, self.name, rows))
        start = merge_from([piece.punit.rows for piece in pieces], self.most_pieces)
        if start is not None:
            merged = self._newest([self._read(piece) for piece in pieces[start:]])
            assert merged is not None
            if start == 0:
                merged = merged.filter(~pl.col(DELETED))
                merged = merged.filter(keep) if keep is not None else merged
            pieces[start:] = [writer.write(manifest, self.name, merged)] if merged.height else []
        return manifest.with_table(self.name, pieces)

    def _sorted(self, rows: pl.DataFrame) -> pl.DataFrame:
        positions = key_positions([rows[key] for key in self.keys], rows.height)
        order = np.argsort(positions)
        positions = positions[order]
        rows = rows[order]
        at = np.flatnonzero(positions[1:] == positions[:-1])
        if len(at) and rows[np.unique([at, at + 1])].select(self.keys).is_duplicated().any():
            repeated = rows[np.unique([at, at + 1])].select(self.keys)
            raise OperatorError(
                f"the key {repeated.filter(repeated.is_duplicated()).row(0)} is written twice in one epoch",
                cure="return one row per key among upserts and deletes, e.g. with group_by(keys).last()",
            )
        return rows.insert_column(0, pl.Series(POSITION, positions))

    def _newest(self, frames: Iterable[pl.DataFrame]) -> pl.DataFrame | None:
        """Merge runs, oldest first, so that the last row of a key wins."""
        frames = list(frames)
        if not frames:
            return None
        if len(frames) == 1:
            return frames[0]
        rows = pl.concat(frames)
        groups = group_by_position(rows, rows[POSITION].to_numpy(), self.keys)
        if groups is None:
            # Different keys with one position: let Polars compare the keys themselves.
            newest = rows.unique(subset=[POSITION, *self.keys], keep="last", maintain_order=True)
            return newest.sort(POSITION, maintain_order=True)
        order, starts = groups
        return rows[np.maximum.reduceat(order, starts)]


def group_by_position(
    rows: pl.DataFrame, positions: Positions, keys: Sequence[str]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]] | None:
    """Rows by key, found by sorting positions: an order of the rows, and where in it each key begins.

    None where different keys share a position. Within a key the order is arbitrary.
    """
    order = np.argsort(positions)
    ranked = positions[order]
    same = ranked[1:] == ranked[:-1]
    at = np.flatnonzero(same)
    if len(at) and _differ(rows, order[at], rows, order[at + 1], keys).any():
        return None
    return order, np.flatnonzero(np.concatenate([[True], ~same])) if len(order) else order


def _differ(
    left: pl.DataFrame, left_rows: np.ndarray, right: pl.DataFrame, right_rows: np.ndarray, keys: Sequence[str]
) -> np.ndarray:
    """Where the keys of two lists of rows differ; nulls are equal to nulls."""
    differs = np.zeros(len(left_rows), dtype=bool)
    for key in keys:
        differs |= left[key].gather(left_rows).ne_missing(right[key].gather(right_rows)).to_numpy()
    return differs


def _match(
    rows: pl.DataFrame, wanted: pl.DataFrame, wanted_positions: Positions, keys: Sequence[str]
) -> tuple[np.ndarray, np.ndarray]:
    """Which wanted keys (sorted by position) `rows` has, and at which row each is."""
    positions = rows[POSITION].to_numpy()
    at = np.searchsorted(positions, wanted_positions, side="left")
    inside = at < len(positions)
    hit = np.zeros(len(at), dtype=bool)
    hit[inside] = positions[at[inside]] == wanted_positions[inside]
    candidates = np.flatnonzero(hit)
    if not len(candidates):
        return hit, at[:0]
    differs = _differ(rows, at[candidates], wanted, candidates, keys)
    if differs.any() or _has_equal_neighbours(wanted_positions):
        return _match_by_keys(rows, wanted, candidates, keys)
    return hit, at[candidates]


def _has_equal_neighbours(positions: Positions) -> bool:
    return bool((positions[1:] == positions[:-1]).any())


def join_on_keys(
    left: pl.DataFrame, right: pl.DataFrame, keys: Sequence[str], how: Literal["inner", "left"], ordered: bool = False
) -> pl.DataFrame:
    """Join on key columns, where nulls equal nulls and NaN equals NaN.

    Polars merges two columns it knows to be sorted without regard to NaN: a single float key is joined beside a
    constant, which keeps it from doing so.
    """
    order: Literal["left", "none"] = "left" if ordered else "none"
    if len(keys) != 1 or not left.schema[keys[0]].is_float():
        return left.join(right, on=list(keys), how=how, nulls_equal=True, maintain_order=order)
    one = pl.lit(0, pl.Int8).alias("__hf_one")
    joined = left.with_columns(one).join(
        right.with_columns(one), on=[*keys, "__hf_one"], how=how, nulls_equal=True, maintain_order=order
    )
    return joined.drop("__hf_one")


def _match_by_keys(
    rows: pl.DataFrame, wanted: pl.DataFrame, candidates: np.ndarray, keys: Sequence[str]
) -> tuple[np.ndarray, np.ndarray]:
    """The rare case that different keys share a position: compare the keys themselves."""
    left = wanted.with_row_index("__hf_want")[candidates]
    right = rows.select(keys).with_row_index("__hf_row")
    joined = join_on_keys(left, right, keys, "inner").sort("__hf_want")
    hit = np.zeros(wanted.height, dtype=bool)
    hit[joined["__hf_want"].to_numpy()] = True
    return hit, joined["__hf_row"].to_numpy()
