"""Footprints of count windows. What names the state is the key: a footprint has the rows seen and all open panes.

A key leaves a footprint when a window of it opens and when its last open window closes: then it rests, and only keeps
its count. The epoch of the last footprint stands beside the state (TAU), so that no index is needed.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import polars as pl

from holdfast.graph.nodes import WindowAggregate
from holdfast.hidden_columns import OPEN, POSITION, SEEN, TAU
from holdfast.operators.footprint_trace import FootprintTrace
from holdfast.state import extent
from holdfast.state.footprints import FootprintKind
from holdfast.state.key_matches import join_on_keys
from holdfast.state.manifest import Manifest
from holdfast.state.position import key_positions
from holdfast.state.tables import KeyedTable, Writer

__all__ = ["trace_all", "trace_touched", "trace_untouched", "unseen"]

Flags = npt.NDArray[np.bool_]


def unseen(rows: pl.DataFrame, table: KeyedTable, manifest: Manifest, epoch: int) -> pl.DataFrame:
    """The rows of an epoch that is replayed, without those that the footprint of their key has in it."""
    keys = list(table.keys)
    names = rows.select(keys).unique(maintain_order=True)
    known = table.lookup(manifest, names, key_positions([names[key] for key in keys], names.height))
    seen = known.filter(pl.col(TAU) >= epoch).select(keys)
    return join_on_keys(rows, seen, keys, "anti", ordered=True) if seen.height else rows


def trace_touched(
    trace: FootprintTrace, node: WindowAggregate, after: pl.DataFrame, taus: pl.Series, was_open: Flags, began: Flags
) -> pl.DataFrame:
    """The new state of the keys that had rows, with TAU; those whose windows opened or closed, and those whose
    footprint is too old, leave one."""
    is_open = after[OPEN].list.len().fill_null(0).to_numpy() > 0
    if trace.order.replaying or trace.order.opening:
        return after.with_columns(taus.alias(TAU))
    fresh = taus.is_null().to_numpy()
    due = fresh | (began & is_open) | ~is_open | (is_open != was_open)
    kinds = np.where(is_open, FootprintKind.OPEN, FootprintKind.CLOSED).astype(np.uint8)
    leaving, first = due.copy(), np.flatnonzero(due)
    for old in trace.oldest(taus.fill_null(trace.epoch).to_numpy(), due):  # windows that are open, as they were
        leaving[old], kinds[old] = True, FootprintKind.CHECK
        at = np.concatenate([first, old])
        trace.leave(_records(node, after[at]), kinds[at])
        trace.count(taus[at], _classes(was_open[at]), _classes(is_open[at]))
        first = first[:0]
    return after.with_columns(pl.when(pl.Series(leaving)).then(trace.epoch).otherwise(taus).alias(TAU))


def trace_untouched(
    trace: FootprintTrace, node: WindowAggregate, table: KeyedTable, manifest: Manifest, touched: pl.DataFrame | None
) -> list[pl.DataFrame]:
    """The state of keys without rows whose footprint is too old, with their new TAU. `touched` are the keys that had
    rows, with theirs: those for which there was no time have to wait."""
    keys = list(node.keys)
    made: list[pl.DataFrame] = []
    for tau, names in trace.chunks(keys, manifest.interval):
        order = np.argsort(names[POSITION].to_numpy())
        names = names[order]
        found = table.lookup(manifest, names, names[POSITION].to_numpy()).filter(pl.col(TAU) == tau)
        if touched is not None and found.height:
            untouched = join_on_keys(found, touched.select(keys), keys, "anti")
            if untouched.height < found.height:
                waiting = touched.filter(pl.col(TAU) == tau).select(keys)
                if join_on_keys(found, waiting, keys, "anti").height < found.height:
                    trace.hold()
            found = untouched
        if found.height:
            is_open = found[OPEN].list.len().fill_null(0).to_numpy() > 0
            kinds = np.where(is_open, FootprintKind.CHECK, FootprintKind.CLOSED).astype(np.uint8)
            trace.leave(_records(node, found), kinds)
            trace.count(found[TAU], _classes(is_open), _classes(is_open))
            made.append(found.with_columns(pl.lit(trace.epoch, pl.Int64).alias(TAU)))
        trace.checkpointed(found.height)
    return made


def trace_all(
    trace: FootprintTrace, node: WindowAggregate, table: KeyedTable, manifest: Manifest, writer: Writer
) -> Manifest:
    """Every key leaves a footprint."""
    rows = table.scan(manifest).with_columns(pl.lit(trace.epoch, pl.Int64).alias(TAU))
    is_open = rows[OPEN].list.len().fill_null(0).to_numpy() > 0
    trace.leave(_records(node, rows), np.where(is_open, FootprintKind.OPEN, FootprintKind.CLOSED).astype(np.uint8))
    trace.count(rows[TAU], _classes(is_open), _classes(is_open))
    return table.write(manifest.with_table(table.name, ()), writer, rows, None)


def _records(node: WindowAggregate, rows: pl.DataFrame) -> pl.DataFrame:
    positions = key_positions([rows[key] for key in node.keys], rows.height)
    return rows.select(pl.Series(POSITION, positions), *node.keys, SEEN, OPEN)


def _classes(is_open: Flags) -> npt.NDArray[np.int64]:
    return np.where(is_open, extent.OPEN, extent.RESTING)
