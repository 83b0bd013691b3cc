"""`select` and `with_columns`: columns that are computed from those of the same row."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import polars as pl

from holdfast.errors import DeclarationError
from holdfast.graph.checks import ExprLike, infer, listed, parse_expr
from holdfast.graph.nodes import Node
from holdfast.graph.row_wise import check_row_by_row
from holdfast.graph.stateless.expression_columns import changes_column, columns_of, kept_time, sees_bound
from holdfast.graph.stateless.stateless_operator import Stateless
from holdfast.hidden_columns import BOUND

__all__ = ["Select", "WithColumns", "column_expressions", "selected", "with_added_columns"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Select(Stateless):
    exprs: tuple[pl.Expr, ...]
    keeps_time: ClassVar[bool] = True
    shrinks: ClassVar[bool] = True

    def apply(self, frames: Sequence[pl.LazyFrame]) -> pl.LazyFrame:
        [frame] = frames
        if sees_bound(frame, self.exprs):
            return pl.concat([frame.drop(BOUND).select(self.exprs), frame.select(BOUND)], how="horizontal")
        hidden = [pl.col(BOUND)] if BOUND in frame.collect_schema() else []
        return frame.select(*self.exprs, *hidden)

    def reads(self, wanted: frozenset[str] | None) -> frozenset[str] | None:
        return columns_of(self.exprs)

    def changes(self, column: str, rows: pl.Schema) -> bool:
        return changes_column(self.exprs, column, rows)

    def explain(self) -> list[str]:
        return [f"select {', '.join(str(expr) for expr in self.exprs)}"]


@dataclass(frozen=True, slots=True, kw_only=True)
class WithColumns(Stateless):
    exprs: tuple[pl.Expr, ...]
    keeps_time: ClassVar[bool] = True

    def apply(self, frames: Sequence[pl.LazyFrame]) -> pl.LazyFrame:
        [frame] = frames
        if sees_bound(frame, self.exprs):
            return pl.concat([frame.drop(BOUND).with_columns(self.exprs), frame.select(BOUND)], how="horizontal")
        return frame.with_columns(self.exprs)

    def reads(self, wanted: frozenset[str] | None) -> frozenset[str] | None:
        own = columns_of(self.exprs)
        if wanted is None or own is None:
            return None
        return (wanted - {expr.meta.output_name() for expr in self.exprs}) | own

    def changes(self, column: str, rows: pl.Schema) -> bool:
        return changes_column(self.exprs, column, rows)

    def explain(self) -> list[str]:
        return [f"with columns {', '.join(str(expr) for expr in self.exprs)}"]


def column_expressions(
    name: str, rows: Node, columns: Iterable[ExprLike], named: Mapping[str, ExprLike]
) -> tuple[pl.Expr, ...]:
    """The columns that a user asks for, by position and by keyword, as expressions."""
    plain = [parse_expr(column, name, columns=rows.schema) for column in listed(columns)]
    return (*plain, *(parse_expr(e, name, columns=rows.schema).alias(alias) for alias, e in named.items()))


def selected(name: str, rows: Node, columns: Iterable[pl.Expr]) -> Select:
    """The operator that outputs these columns only, checked."""
    exprs = tuple(columns)
    schema = infer(name, rows.schema, lambda lf: lf.select(exprs))
    check_row_by_row(exprs, name, schema=rows.schema)
    if all(expr.meta.is_literal(allow_aliasing=True) for expr in exprs):
        raise DeclarationError(
            "selects only constants, so the number of rows would be lost",
            cure="keep a column, e.g. the event time: windows need it anyway",
            operator=name,
        )
    return Select(name=name, inputs=(rows.name,), schema=schema, time=kept_time(rows, schema, exprs), exprs=exprs)


def with_added_columns(name: str, rows: Node, exprs: tuple[pl.Expr, ...]) -> WithColumns:
    """The operator that outputs all columns, and these in addition or instead, checked."""
    schema = infer(name, rows.schema, lambda lf: lf.with_columns(exprs))
    check_row_by_row(exprs, name, schema=rows.schema)
    return WithColumns(name=name, inputs=(rows.name,), schema=schema, time=kept_time(rows, schema, exprs), exprs=exprs)
