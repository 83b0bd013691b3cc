"""Checks made while a pipeline is declared: schemas are inferred by Polars on empty frames, and its complaints are
turned into errors that name the operator and the cure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from difflib import get_close_matches
from os import PathLike
from typing import Any

import polars as pl
from polars.exceptions import ColumnNotFoundError, DuplicateError, PolarsError

from holdfast.connect.base import DriverSink, Sink, Source
from holdfast.connect.schema import as_schema
from holdfast.errors import (
    DeclarationError,
    DuplicateNameError,
    HoldfastError,
    UnknownColumnError,
    WrongTypeError,
)
from holdfast.graph.durations import EventTime
from holdfast.graph.nodes import Node, SinkNode, Stateful
from holdfast.hidden_columns import HIDDEN, is_hidden
from holdfast.state.position import supports_key

__all__ = [
    "ExprLike",
    "check_choice",
    "check_columns",
    "check_keys",
    "check_new_name",
    "check_partitions",
    "check_reserved",
    "check_sink",
    "check_source",
    "check_was",
    "check_was_names",
    "infer",
    "listed",
    "need_time",
    "parse_expr",
    "polars_mistake",
    "unknown_column",
]

ExprLike = Any
"""A Polars expression, a string (a column's name, or else SQL), or a plain value."""


def listed(values: Iterable[Any]) -> list[Any]:
    """Positional arguments as Polars takes them: one by one, or in lists, tuples and generators."""
    found: list[Any] = []
    for value in values:
        alone = isinstance(value, str | bytes | pl.Expr | pl.Series) or _is_of_spark(value)
        if isinstance(value, Iterable) and not alone:
            found += value
        else:
            found.append(value)
    return found


def parse_expr(value: ExprLike, operator: str, *, columns: Iterable[str] = ()) -> pl.Expr:
    """An expression as it is, a column by its name, any other string as SQL, any other value as a literal."""
    if isinstance(value, pl.Expr):
        return value
    if callable(value) or _is_of_spark(value):
        raise WrongTypeError(
            f"{value!s:.60} is not a Polars expression",
            cure="write one: pl.col('x') for F.col('x'), and pl.col('x') + 1, pl.when(...), pl.lit(...)",
            operator=operator,
        )
    if not isinstance(value, str):
        try:
            return pl.lit(value)
        except (TypeError, PolarsError) as error:
            raise WrongTypeError(
                f"{value!r} is neither an expression nor a value",
                cure="give a Polars expression, a column's name, a string of SQL or a plain value",
                operator=operator,
            ) from error
    if value in columns:
        return pl.col(value)
    try:
        return pl.sql_expr(value)
    except PolarsError as error:
        raise DeclarationError(
            f"cannot parse {value!r} as SQL: {_first_line(error)}",
            cure="write a Polars expression instead, e.g. pl.col('x') > 3",
            operator=operator,
        ) from error


def _is_of_spark(value: object) -> bool:
    return type(value).__module__.startswith("pyspark.")


def infer(
    operator: str,
    schema: pl.Schema,
    step: Callable[[pl.LazyFrame], pl.LazyFrame],
    *,
    hidden: bool = False,
) -> pl.Schema:
    """The schema behind `step`, found by running it on an empty frame: a dry run sees what a schema check misses."""
    try:
        result = step(pl.DataFrame(schema=schema).lazy()).collect().schema
    except HoldfastError as error:
        raise error.at(operator=operator) from error.__cause__
    except PolarsError as error:
        raise polars_mistake(operator, schema, error) from error
    if not hidden:
        check_reserved(operator, result)
    return result


def polars_mistake(operator: str, schema: Mapping[str, pl.DataType], error: PolarsError) -> DeclarationError:
    """What Polars complains about, as an error that names the operator and the cure."""
    if isinstance(error, ColumnNotFoundError):
        return unknown_column(operator, str(error).partition('"')[2].partition('"')[0], schema)
    if isinstance(error, DuplicateError):
        cure = "give each column its own name with .alias(...)"
        return DeclarationError(_first_line(error), cure=cure, operator=operator)
    cure = f"cast the columns first; the input has {_describe(schema)}"
    return WrongTypeError(_first_line(error), cure=cure, operator=operator)


def unknown_column(
    operator: str, column: str, schema: Mapping[str, pl.DataType], of: str = "the input"
) -> UnknownColumnError:
    near = get_close_matches(column, list(schema), n=1)
    hint = f"did you mean '{near[0]}'? " if near else ""
    return UnknownColumnError(
        f"unknown column '{column}'" + ("" if of == "the input" else f" of {of}"),
        cure=f"{hint}{of} has {_describe(schema)}",
        operator=operator,
    )


def check_choice(operator: str, option: str, value: object, choices: Iterable[str]) -> None:
    choices = tuple(choices)
    if value not in choices:
        cure = f"use {', '.join(repr(choice) for choice in choices[:-1])} or {choices[-1]!r}"
        raise WrongTypeError(f"{option}={value!r}", cure=cure, operator=operator)


def check_columns(
    operator: str, columns: Iterable[str], schema: Mapping[str, pl.DataType], of: str = "the input"
) -> None:
    for column in columns:
        if not isinstance(column, str):
            raise WrongTypeError(
                f"{column!s:.60} is not the name of a column", cure=f"{of} has {_describe(schema)}", operator=operator
            )
        if column not in schema:
            raise unknown_column(operator, column, schema, of)


def check_keys(operator: str, keys: Iterable[str], schema: Mapping[str, pl.DataType]) -> None:
    keys = tuple(keys)
    for key in keys:
        if not isinstance(key, str):
            raise WrongTypeError(
                f"a key is {key!s:.60}, which is not the name of a column",
                cure="name a column; create one with .with_columns(...) first if necessary",
                operator=operator,
            )
    check_columns(operator, keys, schema)
    if len(set(keys)) != len(keys):
        raise DeclarationError(f"key columns {keys} repeat", cure="name each key column once", operator=operator)
    for key in keys:
        if not supports_key(schema[key]):
            raise WrongTypeError(
                f"column '{key}' is {schema[key]}, which cannot be a key",
                cure="use integer (up to 64 bits), float, string, binary, boolean or date/time columns as keys",
                operator=operator,
            )


def check_source(name: object, source: object) -> pl.Schema:
    """The columns of what was given as a source; an error if it is none."""
    if isinstance(name, Source):
        raise WrongTypeError("the name of a source comes first", cure="write pipeline.source('name', source, ...)")
    operator = name if isinstance(name, str) else None
    if not isinstance(source, Source):
        like = "hf.source.files(...)"
        if isinstance(source, str | PathLike):
            like = f"hf.source.files({str(source)!r}, format=...)"
        elif isinstance(source, pl.DataFrame):
            like = "hf.source.memory(frame)"
        raise _other(source, "source", like, operator)
    given = getattr(source, "schema", None)
    if given is None:
        raise DeclarationError(
            f"{type(source).__name__} does not say which columns it has",
            cure="set its `schema`, as in schema = pl.Schema({'at': pl.Int64, 'user': pl.String})",
            operator=operator,
        )
    try:
        return as_schema(given, type(source).__name__)
    except WrongTypeError as error:
        raise error.at(operator=operator) from None


def _other(given: object, what: str, like: str, operator: str | None) -> WrongTypeError:
    """Something else was given as a source or as a sink."""
    called = getattr(given, "__name__", None)
    if callable(given) and called is not None:
        known = (getattr(given, "__module__", None) or "").startswith("holdfast.")
        path = f"hf.{what}.{called}(...)" if known else f"{called}(...)"
        return WrongTypeError(
            f"{called} creates a {what}, but is not a {what} itself", cure=f"call it: {path}", operator=operator
        )
    shown = repr(given) if isinstance(given, str) else f"a {type(given).__name__}"
    return WrongTypeError(f"{shown} is not a {what}", cure=f"give e.g. {like}", operator=operator)


def check_sink(name: object, sink: object, schema: pl.Schema, declared: Mapping[str, Node]) -> None:
    """Refuse what is no sink, rows that it cannot write as they are, and a place that another sink of the pipeline
    writes to."""
    if isinstance(name, Sink):
        raise WrongTypeError("the name of a sink comes first", cure="write .sink('name', sink)")
    operator = name if isinstance(name, str) else None
    if not isinstance(sink, Sink):
        like = f"hf.sink.parquet({str(sink)!r})" if isinstance(sink, str | PathLike) else "hf.sink.parquet('out')"
        raise _other(sink, "sink", like, operator)
    if not isinstance(sink, DriverSink) and getattr(sink, "guarantee", None) is None:
        raise DeclarationError(
            f"{type(sink).__name__} does not say what it guarantees",
            cure="set its `guarantee` to a sentence, as in guarantee = 'at least once'; `explain` shows it",
            operator=operator,
        )
    takes = ("deliver", "before_commit", "after_commit")
    if isinstance(sink, DriverSink) and all(getattr(type(sink), way) is getattr(DriverSink, way) for way in takes):
        raise DeclarationError(
            f"{type(sink).__name__} does nothing with its rows",
            cure="override one of before_commit, after_commit and deliver",
            operator=operator,
        )
    try:
        sink.accept(schema)
    except HoldfastError as error:
        raise error.at(operator=operator) from None
    for node in declared.values():
        if isinstance(node, SinkNode) and _overlap(sink.place, node.sink.place):
            raise DeclarationError(
                f"writes to the same place as sink '{node.name}', or into it: {sink.describe()}",
                cure="give each sink its own place, or combine the streams with .union(...)",
                operator=operator,
            )


def _overlap(one: str | None, other: str | None) -> bool:
    """Whether two sinks write to the same place, or one of them inside the other's."""
    if one is None or other is None:
        return False
    return one == other or f"{one}/".startswith(f"{other}/") or f"{other}/".startswith(f"{one}/")


def check_reserved(operator: str, columns: Iterable[str]) -> None:
    for column in columns:
        if is_hidden(column):
            raise DeclarationError(
                f"column name '{column}' is reserved",
                cure=f"do not start names with {HIDDEN}",
                operator=operator,
            )


def check_partitions(partitions: int | None, operator: str) -> int | None:
    if partitions is not None and partitions < 1:
        raise WrongTypeError(f"partitions={partitions}", cure="give at least 1", operator=operator)
    return partitions


def check_was(was: str | None, operator: str) -> str | None:
    if was == operator:
        raise DeclarationError(
            f"was={was!r} is its current name", cure="give its previous name, or leave out `was`", operator=operator
        )
    return was


def check_was_names(nodes: Mapping[str, Node]) -> None:
    """Refuse an old name that is still in use, or that two operators claim."""
    claimed: dict[str, str] = {}
    for node in nodes.values():
        was = getattr(node, "was", None)
        if was is None:
            continue
        other = was if was in nodes else claimed.get(was)
        if other is not None:
            raise DeclarationError(
                f"was={was!r}, but an operator of that name still exists"
                if other == was
                else f"was={was!r}, and so was '{other}'",
                cure="an old name belongs to one operator only: correct `was`",
                operator=node.name,
            )
        claimed[was] = node.name


def need_time(node: Node, operator: str, nodes: Mapping[str, Node], what: str | None = None) -> EventTime:
    """The event time of an operator's output, which windows cannot do without. `nodes` are those of the pipeline."""
    if node.time is None:
        problem = f"'{node.name}' has no event time" + ("" if what is None else f", and {what} need one")
        raise WrongTypeError(problem, cure=_without_time(node, nodes).time_cure, operator=operator)
    return node.time


def _without_time(node: Node, nodes: Mapping[str, Node]) -> Node:
    """The first operator on the way to this one behind which there is no event time: it is up to that one."""
    while not isinstance(node, Stateful):
        before = [nodes[name] for name in node.inputs if nodes[name].time is None]
        if not before:
            break
        node = before[0]
    return node


def check_new_name(name: str, nodes: Mapping[str, Node]) -> None:
    if name in nodes:
        raise DuplicateNameError(
            f"the pipeline has two operators called '{name}'",
            cure=f"give one of them another name, with name='...' or .named('...'); in use: {', '.join(sorted(nodes))}",
            operator=name,
        )


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]


def _describe(schema: Mapping[str, pl.DataType]) -> str:
    visible = {name: dtype for name, dtype in schema.items() if not is_hidden(name)}
    return ", ".join(f"{name} {dtype}" for name, dtype in visible.items()) or "no columns"
