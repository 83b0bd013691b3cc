"""Between Spark's types and Polars': what `from_spark` needs.

Spark's TimestampType is an instant. Batches carry it with the time zone of the session, which is a matter of display
and may differ between two starts; so it becomes a Datetime in UTC, and no hour is counted twice or left out when
clocks are changed. TimestampNTZType is a reading of some clock and becomes a Datetime without a time zone.
"""

from __future__ import annotations

import re
from typing import Any

import polars as pl
import pyarrow as pa

from holdfast.errors import WrongTypeError

__all__ = ["from_spark_batch", "notices_of_spark", "polars_schema"]

_ZONE = "UTC"
_FORGETS = re.compile(r"format: socket|TextSocket")


def notices_of_spark(frame: Any) -> tuple[str, ...]:
    """What a person should know about a streaming DataFrame, as far as its plan tells."""
    try:
        plan = str(frame._jdf.queryExecution().logical().toString())
    except AttributeError:  # Spark Connect
        return ()
    if not _FORGETS.search(plan):
        return ()
    return (
        "a socket cannot be read again: rows of a batch that fails are lost. `hf.source.push` receives lines durably",
    )


def polars_schema(schema: Any, operator: str) -> pl.Schema:
    """The Polars schema of a Spark StructType, by way of Arrow, which is how batches travel."""
    from pyspark.sql.pandas.types import to_arrow_schema  # noqa: PLC0415 - slow to import

    columns: dict[str, pl.DataType] = {}
    for field in schema:
        try:
            if field.name in columns:
                raise ValueError("another column has the same name")
            empty = to_arrow_schema(type(schema)([field]), timezone=_ZONE).empty_table()
            columns[field.name] = pl.DataFrame(empty).schema[field.name]
        except Exception as error:
            raise WrongTypeError(
                f"column '{field.name}' of the DataFrame is {field.dataType.simpleString()}, which cannot be carried to"
                f" Polars by way of Arrow: {str(error) or type(error).__name__}",
                cure="cast or drop that column in Spark before handing the DataFrame over",
                operator=operator,
            ) from error
    return pl.Schema(columns)


def from_spark_batch(batch: pa.RecordBatch, schema: pl.Schema) -> pl.DataFrame:
    """A batch of `mapInArrow` as a frame with the declared types."""
    instants = pa.schema([field.with_type(_in_utc(field.type)) for field in batch.schema])
    # By Arrow, because Polars does not know every name that Spark has for a time zone.
    frame = pl.DataFrame(batch if instants == batch.schema else batch.cast(instants))
    return frame.cast(schema) if frame.schema != schema else frame


def _in_utc(kind: pa.DataType) -> pa.DataType:
    """The same type with all instants in UTC."""
    if pa.types.is_timestamp(kind):
        return kind if kind.tz is None else pa.timestamp(kind.unit, _ZONE)
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_in_utc(kind.value_type)))
    if pa.types.is_map(kind):
        key, item = (field.with_type(_in_utc(field.type)) for field in (kind.key_field, kind.item_field))
        return pa.map_(key, item)
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_in_utc(field.type)) for field in kind])
    return kind
