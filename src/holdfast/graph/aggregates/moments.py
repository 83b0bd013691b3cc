"""Variance and standard deviation."""

from __future__ import annotations

import polars as pl

from holdfast.graph.aggregates.aggregate import Aggregate, Column, Combine, Lift, StateColumns
from holdfast.graph.aggregates.operand import expr_of, is_number, name_of, typed

__all__ = ["std", "var"]


def _moments(what: str, column: Column) -> tuple[Lift, Combine]:
    """Count, mean and sum of squared differences: combined without the cancellation of sum-of-squares."""
    value = expr_of(column).cast(pl.Float64)
    middle = value.mean()
    lift = {
        "n": value.count().cast(pl.Int64),
        "mean": middle.fill_null(0.0),
        "m2": ((value - middle) ** 2).sum(),
    }

    def combine(s: StateColumns) -> dict[str, pl.Expr]:
        n = s.n.sum()
        middle = pl.when(n > 0).then((s.n * s.mean).sum() / n).otherwise(0.0)
        return {"n": n, "mean": middle, "m2": s.m2.sum() + (s.n * (s.mean - middle) ** 2).sum()}

    return typed(what, column, is_number, lambda _: lift), combine


def var(column: Column, ddof: int = 1) -> Aggregate:
    """The variance with `ddof` delta degrees of freedom; null if there are at most `ddof` values."""
    lift, combine = _moments("var", column)
    return Aggregate(
        lift, combine, lambda s: pl.when(s.n > ddof).then(s.m2 / (s.n - ddof)), label=f"var({name_of(column)})"
    )


def std(column: Column, ddof: int = 1) -> Aggregate:
    """The standard deviation; see `var`."""
    lift, combine = _moments("std", column)
    return Aggregate(
        lift,
        combine,
        lambda s: pl.when(s.n > ddof).then((s.m2 / (s.n - ddof)).sqrt()),
        label=f"std({name_of(column)})",
    )
