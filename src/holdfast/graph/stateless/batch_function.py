"""`map_batches`: a user's function from DataFrame to DataFrame, applied to batches of any size."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import polars as pl

from holdfast.connect.schema import AnySchema, as_schema
from holdfast.errors import DeclarationError, OperatorError, WrongTypeError
from holdfast.graph.nodes import Node
from holdfast.graph.stateless.expression_columns import kept_time
from holdfast.graph.stateless.stateless_operator import Stateless
from holdfast.hidden_columns import BOUND

__all__ = ["BatchFunction", "MapBatches", "mapped"]

BatchFunction = Callable[[pl.DataFrame], pl.DataFrame]


@dataclass(frozen=True, slots=True, kw_only=True)
class MapBatches(Stateless):
    """Any function from DataFrame to DataFrame. It sees batches of any size, so it must treat rows independently of
    each other."""

    function: BatchFunction

    def apply(self, frames: Sequence[pl.LazyFrame]) -> pl.LazyFrame:
        [frame] = frames
        hidden = {BOUND: pl.Int64()} if BOUND in frame.collect_schema() else {}
        return frame.map_batches(
            self._with_bounds, schema={**self.schema, **hidden}, predicate_pushdown=False, projection_pushdown=False,
            slice_pushdown=False,
        )  # fmt: skip

    def explain(self) -> list[str]:
        return [f"map {getattr(self.function, '__name__', 'function')}"]

    def _with_bounds(self, batch: pl.DataFrame) -> pl.DataFrame:
        if BOUND not in batch.columns:
            return self._call(batch)
        # A user function knows nothing of hidden columns. If it returns a row for each row, the bounds are the rows'.
        result = self._call(batch.drop(BOUND))
        if self.time is not None and result.height == batch.height:
            times = [frame.select(self.time.expr()).to_series() for frame in (batch, result)]
            if times[0].equals(times[1]):
                return result.with_columns(batch[BOUND])
        # Otherwise it gets rows with one bound at a time.
        parts = []
        for group in batch.partition_by(BOUND, maintain_order=True):
            bound = group[BOUND][0]
            result = self._call(group.drop(BOUND))
            parts.append(result.with_columns(pl.lit(bound, pl.Int64).alias(BOUND)))
        empty = pl.DataFrame(schema={**self.schema, BOUND: pl.Int64})
        return pl.concat(parts) if parts else empty

    def _call(self, batch: pl.DataFrame) -> pl.DataFrame:
        result = self.function(batch)
        if not isinstance(result, pl.DataFrame):
            raise OperatorError(
                f"the function returned {type(result).__name__}", cure="return a Polars DataFrame", operator=self.name
            )
        if result.schema != self.schema:
            missing = [name for name in self.schema if name not in result.columns]
            if missing:
                raise OperatorError(
                    f"the function's result lacks the column '{missing[0]}'; it has {result.columns}",
                    cure=f"return the declared columns {self.schema.names()}",
                    operator=self.name,
                )
            result = result.select(self.schema.names()).cast(self.schema)
        return result


def mapped(name: str, rows: Node, function: BatchFunction, schema: AnySchema | None) -> MapBatches:
    """The operator that applies a function to batches, checked."""
    out = _returned_schema(name, function, rows.schema, schema)
    return MapBatches(name=name, inputs=(rows.name,), schema=out, time=kept_time(rows, out), function=function)


def _returned_schema(
    operator: str, function: BatchFunction, schema: pl.Schema, declared: AnySchema | None
) -> pl.Schema:
    """What a function of batches returns: as it was `declared`, or found by calling it on an empty frame."""
    if declared is not None:
        try:
            return as_schema(declared, "map_batches()")
        except WrongTypeError as error:
            raise error.at(operator=operator) from None
    try:
        result = function(pl.DataFrame(schema=schema))
    except Exception as error:
        raise DeclarationError(
            f"the function raised on an empty frame: {error!r}",
            cure="give schema={...} to map_batches, or let the function take a frame without rows",
            operator=operator,
        ) from error
    if not isinstance(result, pl.DataFrame):
        raise WrongTypeError(
            f"the function returned {type(result).__name__}",
            cure="return a Polars DataFrame",
            operator=operator,
        )
    return result.schema
