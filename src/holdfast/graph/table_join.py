"""The join with a table, as it is declared: one that never changes, or a lookup table that is read again."""

from __future__ import annotations

from typing import Literal

import polars as pl

from holdfast.connect.lookups.lookup_table import Lookup
from holdfast.errors import DeclarationError, WrongTypeError
from holdfast.graph.checks import check_choice, check_columns, infer
from holdfast.graph.nodes import JoinTable, Node, RefreshedJoin

__all__ = ["AnyTable", "joined_with_table"]

AnyTable = pl.DataFrame | Lookup


def joined_with_table(
    name: str, stream: Node, table: AnyTable, on: str | list[str], how: Literal["inner", "left"]
) -> JoinTable:
    """The operator that joins the rows of a stream with a table, checked."""
    keys = (on,) if isinstance(on, str) else tuple(on)
    if not isinstance(table, AnyTable):
        raise WrongTypeError(
            f"the table is a {type(table).__name__}",
            cure="give a Polars DataFrame, e.g. pl.DataFrame({'user': [1], 'country': ['DE']}), or a table that is read"
            " anew, e.g. hf.lookup.files('users.parquet')",
            operator=name,
        )
    columns = table.schema
    check_columns(name, keys, stream.schema)
    check_columns(name, keys, columns, of="the table")
    for key in keys:
        if stream.schema[key] != columns[key]:
            cast = f"cast the table: table.with_columns(pl.col('{key}').cast({stream.schema[key]}))"
            given = f"declare the lookup table with schema=..., where '{key}' is {stream.schema[key]}"
            raise WrongTypeError(
                f"key '{key}' is {stream.schema[key]} in the stream and {columns[key]} in the table",
                cure=cast if isinstance(table, pl.DataFrame) else f"{given}, or cast the stream",
                operator=name,
            )
    check_choice(name, "how", how, ("inner", "left"))
    clash = set(columns) & set(stream.schema) - set(keys)
    if clash:
        raise DeclarationError(
            f"columns {sorted(clash)} are on both sides",
            cure="rename or drop them in the table before the join",
            operator=name,
        )
    empty = pl.DataFrame(schema=columns)
    schema = infer(name, stream.schema, lambda lf: lf.join(empty.lazy(), on=list(keys), how=how))
    if isinstance(table, Lookup):
        return RefreshedJoin(
            name=name, inputs=(stream.name,), schema=schema, time=stream.time, table=empty, on=keys, how=how,
            unique=True, lookup=table,
        )  # fmt: skip
    unique = not table.select(keys).is_duplicated().any()
    return JoinTable(
        name=name, inputs=(stream.name,), schema=schema, time=stream.time, table=table, on=keys, how=how,
        unique=unique,
    )  # fmt: skip
