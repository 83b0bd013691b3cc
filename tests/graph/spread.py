"""An aggregate as it would stand in `graph/aggregates/`: how far the values of a window lie apart."""

from __future__ import annotations

from holdfast.graph.aggregates.aggregate import Aggregate, Column
from holdfast.graph.aggregates.operand import expr_of, is_number, name_of, typed


def spread(column: Column) -> Aggregate:
    """The greatest value less the least one; null where there is none."""
    value = expr_of(column)
    return Aggregate(
        typed("spread", column, is_number, lambda _: {"least": value.min(), "greatest": value.max()}),
        lambda s: {"least": s.least.min(), "greatest": s.greatest.max()},
        lambda s: s.greatest - s.least,
        {"least": "min", "greatest": "max"},
        label=f"spread({name_of(column)})",
    )
