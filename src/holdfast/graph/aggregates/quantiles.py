"""The median and other quantiles, exactly."""

from __future__ import annotations

from typing import Literal, get_args

import polars as pl

from holdfast.errors import WrongTypeError
from holdfast.graph.aggregates.aggregate import Aggregate, Column
from holdfast.graph.aggregates.operand import expr_of, is_number, name_of, typed

__all__ = ["Interpolation", "median", "quantile"]

Interpolation = Literal["linear", "lower", "higher", "nearest", "midpoint"]
"""What a quantile between two values is: on the line between them, one of the two, or the middle."""


def quantile(column: Column, share: float, *, interpolation: Interpolation = "linear") -> Aggregate:
    """The value below which `share` of the values lie (0.95: of 95 %), as a Float64; null where there are none.

    It is exact: all values of a window that are not null are kept until it closes. NaN counts as greater than all.
    """
    if isinstance(share, bool) or not isinstance(share, int | float) or not 0 <= share <= 1:
        raise WrongTypeError(f"a quantile with share={share!r}", cure="give a number from 0 to 1, as 0.95")
    if interpolation not in get_args(Interpolation):
        names = ", ".join(repr(name) for name in get_args(Interpolation))
        raise WrongTypeError(f"a quantile with interpolation={interpolation!r}", cure=f"use one of {names}")
    return _quantile("quantile", column, float(share), interpolation, f"quantile({name_of(column)}, {share})")


def median(column: Column) -> Aggregate:
    """The value in the middle, or the mean of the two in the middle, as a Float64; see `quantile`."""
    return _quantile("median", column, 0.5, "linear", f"median({name_of(column)})")


def _quantile(what: str, column: Column, share: float, interpolation: Interpolation, label: str) -> Aggregate:
    def kept(values: pl.Expr) -> pl.Expr:
        return values.drop_nulls().sort().implode()

    def lift(dtype: pl.DataType) -> dict[str, pl.Expr]:
        value = expr_of(column)
        return {"values": kept(value.cast(pl.UInt8) if dtype == pl.Boolean else value)}

    return Aggregate(
        typed(what, column, is_number, lift),
        lambda s: {"values": kept(s.values.explode())},
        lambda s: s.values.list.eval(pl.element().cast(pl.Float64).quantile(share, interpolation)).list.first(),
        label=label,
    )
