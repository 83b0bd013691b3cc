"""Digests of an operator's state, by which two records of an epoch are compared.

The same state may be in other pieces, merged or not, and in other partitions. So each partition is merged as the
operator itself would do it, and the rows are summed up without an order.
"""

from __future__ import annotations

from collections.abc import Mapping

import polars as pl

from holdfast.epoch.digest import OutputDigest, combined, digest_of
from holdfast.epoch.record import EpochRecord
from holdfast.graph.nodes import Stateful
from holdfast.hidden_columns import DELETED
from holdfast.operators.contract import StateTable
from holdfast.operators.registry import operator_of
from holdfast.operators.step import clock_ticks
from holdfast.plan.program import Program
from holdfast.plan.watermarks import operator_watermark
from holdfast.state.manifest import Manifest, read_piece
from holdfast.store import DirectoryStore

__all__ = ["state_digests"]


def state_digests(
    program: Program, node: Stateful, record: EpochRecord, store: DirectoryStore
) -> Mapping[str, OutputDigest]:
    """The digests of an operator's tables in a record; tables without rows are left out."""
    operator = operator_of(node)
    mark = (
        clock_ticks(record.clock)
        if operator.by_clock
        else operator_watermark(program, node.name, record.greatest, record.done)
    )
    found: dict[str, OutputDigest] = {}
    for table in operator.tables(program.inputs_of(node)):
        for part in record.state[node.name]:
            rows = _merged(node, part, table, mark, store)
            if rows is not None and rows.height:
                found[table.name] = combined(found.get(table.name), digest_of(rows))
    return found


def _merged(
    node: Stateful, part: Manifest, table: StateTable, mark: int | None, store: DirectoryStore
) -> pl.DataFrame | None:
    """The rows of a partition, those of each key as one, without what no later epoch can see."""
    pieces = part.table(table.name)
    if not pieces:
        return None
    stored = read_piece(store, pieces[-1]).schema
    merge = operator_of(node).merged_table(table.name, stored, mark, store)
    rows = merge.merged([merge.read(piece) for piece in pieces], True)
    if DELETED in rows.columns:
        rows = rows.filter(~pl.col(DELETED))
    return rows.select(name for name in table.schema if name in rows.columns)
