"""Merging pieces of any operator's state, apart from its epochs.

A merge keeps what the operator would find: the newest row of a key, the partials of panes that are not closed. It may
leave out what no later epoch can see, as of `watermark`, which only ever rises.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import polars as pl

from holdfast.epoch.steps.base import single_keyed
from holdfast.epoch.steps.process import kept_by_merges
from holdfast.epoch.steps.time_window import expired_panes, pane_table
from holdfast.epoch.steps.timers import timer_table
from holdfast.epoch.steps.trace_panes import FOOTPRINTS, footprint_table
from holdfast.graph.nodes import KeyedProcess, Stateful, StreamJoin, WindowAggregate
from holdfast.graph.windows import CountWindow, SessionWindow, TimeWindow
from holdfast.plan.kept import count_schema, process_schema, session_schema
from holdfast.plan.lift import shape_of
from holdfast.state.compaction import Merge
from holdfast.state.footprints import TAU
from holdfast.state.manifest import Interval, Piece, read_piece
from holdfast.state.tables import KeyedTable, PaneTable, Writer
from holdfast.store import DirectoryStore

__all__ = ["merge_pieces"]


def merge_pieces(node: Stateful, table: str, merge: Merge, watermark: int | None, writer: Writer) -> list[Piece]:
    """Write the pieces that take the place of `merge.pieces`, one interval after the other."""
    made = _pane_table(node, table, watermark, writer.store)
    if made is None:
        return _merge_keyed(node, table, merge, watermark, writer)
    panes, expired = made
    found: list[Piece] = []
    for interval in merge.intervals:
        frames = _frames(merge, interval, lambda piece: read_piece(writer.store, piece))
        rows = panes.merged(frames, expired) if frames else None
        if rows is not None and rows.height:
            found.append(panes.write_rows(interval, writer, rows))
    return found


def _merge_keyed(node: Stateful, table: str, merge: Merge, watermark: int | None, writer: Writer) -> list[Piece]:
    keyed = _keyed_table(node, table, read_piece(writer.store, merge.pieces[-1]).schema, writer.store)
    keep = kept_by_merges(node, watermark) if isinstance(node, KeyedProcess) else None
    found: list[Piece] = []
    for interval in merge.intervals:
        frames = _frames(merge, interval, keyed.read)
        rows = keyed.merged(frames, oldest=merge.oldest, keep=keep) if frames else None
        if rows is not None and rows.height:
            found.append(writer.write(interval, table, rows))
    return found


def _frames(merge: Merge, interval: Interval, read: Callable[[Piece], pl.DataFrame]) -> Sequence[pl.DataFrame]:
    """What the pieces have in an interval, oldest first."""
    seen = ((piece, piece.interval.both(interval)) for piece in merge.pieces)
    return [read(replace(piece, interval=both)) for piece, both in seen if both is not None]


def _pane_table(
    node: Stateful, table: str, watermark: int | None, store: DirectoryStore
) -> tuple[PaneTable, int | None] | None:
    """The table, if it is one of panes, and the last pane that nobody needs."""
    if table == "timers":
        return timer_table(store), watermark
    if not isinstance(node, StreamJoin | WindowAggregate) or not isinstance(node.window, TimeWindow):
        return None
    expired = None if watermark is None else expired_panes(shape_of(node.window, node.time), watermark)
    if table == FOOTPRINTS:
        return footprint_table(node, store), expired
    return (PaneTable(table, store) if isinstance(node, StreamJoin) else pane_table(node, store)), expired


def _keyed_table(node: Stateful, table: str, stored: pl.Schema, store: DirectoryStore) -> KeyedTable:
    """The table as the operator itself would open it; `stored` has the types of its keys."""
    if isinstance(node, KeyedProcess):
        types = pl.Schema({key: stored[key] for key in node.keys})
        return KeyedTable(table, node.keys, process_schema(node, types), store, defaults=node.defaults)
    assert isinstance(node, WindowAggregate)
    node = single_keyed(node)
    assert isinstance(node.window, CountWindow | SessionWindow)
    if isinstance(node.window, CountWindow):
        return KeyedTable(table, node.keys, count_schema(node, traced=TAU in stored), store)
    schema = session_schema(node)
    return KeyedTable(table, node.keys, schema, store)
