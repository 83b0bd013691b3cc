"""The schema as a user may write it: a Polars schema, a plain mapping of names to types, or Spark's words for one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

import polars as pl

from holdfast.errors import WrongTypeError

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

__all__ = ["AnySchema", "as_schema"]

AnySchema: TypeAlias = "pl.Schema | Mapping[str, Any] | str | StructType"

_CURE = "give every column a complete Polars type, as in {'at': pl.Datetime('us'), 'user': pl.String}"
_OF_SPARK: dict[str, pl.DataType] = {
    **dict.fromkeys(("byte", "tinyint"), pl.Int8()),
    **dict.fromkeys(("short", "smallint"), pl.Int16()),
    **dict.fromkeys(("int", "integer"), pl.Int32()),
    **dict.fromkeys(("long", "bigint"), pl.Int64()),
    **dict.fromkeys(("float", "real"), pl.Float32()),
    "double": pl.Float64(),
    "string": pl.String(),
    "boolean": pl.Boolean(),
    "binary": pl.Binary(),
    "date": pl.Date(),
    "timestamp": pl.Datetime("us", "UTC"),
    "timestamp_ntz": pl.Datetime("us"),
}
"""The simple types of Spark, as `from_spark` has them."""


def as_schema(given: AnySchema, by: str, *, empty: bool = False) -> pl.Schema:
    """The schema, or an error that names the function it was given to. It must have a column, unless it may be
    `empty`."""
    try:
        schema = _schema(given)
    except (TypeError, ValueError) as error:
        raise WrongTypeError(f"{by}: the schema cannot be used: {error}", cure=_CURE) from error
    if not schema and not empty:
        raise WrongTypeError(f"{by}: the schema has no columns", cure=_CURE)
    return schema


def _schema(given: AnySchema) -> pl.Schema:
    if isinstance(given, str):
        return pl.Schema(_column(text) for text in given.split(","))
    if type(given).__module__.startswith("pyspark."):
        from holdfast.connect.spark_types import polars_schema  # noqa: PLC0415 - who has given it has PySpark loaded

        try:
            return polars_schema(given, "")
        except WrongTypeError as error:
            raise TypeError(error.problem) from error
    if not isinstance(given, Mapping):
        raise TypeError(f"it is a {type(given).__name__}")
    return pl.Schema(given)


def _column(text: str) -> tuple[str, pl.DataType]:
    """A column of a schema in Spark's words, as in `at LONG`."""
    words = text.replace(":", " ").split()
    if len(words) != 2 or words[1].lower() not in _OF_SPARK:
        raise TypeError(f"{text.strip()!r} is not a name and one of {', '.join(_OF_SPARK).upper()}")
    return words[0].strip("`"), _OF_SPARK[words[1].lower()]
