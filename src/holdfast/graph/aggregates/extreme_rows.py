"""The row with the least or the greatest value."""

from __future__ import annotations

import polars as pl

from holdfast.graph.aggregates.aggregate import Aggregate, Column
from holdfast.graph.aggregates.operand import expr_of, has_order, name_of, typed
from holdfast.hidden_columns import ROW_SEQ, ROW_TIME

__all__ = ["arg_max", "arg_min"]

_ORDER = {"time": ROW_TIME, "seq0": ROW_SEQ[0], "seq1": ROW_SEQ[1]}


def arg_max(by: Column, *columns: Column) -> Aggregate:
    """The row with the greatest value of `by`: all its columns as a struct, or only `columns`; of one, its value.

    Of several such rows, the first by event time and then arrival. Rows where `by` is null are left out; without any
    other the result is null. NaN is passed over where there is anything else.
    """
    return _extreme("arg_max", by, columns, greatest=True)


def arg_min(by: Column, *columns: Column) -> Aggregate:
    """The row with the least value of `by`; see `arg_max`."""
    return _extreme("arg_min", by, columns, greatest=False)


def _extreme(what: str, by: Column, columns: tuple[Column, ...], *, greatest: bool) -> Aggregate:
    value = expr_of(by)
    picked = [expr_of(column) for column in columns]

    def lift(schema: pl.Schema) -> dict[str, pl.Expr]:
        whole = picked or [pl.col(name) for name in schema.names()]
        row = whole[0] if len(picked) == 1 else pl.struct(*whole)

        def best(dtype: pl.DataType) -> dict[str, pl.Expr]:
            # A number of its own says which values come last: an order that holds for all types.
            strange = value.is_nan() if dtype.is_float() else pl.lit(False)
            order = [pl.col(hidden).alias(name) for name, hidden in _ORDER.items()]
            rows = pl.struct(strange.alias("strange"), value.alias("by"), *order, row.alias("row"))
            return {"best": _first(rows.filter(value.is_not_null()), greatest)}

        return dict(typed(what, by, has_order, best)(schema))

    return Aggregate(
        lift,
        lambda s: {"best": _first(s.best.drop_nulls(), greatest)},
        lambda s: s.best.struct.field("row"),
        ordered=True,
        label=f"{what}({', '.join(name_of(column) for column in (by, *columns))})",
    )


def _first(rows: pl.Expr, greatest: bool) -> pl.Expr:
    keys = [rows.struct.field(name) for name in ("strange", "by", *_ORDER)]
    return rows.sort_by(keys, descending=[False, greatest, *(False for _ in _ORDER)]).first()
