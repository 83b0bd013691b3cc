"""Merging pieces of an operator's state, apart from its epochs.

A merge keeps what the operator would find: the newest row of a key, the partials of panes that are not closed. It may
leave out what no later epoch can see, as of a watermark, which only ever rises.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import polars as pl

from holdfast.state.levels import Merge
from holdfast.state.manifest import Interval, Piece, read_piece
from holdfast.state.tables import KeyedTable, PaneTable, Writer

__all__ = ["KeyedMerge", "MergedTable", "PaneMerge", "merge_pieces"]


class MergedTable(Protocol):
    """A table of an operator as a merge needs it."""

    def read(self, piece: Piece) -> pl.DataFrame:
        """The rows of a piece."""

    def merged(self, frames: Sequence[pl.DataFrame], oldest: bool) -> pl.DataFrame:
        """The rows of several pieces, oldest first, as those of one. `oldest` says that no older pieces are left."""

    def write(self, interval: Interval, writer: Writer, rows: pl.DataFrame) -> Piece:
        """Write what was merged, at least one row."""


@dataclass(frozen=True, slots=True)
class PaneMerge:
    """A table of panes; those up to and including `expired` are not needed."""

    table: PaneTable
    expired: int | None

    def read(self, piece: Piece) -> pl.DataFrame:
        return read_piece(self.table.store, piece)

    def merged(self, frames: Sequence[pl.DataFrame], oldest: bool) -> pl.DataFrame:
        return self.table.merged(frames, self.expired)

    def write(self, interval: Interval, writer: Writer, rows: pl.DataFrame) -> Piece:
        return self.table.write_rows(interval, writer, rows)


@dataclass(frozen=True, slots=True)
class KeyedMerge:
    """A table of keys; rows that fail `keep` are not needed."""

    table: KeyedTable
    keep: pl.Expr | None = None

    def read(self, piece: Piece) -> pl.DataFrame:
        return self.table.read(piece)

    def merged(self, frames: Sequence[pl.DataFrame], oldest: bool) -> pl.DataFrame:
        return self.table.merged(frames, oldest=oldest, keep=self.keep)

    def write(self, interval: Interval, writer: Writer, rows: pl.DataFrame) -> Piece:
        return writer.write(interval, self.table.name, rows)


def merge_pieces(table: MergedTable, merge: Merge, writer: Writer) -> list[Piece]:
    """Write the pieces that take the place of `merge.pieces`, one interval after the other."""
    found: list[Piece] = []
    for interval in merge.intervals:
        seen = ((piece, piece.interval.both(interval)) for piece in merge.pieces)
        frames = [table.read(replace(piece, interval=both)) for piece, both in seen if both is not None]
        rows = table.merged(frames, merge.oldest) if frames else None
        if rows is not None and rows.height:
            found.append(table.write(interval, writer, rows))
    return found
