"""The greatest values, in order."""

from __future__ import annotations

import polars as pl

from holdfast.errors import WrongTypeError
from holdfast.graph.aggregates.aggregate import Aggregate, Column
from holdfast.graph.aggregates.operand import expr_of, name_of

__all__ = ["top_k"]


def top_k(column: Column, k: int, *, by: Column | None = None) -> Aggregate:
    """The `k` greatest values in descending order, as a list; with `by`, the values that go with the greatest `by`.

    Nulls are left out. Equal `by` are ordered by the value itself, so that the result does not depend on arrival.
    """
    if k <= 0:
        raise WrongTypeError(f"top_k with k={k}", cure="give a k of at least 1")
    value = expr_of(column)
    rank = value if by is None else expr_of(by)

    kept = value.is_not_null() & rank.is_not_null()
    pairs = pl.struct(rank.alias("rank"), value.alias("value")).filter(kept)

    def best(candidates: pl.Expr) -> pl.Expr:
        return candidates.sort(descending=True).head(k).implode()

    return Aggregate(
        {"best": best(pairs)},
        lambda s: {"best": best(s.best.explode().drop_nulls())},
        lambda s: s.best.list.eval(pl.element().struct.field("value")),
        label=f"top_{k}({name_of(column)})",
    )
