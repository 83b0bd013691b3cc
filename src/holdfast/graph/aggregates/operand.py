"""What an aggregate is computed of: a column or an expression, the types that it may have, and a cure for others."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal

import polars as pl

from holdfast.errors import WrongTypeError
from holdfast.graph.aggregates.aggregate import Column, Counted, Lift
from holdfast.graph.row_wise import check_row_by_row

__all__ = ["countable", "expr_of", "has_order", "is_number", "name_of", "typed"]


def expr_of(column: Column) -> pl.Expr:
    if isinstance(column, str):
        return pl.col(column)
    if not isinstance(column, pl.Expr):
        raise WrongTypeError(
            f"an aggregate of {column!r:.60}", cure="give a column's name or a Polars expression: hf.sum('amount')"
        )
    check_row_by_row([column], reduced=True)
    return column


def countable(column: Column | None, **kinds: Literal["count", "sum"]) -> dict[str, Counted]:
    """For state columns over a plain column or all rows; an expression has to be computed, so it is not counted."""
    if isinstance(column, pl.Expr):
        return {}
    return {name: (kind, column) for name, kind in kinds.items()}


def name_of(column: Column) -> str:
    return column if isinstance(column, str) else str(column)


def typed(
    what: str, column: Column, fits: Callable[[pl.DataType], bool], lift: Callable[[pl.DataType], Mapping[str, pl.Expr]]
) -> Lift:
    """The lift of an aggregate that takes values of certain types, and refuses others where it is declared."""

    def typed(schema: pl.Schema) -> Mapping[str, pl.Expr]:
        dtype = pl.DataFrame(schema=schema).select(expr_of(column)).to_series().dtype
        if not fits(dtype):
            raise WrongTypeError(f"{what} of {name_of(column)}, which is {dtype}", cure=_cure(what, column, dtype))
        return lift(dtype)

    return typed


def _cure(what: str, column: Column, dtype: pl.DataType) -> str:
    """How to come from a value that an aggregate cannot take to one that it can."""
    given = f"pl.col('{column}')" if isinstance(column, str) else "(...)"
    reduced = what if what in ("sum", "min", "max") else "mean"
    if isinstance(dtype, pl.Struct):
        inner = dtype.fields[0].name if dtype.fields else "x"
        return f"name a field of it: hf.{what}({given}.struct.field('{inner}'))"
    if isinstance(dtype, pl.List):
        return f"reduce each list first, e.g. hf.{what}({given}.list.{reduced}()), or explode it before the window"
    if isinstance(dtype, pl.Array):
        return f"reduce each array first, e.g. hf.{what}({given}.arr.{reduced}()), or explode it before the window"
    if isinstance(dtype, pl.Duration):
        return f"make it a number: hf.{what}({given}.dt.total_microseconds())"
    if dtype.is_temporal():
        return f"make it a number: hf.{what}({given}.to_physical())"
    if dtype == pl.String:
        return f"make it a number, null where it is not one: hf.{what}({given}.cast(pl.Float64, strict=False))"
    return "take a column of numbers"


def is_number(dtype: pl.DataType) -> bool:
    return dtype.is_numeric() or dtype == pl.Boolean


def has_order(dtype: pl.DataType) -> bool:
    return not dtype.is_nested() and dtype != pl.Object
