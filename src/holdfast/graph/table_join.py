"""The join with a static table, as it is declared."""

from __future__ import annotations

from typing import Literal

import polars as pl

from holdfast.errors import DeclarationError, WrongTypeError
from holdfast.graph.checks import check_choice, check_columns, infer
from holdfast.graph.nodes import JoinTable, Node

__all__ = ["joined_with_table"]


def joined_with_table(
    name: str, stream: Node, table: pl.DataFrame, on: str | list[str], how: Literal["inner", "left"]
) -> JoinTable:
    """The operator that joins the rows of a stream with a table, checked."""
    keys = (on,) if isinstance(on, str) else tuple(on)
    if not isinstance(table, pl.DataFrame):
        raise WrongTypeError(
            f"the table is a {type(table).__name__}",
            cure="give a Polars DataFrame, e.g. pl.DataFrame({'user': [1], 'country': ['DE']})",
            operator=name,
        )
    check_columns(name, keys, stream.schema)
    check_columns(name, keys, table.schema, of="the table")
    for key in keys:
        if stream.schema[key] != table.schema[key]:
            raise WrongTypeError(
                f"key '{key}' is {stream.schema[key]} in the stream and {table.schema[key]} in the table",
                cure=f"cast the table: table.with_columns(pl.col('{key}').cast({stream.schema[key]}))",
                operator=name,
            )
    check_choice(name, "how", how, ("inner", "left"))
    clash = set(table.columns) & set(stream.schema) - set(keys)
    if clash:
        raise DeclarationError(
            f"columns {sorted(clash)} are on both sides",
            cure="rename or drop them in the table before the join",
            operator=name,
        )
    schema = infer(name, stream.schema, lambda lf: lf.join(table.lazy(), on=list(keys), how=how))
    unique = not table.select(keys).is_duplicated().any()
    return JoinTable(
        name=name, inputs=(stream.name,), schema=schema, time=stream.time, table=table, on=keys, how=how,
        unique=unique,
    )  # fmt: skip
