"""Deduplication: the first row of each key is emitted, and those that repeat it are left out for a time.

Per key, state has the time of the row that was emitted last. The time of a row is its event time, or the watermark
before it where that is later; or, by the clock, that of its epoch's plan. So what is left out follows from the rows in
the order of their source, or from the plans, and never from merges or partitions.
"""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from holdfast.graph.nodes import Deduplicate
from holdfast.hidden_columns import BOUND, NUMBER, POSITION, ROW_TIME, TOUCHED
from holdfast.operators.contract import Operator, StateTable
from holdfast.operators.state_merge import KeyedMerge
from holdfast.operators.step import Grain, StepContext, StepInput, StepResult, effective_bound
from holdfast.spans import duration
from holdfast.state.key_matches import join_on_keys
from holdfast.state.manifest import Manifest
from holdfast.state.pipeline_shape import StateMeaning
from holdfast.state.tables import KeyedTable
from holdfast.store import DirectoryStore

__all__ = ["Deduplications"]

MET = "met"
_NOW = ROW_TIME
"""The time of a row, which takes the place of its event time."""


class Deduplications(Operator[Deduplicate]):
    declared_as = Deduplicate
    by_time = False
    numbered = False
    no_footprints = "which keys have been met is not made of windows"

    @property
    def by_clock(self) -> bool:
        return self.node.ttl is not None

    def grain(self, behind: Grain | None) -> Grain | None:
        """It uses the watermark before each row, and passes that on with the rows."""
        marked = self.node.within is not None or (behind is not None and self.node.time is not None)
        return Grain(1, every=True) if marked else None

    def tables(self, inputs: Sequence[pl.Schema]) -> tuple[StateTable, ...]:
        return (StateTable(MET, True, self._schema(inputs[0]), (TOUCHED,)),)

    def meaning(self, inputs: Sequence[pl.Schema]) -> StateMeaning:
        kept = "for ever" if self._kept is None else "by the clock" if self.by_clock else "by event time"
        return StateMeaning(state={}, window=kept)

    def merged_table(self, table: str, stored: pl.Schema, watermark: int | None, store: DirectoryStore) -> KeyedMerge:
        return KeyedMerge(self._table(stored, store), self._needed(watermark))

    def explain(self) -> list[str]:
        node = self.node
        if node.within is not None:
            kept = f"{node.within} ticks of event time"
        else:
            kept = "for ever" if node.ttl is None else f"{duration(node.ttl / 1e6)} of the clock"
        return [f"the first row by {', '.join(node.keys)}; keys are kept {kept}"]

    def step(self, arrivals: StepInput, context: StepContext, manifest: Manifest) -> StepResult:
        node = self.node
        marked = self.grain(context.grain) is not None
        rows = pl.concat(
            batch.frame.with_columns(effective_bound(batch).alias(BOUND)) if marked else batch.frame
            for batch in arrivals.batches()
        )
        if node.within is not None:
            rows = rows.with_columns(pl.max_horizontal(ROW_TIME, BOUND).alias(_NOW))
        else:
            rows = rows.with_columns(pl.lit(context.clock, pl.Int64).alias(_NOW))
        table = self._table(rows.schema, context.writer.store)
        first = self._first(rows, table, manifest)
        names = [*node.schema.names(), *([BOUND] if marked and node.time is not None else [])]
        newest = first.unique(list(node.keys), keep="last", maintain_order=True)
        watermark = context.clock if self.by_clock else context.watermark_after
        met = newest.rename({_NOW: TOUCHED})
        manifest = table.write(manifest, context.writer, met, None, self._needed(watermark))
        return StepResult(manifest, first.select(names))

    def _first(self, rows: pl.DataFrame, table: KeyedTable, manifest: Manifest) -> pl.DataFrame:
        """The rows to emit, in their order."""
        keys, kept = list(self.node.keys), self._kept
        rows = rows.with_row_index(NUMBER)
        wanted = rows.unique(keys, keep="first", maintain_order=True)
        met = table.lookup(manifest, wanted, wanted[POSITION].to_numpy())
        found: list[pl.DataFrame] = []
        pending = rows
        # A round for each row that a key emits; as a rule, the first is the last.
        while pending.height:
            pending = join_on_keys(pending, met, keys, "left", ordered=True)
            new = pl.col(TOUCHED).is_null()
            pending = pending.filter(new if kept is None else new | (pl.col(_NOW) > pl.col(TOUCHED) + kept))
            first = pending.drop(TOUCHED).unique(keys, keep="first", maintain_order=True)
            found.append(first)
            if kept is None or first.height == pending.height:
                break
            met = first.select(*keys, pl.col(_NOW).alias(TOUCHED))
            pending = join_on_keys(
                pending.drop(TOUCHED), first.select(*keys, pl.col(NUMBER).alias(TOUCHED)), keys, "left"
            )
            pending = pending.filter(pl.col(NUMBER) > pl.col(TOUCHED)).drop(TOUCHED).sort(NUMBER)
        return pl.concat(found).sort(NUMBER) if found else rows

    @property
    def _kept(self) -> int | None:
        """For how many ticks of its time a key is kept."""
        return self.node.within if self.node.ttl is None else self.node.ttl

    def _needed(self, watermark: int | None) -> pl.Expr | None:
        """What merges must keep: keys that a row which is still to come may repeat."""
        if self._kept is None or watermark is None:
            return None
        return pl.col(TOUCHED) + self._kept >= watermark

    def _schema(self, rows: pl.Schema) -> pl.Schema:
        return pl.Schema({**{key: rows[key] for key in self.node.keys}, TOUCHED: pl.Int64()})

    def _table(self, rows: pl.Schema, store: DirectoryStore) -> KeyedTable:
        return KeyedTable(MET, self.node.keys, self._schema(rows), store)
