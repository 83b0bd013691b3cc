"""`filter`: the rows for which a predicate holds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import polars as pl

from holdfast.graph.checks import ExprLike
from holdfast.graph.nodes import Node
from holdfast.graph.selections import filter_predicate
from holdfast.graph.stateless.expression_columns import columns_of, sees_bound
from holdfast.graph.stateless.stateless_operator import Stateless
from holdfast.hidden_columns import BOUND, MASK

__all__ = ["Filter", "filtered"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Filter(Stateless):
    predicate: pl.Expr
    keeps_time: ClassVar[bool] = True
    shrinks: ClassVar[bool] = True

    def apply(self, frames: Sequence[pl.LazyFrame]) -> pl.LazyFrame:
        [frame] = frames
        if not sees_bound(frame, (self.predicate,)):
            return frame.filter(self.predicate)
        mask = frame.drop(BOUND).select(self.predicate.alias(MASK))
        return pl.concat([frame, mask], how="horizontal").filter(MASK).drop(MASK)

    def reads(self, wanted: frozenset[str] | None) -> frozenset[str] | None:
        own = columns_of([self.predicate])
        return None if wanted is None or own is None else wanted | own

    @property
    def condition(self) -> pl.Expr | None:
        return self.predicate

    def changes(self, column: str, rows: pl.Schema) -> bool:
        return False

    def explain(self) -> list[str]:
        return [f"filter {self.predicate}"]


def filtered(name: str, rows: Node, predicates: Sequence[ExprLike], constraints: Mapping[str, ExprLike]) -> Filter:
    """The operator that keeps the rows for which all predicates hold, checked."""
    predicate = filter_predicate(name, rows.schema, predicates, constraints)
    return Filter(name=name, inputs=(rows.name,), schema=rows.schema, time=rows.time, predicate=predicate)
