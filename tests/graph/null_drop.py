"""A stateless operator that is not part of the product: the rows without nulls in some columns.

It is written as a new operator would be, with all of it in one module.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import polars as pl

import holdfast as hf
from holdfast.graph.checks import check_columns
from holdfast.graph.stateless.stateless_operator import Stateless


@dataclass(frozen=True, slots=True, kw_only=True)
class DropNulls(Stateless):
    columns: tuple[str, ...]
    keeps_time: ClassVar[bool] = True
    shrinks: ClassVar[bool] = True

    def apply(self, frames: Sequence[pl.LazyFrame]) -> pl.LazyFrame:
        [frame] = frames
        return frame.filter(self.condition)

    @property
    def condition(self) -> pl.Expr:
        return pl.all_horizontal([pl.col(column).is_not_null() for column in self.columns])

    def reads(self, wanted: frozenset[str] | None) -> frozenset[str] | None:
        return None if wanted is None else wanted | set(self.columns)

    def changes(self, column: str, rows: pl.Schema) -> bool:
        return False

    def explain(self) -> list[str]:
        return [f"rows without nulls in {', '.join(self.columns)}"]


def drop_nulls(stream: hf.Stream, *columns: str, name: str = "drop_nulls") -> hf.Stream:
    check_columns(name, columns, stream.schema)
    node = DropNulls(name=name, inputs=(stream.name,), schema=stream.schema, time=stream.time, columns=columns)
    return stream.pipeline.add(node)
