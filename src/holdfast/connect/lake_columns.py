"""Columns as tables of a lake (Delta, Iceberg) have them: which types they can hold, and how the values of partition
columns are written.

Such a table has no unsigned numbers and no categories, and times of microseconds. Rows are cast where every value
stays what it is, and refused where not, when the sink is declared.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date, datetime
from decimal import Decimal
from typing import Any
from urllib.parse import quote

import polars as pl

from holdfast.connect.formats.columnar import widens
from holdfast.errors import DeclarationError

__all__ = ["check_lake_columns", "fitted", "partition_literal", "partition_path", "partition_text", "table_columns"]

_WIDER: dict[type[pl.DataType], pl.DataType] = {
    pl.UInt8: pl.Int16(),
    pl.UInt16: pl.Int32(),
    pl.UInt32: pl.Int64(),
    pl.Categorical: pl.String(),
    pl.Enum: pl.String(),
}
_WHOLE = (pl.Int8, pl.Int16, pl.Int32, pl.Int64)
_SAME = (*_WHOLE, pl.Float32, pl.Float64, pl.String, pl.Binary, pl.Boolean, pl.Date, pl.Decimal)
_PARTITIONS = (*_WHOLE, pl.String, pl.Boolean, pl.Date, pl.Datetime, pl.Decimal)
_NULL_PARTITION = "__HIVE_DEFAULT_PARTITION__"


def _held(dtype: pl.DataType) -> pl.DataType | None:
    """The type of a table that holds every value of this one; None if there is none."""
    if isinstance(dtype, _SAME):
        return dtype
    if type(dtype) in _WIDER:
        return _WIDER[type(dtype)]
    if isinstance(dtype, pl.Datetime) and dtype.time_unit != "ns":
        return pl.Datetime("us", None if dtype.time_zone is None else "UTC")
    if isinstance(dtype, pl.List | pl.Array):
        inner = _held(dtype.inner)  # type: ignore[arg-type]
        return None if inner is None else pl.List(inner)
    if isinstance(dtype, pl.Struct):
        fields = {field.name: _held(field.dtype) for field in dtype.fields}  # type: ignore[arg-type]
        return None if None in fields.values() else pl.Struct({name: kind for name, kind in fields.items() if kind})
    return None


def table_columns(by: str, schema: pl.Schema) -> pl.Schema:
    """The columns of a table that is made for these rows."""
    columns: dict[str, pl.DataType] = {}
    for name, dtype in schema.items():
        held = _held(dtype)
        if held is None:
            how = "Datetime('us')" if isinstance(dtype, pl.Datetime) else "Int64 or String"
            raise DeclarationError(
                f"{by}: column '{name}' is {dtype}, which the table cannot hold",
                cure=f"cast it before the sink, e.g. to {how}",
            )
        columns[name] = held
    return pl.Schema(columns)


def check_lake_columns(by: str, schema: pl.Schema, partition_by: Sequence[str]) -> None:
    """Refuse columns that a table cannot have, or not be partitioned by."""
    columns = table_columns(by, schema)
    folded: dict[str, str] = {}
    for name in columns:
        other = folded.setdefault(name.casefold(), name)
        if other != name:
            raise DeclarationError(
                f"{by}: the columns '{other}' and '{name}' have the same name in the table",
                cure="give one of them another name before the sink",
            )
    for name in partition_by:
        if name not in columns:
            raise DeclarationError(
                f"{by}: the stream has no column '{name}' to partition by",
                cure=f"name some of {', '.join(columns)}",
            )
        if not isinstance(columns[name], _PARTITIONS):
            raise DeclarationError(
                f"{by}: column '{name}' to partition by is {schema[name]}",
                cure="partition by a column of whole numbers, text, dates or times, e.g. pl.col('at').dt.date()",
            )
    if columns and set(partition_by) >= set(columns):
        raise DeclarationError(
            f"{by}: all columns are partition columns, so files would have none", cure="partition by fewer columns"
        )


def fitted(by: str, table: pl.Schema, rows: pl.Schema) -> pl.Schema:
    """The types in which rows are written to a table, for the columns that both have."""
    found: dict[str, pl.DataType] = {}
    for name, held in table_columns(by, rows).items():
        if name not in table:
            continue
        if held != table[name] and not widens(held, table[name]):
            raise DeclarationError(
                f"{by}: column '{name}' is {rows[name]}, but {table[name]} in the table",
                cure=f"cast it to {table[name]} before the sink, or write to another table",
            )
        found[name] = table[name]
    return pl.Schema(found)


def partition_text(value: Any) -> str | None:
    """A value as the log of a table has it."""
    if value is None or value == "":
        return None  # the protocol has no empty text
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, datetime):
        return value.strftime("%Y-%m-%d %H:%M:%S.%f")
    if isinstance(value, date):
        return value.isoformat()
    return format(value, "f") if isinstance(value, Decimal) else str(value)


def partition_literal(text: str | None, dtype: pl.DataType) -> pl.Expr:
    """The value that stands for a text of the log."""
    if text is None or text == "":
        return pl.lit(None, dtype=dtype)
    if isinstance(dtype, pl.Boolean):
        return pl.lit(text == "true")
    if isinstance(dtype, pl.Datetime):
        read = pl.lit(datetime.fromisoformat(text).replace(tzinfo=None), dtype=pl.Datetime("us"))  # in UTC, by protocol
        zoned = (
            read if dtype.time_zone is None else read.dt.replace_time_zone("UTC").dt.convert_time_zone(dtype.time_zone)
        )
        return zoned.cast(dtype)
    if isinstance(dtype, pl.Date):
        return pl.lit(date.fromisoformat(text), dtype=dtype)
    return pl.lit(text).cast(dtype)


def partition_path(values: Mapping[str, str | None]) -> str:
    """The directory for files of a partition, as Hive calls it; "" of a table without partitions."""
    return "".join(
        f"{quote(name, safe='')}={_NULL_PARTITION if text is None else quote(text, safe='')}/"
        for name, text in values.items()
    )
