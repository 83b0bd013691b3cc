"""Stateless chains: the operators between origins (source chunks, outputs of stateful operators) and targets.

All of a chain becomes one lazy Polars query per batch, so that filters and projections move down to the data. When
a query fails it is run again operator by operator to find out which one is to blame.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import polars as pl

from holdfast.errors import HoldfastError, OperatorError
from holdfast.graph.nodes import (
    Explode,
    Filter,
    JoinTable,
    MapBatches,
    Node,
    Select,
    Union,
    WithColumns,
    explode_lists,
)
from holdfast.hidden_columns import BOUND, MASK
from holdfast.operators.operator_errors import operator_error

__all__ = ["Chain"]


class Chain:
    """The stateless operators of a pipeline, applied to whatever origins are at hand."""

    def __init__(self, nodes: Mapping[str, Node]) -> None:
        self._nodes = nodes

    def frames(self, targets: Sequence[str], origins: Mapping[str, pl.LazyFrame]) -> dict[str, pl.LazyFrame]:
        """Lazy queries for the targets that these origins reach."""
        made: dict[str, pl.LazyFrame | None] = dict(origins)
        found = {target: self._frame(target, made) for target in targets}
        return {target: frame for target, frame in found.items() if frame is not None}

    def _frame(self, name: str, made: dict[str, pl.LazyFrame | None]) -> pl.LazyFrame | None:
        if name not in made:
            node = self._nodes[name]
            inputs = [self._frame(upstream, made) for upstream in node.inputs]
            present = [frame for frame in inputs if frame is not None]
            known = present and isinstance(
                node, Filter | Select | WithColumns | MapBatches | Explode | JoinTable | Union
            )
            made[name] = _apply(node, present) if known else None
        return made[name]

    def blame(
        self, target: str, origins: Mapping[str, pl.DataFrame], error: Exception, epoch: int | None
    ) -> HoldfastError:
        """Run the chain step by step and say which operator raised."""
        made: dict[str, pl.DataFrame | None] = dict(origins)

        def run(name: str) -> pl.DataFrame | None:
            if name not in made:
                node = self._nodes[name]
                present = [frame for frame in map(run, node.inputs) if frame is not None]
                if not present:
                    made[name] = None
                else:
                    try:
                        made[name] = _apply(node, [frame.lazy() for frame in present]).collect()
                    except Exception as cause:
                        raise _BlamedError(operator_error(node.name, cause, epoch)) from cause
            return made[name]

        try:
            run(target)
        except _BlamedError as blamed:
            return blamed.error
        return operator_error(target, error, epoch)


class _BlamedError(Exception):
    def __init__(self, error: HoldfastError) -> None:
        self.error = error


def _apply(node: Node, inputs: list[pl.LazyFrame]) -> pl.LazyFrame:
    frame = inputs[0]
    if isinstance(node, Filter):
        if _sees_bound(frame, (node.predicate,)):
            mask = frame.drop(BOUND).select(node.predicate.alias(MASK))
            return pl.concat([frame, mask], how="horizontal").filter(MASK).drop(MASK)
        return frame.filter(node.predicate)
    if isinstance(node, Select | WithColumns) and _sees_bound(frame, node.exprs):
        visible = frame.drop(BOUND)
        made = visible.select(node.exprs) if isinstance(node, Select) else visible.with_columns(node.exprs)
        return pl.concat([made, frame.select(BOUND)], how="horizontal")
    if isinstance(node, Select):
        kept = [pl.col(BOUND)] if BOUND in frame.collect_schema() else []
        return frame.select(*node.exprs, *kept)
    if isinstance(node, WithColumns):
        return frame.with_columns(node.exprs)
    if isinstance(node, Explode):
        return explode_lists(frame, node.columns, node.arrays)
    if isinstance(node, JoinTable):
        return frame.join(node.table.lazy(), on=list(node.on), how=node.how, maintain_order="left")
    if isinstance(node, Union):
        return pl.concat(_alike(inputs), how="vertical") if len(inputs) > 1 else frame
    assert isinstance(node, MapBatches)
    return _map(node, frame)


def _alike(frames: list[pl.LazyFrame]) -> list[pl.LazyFrame]:
    """The frames with the columns that all of them have: what nobody reads of a source may be missing in some."""
    schemas = [frame.collect_schema() for frame in frames]
    names = [name for name in schemas[0] if all(name in schema for schema in schemas)]
    return [frame.select(names) for frame in frames]


def _sees_bound(frame: pl.LazyFrame, exprs: Sequence[pl.Expr]) -> bool:
    """Whether one of the expressions stands for several columns, e.g. `pl.all()`, and could mean the hidden one."""
    return any(expr.meta.has_multiple_outputs() for expr in exprs) and BOUND in frame.collect_schema()


def _map(node: MapBatches, frame: pl.LazyFrame) -> pl.LazyFrame:
    schema = node.schema

    def call(batch: pl.DataFrame) -> pl.DataFrame:
        if BOUND not in batch.columns:
            return _call(node, batch)
        # A user function knows nothing of hidden columns. Where it gives a row for each row, the bounds are the rows'.
        result = _call(node, batch.drop(BOUND))
        if node.time is not None and result.height == batch.height:
            times = [frame.select(node.time.expr()).to_series() for frame in (batch, result)]
            if times[0].equals(times[1]):
                return result.with_columns(batch[BOUND])
        # Else give it rows with one bound at a time.
        parts = []
        for group in batch.partition_by(BOUND, maintain_order=True):
            bound = group[BOUND][0]
            result = _call(node, group.drop(BOUND))
            parts.append(result.with_columns(pl.lit(bound, pl.Int64).alias(BOUND)))
        empty = pl.DataFrame(schema={**schema, BOUND: pl.Int64})
        return pl.concat(parts) if parts else empty

    hidden = {BOUND: pl.Int64()} if BOUND in frame.collect_schema() else {}
    return frame.map_batches(
        call, schema={**schema, **hidden}, predicate_pushdown=False, projection_pushdown=False, slice_pushdown=False
    )


def _call(node: MapBatches, batch: pl.DataFrame) -> pl.DataFrame:
    result = node.function(batch)
    if not isinstance(result, pl.DataFrame):
        raise OperatorError(
            f"the function returned {type(result).__name__}", cure="return a Polars DataFrame", operator=node.name
        )
    if result.schema != node.schema:
        missing = [name for name in node.schema if name not in result.columns]
        if missing:
            raise OperatorError(
                f"the function's result lacks the column '{missing[0]}'; it has {result.columns}",
                cure=f"return the declared columns {node.schema.names()}",
                operator=node.name,
            )
        result = result.select(node.schema.names()).cast(node.schema)
    return result
