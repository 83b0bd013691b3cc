"""A stateful operator that is not part of the product: the first row of each key, and no other.

It is written as a new operator would be: all of it in one module, and one line in the list of operators, which the
tests add for their time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import polars as pl

import holdfast as hf
from holdfast.graph.checks import check_keys
from holdfast.graph.nodes import Stateful
from holdfast.hidden_columns import POSITION
from holdfast.operators.contract import Operator, StateTable
from holdfast.operators.state_merge import KeyedMerge
from holdfast.operators.step import StepContext, StepInput, StepResult
from holdfast.state.key_matches import join_on_keys
from holdfast.state.manifest import Manifest
from holdfast.state.pipeline_shape import StateMeaning
from holdfast.state.tables import KeyedTable
from holdfast.store import DirectoryStore

MET = "met"


@dataclass(frozen=True, slots=True, kw_only=True)
class Distinct(Stateful):
    """The first row of each key."""


def distinct(stream: hf.Stream, *keys: str, name: str = "distinct") -> hf.Stream:
    check_keys(name, keys, stream.schema)
    node = Distinct(name=name, inputs=(stream.name,), schema=stream.schema, time=None, keys=keys)
    return stream.pipeline.add(node)


class Distincts(Operator[Distinct]):
    declared_as = Distinct
    by_time = False

    def tables(self, inputs: Sequence[pl.Schema]) -> tuple[StateTable, ...]:
        return (StateTable(MET, True, self._keys(inputs[0])),)

    def meaning(self, inputs: Sequence[pl.Schema]) -> StateMeaning:
        return StateMeaning(state={})

    def step(self, arrivals: StepInput, context: StepContext, manifest: Manifest) -> StepResult:
        rows = pl.concat([batch.frame for batch in arrivals.batches()])
        keys = list(self.node.keys)
        first = rows.unique(keys, keep="first", maintain_order=True)
        table = self._table(rows.schema, context.writer.store)
        known = table.lookup(manifest, first, first[POSITION].to_numpy())
        new = join_on_keys(first, known, keys, "anti", ordered=True)
        return StepResult(table.write(manifest, context.writer, new, None), new.select(self.node.schema.names()))

    def merged_table(self, table: str, stored: pl.Schema, watermark: int | None, store: DirectoryStore) -> KeyedMerge:
        return KeyedMerge(self._table(stored, store))

    def explain(self) -> list[str]:
        return [f"the first row by {', '.join(self.node.keys)}; keys are kept for ever"]

    def _keys(self, rows: pl.Schema) -> pl.Schema:
        return pl.Schema({key: rows[key] for key in self.node.keys})

    def _table(self, rows: pl.Schema, store: DirectoryStore) -> KeyedTable:
        return KeyedTable(MET, self.node.keys, self._keys(rows), store)
