"""The table of count windows: per key, how many rows were seen and the partials of panes that open windows need."""

from __future__ import annotations

import polars as pl

from holdfast.graph.nodes import WindowAggregate
from holdfast.hidden_columns import OPEN, PANE, SEEN, TAU
from holdfast.state.tables import KeyedTable
from holdfast.store import DirectoryStore

__all__ = ["COUNTS", "count_schema", "count_table"]

COUNTS = "counts"


def count_schema(node: WindowAggregate, *, traced: bool = False) -> pl.Schema:
    """Keys, rows seen, and the partials of open panes; where windows leave footprints, the epoch of the last one."""
    fields = {PANE: pl.Int64(), **node.state_schema}
    keys = {key: node.schema[key] for key in node.keys}
    tau: dict[str, pl.DataType] = {TAU: pl.Int64()} if traced else {}
    return pl.Schema({**keys, SEEN: pl.Int64(), OPEN: pl.List(pl.Struct(fields)), **tau})


def count_table(node: WindowAggregate, store: DirectoryStore, *, traced: bool) -> KeyedTable:
    return KeyedTable(COUNTS, node.keys, count_schema(node, traced=traced), store)
