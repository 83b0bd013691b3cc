"""Footprints of time windows and windowed joins: what names the state is the key and the pane.

Rows of a pane only ever get more, and lie in many pieces of a pane table, so an index beside it has the epoch of each
window's last footprint. A footprint of a time window is its partials; that of a join, all rows that wait in it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import polars as pl

from holdfast.graph.nodes import Stateful
from holdfast.hidden_columns import PANE, POSITION, TAU
from holdfast.operators.footprint_trace import FootprintTrace
from holdfast.state.footprints import FootprintKind, window_codes
from holdfast.state.key_matches import differ
from holdfast.state.manifest import Manifest, read_piece
from holdfast.state.tables import PaneTable, Writer
from holdfast.store import DirectoryStore

__all__ = ["FOOTPRINTS", "Current", "PaneTrace", "footprint_table", "index_loaded", "names_of", "read_windows"]

FOOTPRINTS = "footprints"
_NONE = -1
Current = Callable[[Manifest, pl.DataFrame | None], pl.DataFrame | None]
"""From a manifest and names of windows to their records; without names, those of all; None if there is none."""


def names_of(node: Stateful) -> list[str]:
    """What names a window, its position first."""
    return [POSITION, *node.keys, PANE]


def footprint_table(node: Stateful, store: DirectoryStore) -> PaneTable:
    """The index: the epoch of the last footprint of each window."""

    def newest(rows: pl.DataFrame) -> pl.DataFrame:
        return rows.unique(subset=names_of(node), keep="last", maintain_order=True)

    return PaneTable(FOOTPRINTS, store, newest)


def read_windows(
    table: PaneTable, manifest: Manifest, names: pl.DataFrame | None, by: Sequence[str]
) -> pl.DataFrame | None:
    """All rows of these windows, or of all windows; None if there is none."""
    if names is None:
        frames = [read_piece(table.store, piece) for piece in manifest.table(table.name)]
        return pl.concat(frames) if frames else None
    low, high = names[PANE].min(), names[PANE].max()
    if low is None:
        return None
    assert isinstance(low, int)
    assert isinstance(high, int)
    frames = [_between(frame, names[POSITION]) for frame in table.read(manifest, low, high)]
    if not frames:
        return None
    return pl.concat(frames).join(names, on=list(by), how="semi", nulls_equal=True, maintain_order="left")


def _between(rows: pl.DataFrame, positions: pl.Series) -> pl.DataFrame:
    """The rows from the least to the greatest of these positions: pieces are sorted by them."""
    wanted, there = positions.to_numpy(), rows[POSITION].to_numpy()
    start = int(np.searchsorted(there, wanted.min(), side="left"))
    stop = int(np.searchsorted(there, wanted.max(), side="right"))
    return rows.slice(start, stop - start)


def index_loaded(node: Stateful, rows: pl.DataFrame, manifest: Manifest, writer: Writer) -> Manifest:
    """The index of windows whose state was loaded from footprints (`rows`, with TAU)."""
    index = rows.select(*names_of(node), TAU).unique(maintain_order=True)
    return footprint_table(node, writer.store).append(manifest, writer, index, None)


class PaneTrace:
    """The trace of an operator whose state is in panes, around one step of it."""

    def __init__(self, trace: FootprintTrace, node: Stateful, store: DirectoryStore) -> None:
        self._trace = trace
        self._names = names_of(node)
        self._table = footprint_table(node, store)
        self._arrived: pl.Series | None = None
        """The epoch of the last footprint that the window of each arrived row has."""
        self._first = False
        """Whether there was no state before."""

    def unseen(self, manifest: Manifest, sides: Sequence[pl.DataFrame]) -> list[pl.DataFrame]:
        """What arrived, without what windows have seen already; to be called with all of it first."""
        self._first = not manifest.pieces
        taus = [self._lookup(manifest, rows) for rows in sides]
        if self._trace.order.replaying:
            fresh = [(last < self._trace.epoch).fill_null(True) for last in taus]
            sides = [rows.filter(keep) for rows, keep in zip(sides, fresh, strict=True)]
            taus = [last.filter(keep) for last, keep in zip(taus, fresh, strict=True)]
        self._arrived = pl.concat(taus)
        return list(sides)

    def leave(
        self, manifest: Manifest, writer: Writer, new: pl.DataFrame, current: Current, expired: int | None
    ) -> Manifest:
        """After the step: windows that opened leave a footprint, then those whose last one is too old.

        `new` are the records of what arrived in this epoch, a row for each that was unseen: windows that opened have
        nothing else.
        """
        trace = self._trace
        assert self._arrived is not None
        trace.closed = expired
        still = pl.lit(True) if expired is None else pl.col(PANE) > expired
        if trace.order.opening:
            with trace.opening(first=self._first):
                everything = current(manifest, None)
                left = [self._left((new if everything is None else everything).filter(still), None, FootprintKind.OPEN)]
                return self._table.append(manifest.with_table(FOOTPRINTS, ()), writer, pl.concat(left), expired)
        opened = new.filter(self._arrived.is_null()).filter(still)
        if trace.order.replaying:
            names = opened.select(self._names).unique(maintain_order=True)
            left = [names.with_columns(pl.lit(trace.epoch, pl.Int64).alias(TAU))]
        else:
            left = [self._left(opened, None, FootprintKind.OPEN), *self._too_old(manifest, current, still)]
        return self._table.append(manifest, writer, pl.concat(left), expired)

    def _too_old(self, manifest: Manifest, current: Current, still: pl.Expr) -> list[pl.DataFrame]:
        trace = self._trace
        wanted = still if trace.order.spare is None else still & (pl.col(PANE) > trace.order.spare)
        made: list[pl.DataFrame] = []
        for tau, chunk in trace.chunks(self._names[1:], manifest.interval):
            names = chunk.filter(wanted).unique(maintain_order=True)
            if trace.order.spare is not None and chunk.filter(still & (pl.col(PANE) <= trace.order.spare)).height:
                trace.hold()
            known = names.with_columns(self._lookup(manifest, names)).filter(pl.col(TAU) == tau)
            if made and known.height:  # a window may have more records in this chunk
                known = known.join(pl.concat(made), on=self._names, how="anti", nulls_equal=True, maintain_order="left")
            records = current(manifest, known.select(self._names)) if known.height else None
            if records is not None:
                made.append(self._left(records, known, FootprintKind.CHECK))
            trace.checkpointed(known.height)
        return made

    def _left(self, records: pl.DataFrame, known: pl.DataFrame | None, kind: FootprintKind) -> pl.DataFrame:
        """Leave these records; returns what the index gets."""
        trace = self._trace
        # In order, so that a few of them are found in a small part of a table.
        records = records.sort(POSITION, maintain_order=True)
        trace.leave(records, kind)
        names = records.select(self._names).unique(maintain_order=True)
        taus = pl.repeat(None, names.height, dtype=pl.Int64, eager=True)
        if known is not None:
            taus = names.join(known, on=self._names, how="left", nulls_equal=True, maintain_order="left")[TAU]
        panes = names[PANE].to_numpy().astype(np.int64)
        trace.count(taus, panes, panes)
        return names.with_columns(pl.lit(trace.epoch, pl.Int64).alias(TAU))

    def _lookup(self, manifest: Manifest, rows: pl.DataFrame) -> pl.Series:
        """The epoch of the last footprint of the window of each row; null where it has none.

        Windows are told apart by 64-bit codes, and by their names where it matters.
        """
        nothing = pl.Series(TAU, [], dtype=pl.Int64).extend_constant(None, rows.height)
        if not rows.height:
            return nothing
        panes = rows[PANE].to_numpy()
        frames = self._table.read(manifest, int(panes.min()), int(panes.max()))
        index = pl.concat(frames) if frames else rows.head(0)
        if not index.height:
            return nothing
        codes, wanted = window_codes(index, PANE), window_codes(rows, PANE)
        order = np.argsort(codes, kind="stable")  # the newest of a window comes last
        ranked = codes[order]
        at = np.searchsorted(ranked, wanted, side="right") - 1
        hit = np.flatnonzero((at >= 0) & (ranked[at] == wanted))
        found = order[at[hit]]
        if differ(index[found], rows[hit], self._names).any():  # two windows share a code
            newest = index.unique(subset=self._names, keep="last").select(*self._names, TAU)
            joined = rows.select(self._names).join(
                newest, on=self._names, how="left", nulls_equal=True, maintain_order="left"
            )
            return joined[TAU]
        taus = np.full(rows.height, _NONE, dtype=np.int64)
        taus[hit] = index[TAU].to_numpy()[found]
        return pl.Series(TAU, taus).set(pl.Series(taus == _NONE), None)
