"""What a selection means, checked: the rows that `filter` keeps, the columns behind `rename`, `drop` and `cast`, and
those that `explode` takes apart and `persist` may round."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import polars as pl

from holdfast.connect.schema import AnySchema, as_schema
from holdfast.errors import DeclarationError, UnknownColumnError, WrongTypeError
from holdfast.graph.checks import ExprLike, check_columns, infer, parse_expr
from holdfast.graph.row_wise import check_row_by_row
from holdfast.pstream.codecs import Lossy

__all__ = ["cast_columns", "filter_predicate", "kept_columns", "list_columns", "lossy_columns", "renamed_columns"]


def filter_predicate(
    operator: str, schema: pl.Schema, predicates: Sequence[ExprLike], constraints: Mapping[str, ExprLike]
) -> pl.Expr:
    """What holds for the rows that a filter keeps: all predicates, and the values that columns must have."""
    parsed = [parse_expr(p, operator, columns=schema) for p in predicates]
    for column, value in constraints.items():
        if column == "name" and column not in schema:
            raise UnknownColumnError(
                "unknown column 'name': each keyword of filter is a column and the value it must have",
                cure=f"name the operator after it: .filter(...).named({value!r})",
                operator=operator,
            )
        check_columns(operator, [column], schema)
        parsed.append(pl.col(column) == value)
    if not parsed:
        raise DeclarationError("has no predicate", cure="give a predicate: pl.col('x') > 0", operator=operator)
    predicate = parsed[0] if len(parsed) == 1 else pl.all_horizontal(parsed)
    kinds = infer(operator, schema, lambda lf: lf.select(predicate.alias("predicate")))
    if kinds["predicate"] != pl.Boolean:
        raise WrongTypeError(
            f"the predicate is {kinds['predicate']}, not Boolean",
            cure="compare it: pl.col('x') > 0",
            operator=operator,
        )
    infer(operator, schema, lambda lf: lf.filter(predicate))
    check_row_by_row([predicate], operator, schema=schema)
    return predicate


def renamed_columns(operator: str, schema: pl.Schema, names: Mapping[str, str]) -> list[pl.Expr]:
    """All columns, some under new names."""
    if not isinstance(names, Mapping):
        raise WrongTypeError(
            f"the new names are a {type(names).__name__}",
            cure="give them by the old ones: .rename({'old': 'new'})",
            operator=operator,
        )
    check_columns(operator, names, schema)
    return [pl.col(column).alias(names.get(column, column)) for column in schema]


def kept_columns(operator: str, schema: pl.Schema, gone: Sequence[str]) -> list[pl.Expr]:
    """All columns but those that are gone."""
    check_columns(operator, gone, schema)
    return [pl.col(column) for column in schema if column not in gone]


def cast_columns(operator: str, schema: pl.Schema, types: AnySchema, *, strict: bool) -> list[pl.Expr]:
    """All columns, some with another type. One that has its type already is left alone: an event time stays one."""
    try:
        wanted = as_schema(types, "cast()")
    except WrongTypeError as error:
        raise error.at(operator=operator) from None
    check_columns(operator, wanted, schema)
    for name, dtype in wanted.items():
        if schema[name] == pl.String and dtype.is_temporal():
            raise WrongTypeError(
                f"column '{name}' is text, which cannot be cast to {dtype}",
                cure=f"give its format: .with_columns(pl.col('{name}').str.strptime(pl.{dtype.base_type()}, "
                "'%Y-%m-%d')), or declare the type in the schema of the source, which then parses it",
                operator=operator,
            )
    return [
        pl.col(name) if wanted.get(name, dtype) == dtype else pl.col(name).cast(wanted[name], strict=strict)
        for name, dtype in schema.items()
    ]


def list_columns(operator: str, schema: pl.Schema, columns: Sequence[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The columns that are exploded, and those of them that are arrays."""
    if not columns:
        raise DeclarationError("explodes without a column", cure="name a list column", operator=operator)
    check_columns(operator, columns, schema)
    for column in columns:
        if not isinstance(schema[column], pl.List | pl.Array):
            raise WrongTypeError(
                f"column '{column}' is {schema[column]}, not a list",
                cure="explode a list column, e.g. one made by .str.split(' ')",
                operator=operator,
            )
    return tuple(columns), tuple(column for column in columns if isinstance(schema[column], pl.Array))


def lossy_columns(operator: str, schema: pl.Schema, errors: Mapping[str, float]) -> tuple[Lossy, ...]:
    """The columns that may be rounded, each by the largest error that is allowed."""
    rounded = []
    for column, error in errors.items():
        check_columns(operator, [column], schema)
        if not schema[column].is_float() or not error > 0:
            raise WrongTypeError(
                f"lossy column '{column}' is {schema[column]} with the error {error!r}",
                cure="name float columns, each with the largest error that is allowed, above 0",
                operator=operator,
            )
        rounded.append(Lossy(column, float(error)))
    return tuple(rounded)
