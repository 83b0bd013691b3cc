"""The least and the greatest value."""

from __future__ import annotations

from holdfast.graph.aggregates.aggregate import Aggregate, Column
from holdfast.graph.aggregates.operand import expr_of, has_order, name_of, typed

__all__ = ["max", "min"]


def min(column: Column) -> Aggregate:
    """The smallest non-null value; null if there is none."""
    return Aggregate(
        typed("min", column, has_order, lambda _: {"least": expr_of(column).min()}),
        lambda s: {"least": s.least.min()},
        lambda s: s.least,
        {"least": "min"},
        label=f"min({name_of(column)})",
    )


def max(column: Column) -> Aggregate:
    """The greatest non-null value; null if there is none."""
    return Aggregate(
        typed("max", column, has_order, lambda _: {"greatest": expr_of(column).max()}),
        lambda s: {"greatest": s.greatest.max()},
        lambda s: s.greatest,
        {"greatest": "max"},
        label=f"max({name_of(column)})",
    )
