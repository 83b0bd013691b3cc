"""`union`: the rows of several streams."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import polars as pl

from holdfast.errors import WrongTypeError
from holdfast.graph.nodes import Node
from holdfast.graph.stateless.stateless_operator import Stateless

__all__ = ["Union", "united"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Union(Stateless):
    keeps_time: ClassVar[bool] = True

    def apply(self, frames: Sequence[pl.LazyFrame]) -> pl.LazyFrame:
        return pl.concat(_alike(frames), how="vertical") if len(frames) > 1 else frames[0]

    def reads(self, wanted: frozenset[str] | None) -> frozenset[str] | None:
        return wanted

    def changes(self, column: str, rows: pl.Schema) -> bool:
        return False

    def explain(self) -> list[str]:
        return [f"union of {', '.join(self.inputs)}"]


def _alike(frames: Sequence[pl.LazyFrame]) -> list[pl.LazyFrame]:
    """The frames with the columns that all of them have: columns of a source that nobody reads can be missing."""
    schemas = [frame.collect_schema() for frame in frames]
    names = [name for name in schemas[0] if all(name in schema for schema in schemas)]
    return [frame.select(names) for frame in frames]


def united(name: str, first: Node, others: Sequence[Node]) -> Union:
    """The operator that outputs the rows of several streams, checked."""
    for other in others:
        if other.schema != first.schema:
            raise WrongTypeError(
                f"'{other.name}' has {dict(other.schema)}, '{first.name}' has {dict(first.schema)}",
                cure="select the same columns with the same types, in the same order, on both sides",
                operator=name,
            )
        if other.time != first.time:
            raise WrongTypeError(
                f"event time of '{other.name}' is {other.time}, of '{first.name}' {first.time}",
                cure="give both streams the same event time column and unit",
                operator=name,
            )
    inputs = (first.name, *(other.name for other in others))
    return Union(name=name, inputs=inputs, schema=first.schema, time=first.time)
