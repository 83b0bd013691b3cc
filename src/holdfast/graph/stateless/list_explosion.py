"""`explode`: a row for each element of a list."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import polars as pl

from holdfast.graph.checks import infer
from holdfast.graph.nodes import Node
from holdfast.graph.selections import list_columns
from holdfast.graph.stateless.expression_columns import kept_time
from holdfast.graph.stateless.stateless_operator import Stateless

__all__ = ["Explode", "exploded"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Explode(Stateless):
    """`arrays` are those of the columns that have a fixed number of elements."""

    columns: tuple[str, ...]
    arrays: tuple[str, ...] = ()
    keeps_time: ClassVar[bool] = True

    def apply(self, frames: Sequence[pl.LazyFrame]) -> pl.LazyFrame:
        [frame] = frames
        return _elements(frame, self.columns, self.arrays)

    def reads(self, wanted: frozenset[str] | None) -> frozenset[str] | None:
        return None if wanted is None else wanted | set(self.columns)

    def changes(self, column: str, rows: pl.Schema) -> bool:
        return column in self.columns

    def explain(self) -> list[str]:
        return [f"explode {', '.join(self.columns)}"]


def _elements(frame: pl.LazyFrame, columns: tuple[str, ...], arrays: tuple[str, ...]) -> pl.LazyFrame:
    """One row per element. A row without elements is dropped; Polars alone would keep it with a null."""
    lists = frame.with_columns(pl.col(arrays).arr.to_list()) if arrays else frame
    return lists.filter(pl.col(columns[0]).list.len() > 0).explode(*columns)


def exploded(name: str, rows: Node, columns: Sequence[str]) -> Explode:
    """The operator that outputs a row for each element of these columns, checked."""
    lists, arrays = list_columns(name, rows.schema, columns)
    schema = infer(name, rows.schema, lambda lf: _elements(lf, lists, arrays))
    return Explode(
        name=name, inputs=(rows.name,), schema=schema, time=kept_time(rows, schema), columns=lists, arrays=arrays
    )
