"""Between Spark's types and Polars': what `from_spark` and the data source need.

Spark's TimestampType is an instant. Batches carry it with the time zone of the session, which is a matter of display
and may differ between two starts; so it becomes a Datetime in UTC, and no hour is counted twice or left out when
clocks are changed. TimestampNTZType is a reading of some clock and becomes a Datetime without a time zone.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import polars as pl
import polars.selectors as cs
import pyarrow as pa

from holdfast.errors import WrongTypeError

__all__ = ["for_spark", "from_spark_batch", "notices_of_spark", "polars_schema", "spark_schema", "to_spark_batches"]

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
                cure="cast or drop that column in Spark before passing the DataFrame",
                operator=operator,
            ) from error
    return pl.Schema(columns)


def from_spark_batch(batch: pa.RecordBatch, schema: pl.Schema) -> pl.DataFrame:
    """A batch of `mapInArrow` as a frame with the declared types."""
    instants = pa.schema([field.with_type(_in_utc(field.type)) for field in batch.schema])
    # By Arrow, because Polars does not know every name that Spark has for a time zone.
    frame = pl.DataFrame(batch if instants == batch.schema else batch.cast(instants))
    return frame.cast(schema) if frame.schema != schema else frame


def for_spark(rows: pl.DataFrame) -> pl.DataFrame:
    """The same rows in types that Spark has: unsigned integers in the next wider type, times in microseconds."""
    wider: dict[Any, Any] = {
        pl.UInt8: pl.Int16, pl.UInt16: pl.Int32, pl.UInt32: pl.Int64, pl.UInt64: pl.Decimal(20, 0),
        pl.Categorical: pl.String, pl.Datetime("ns"): pl.Datetime("us"),
    }  # fmt: skip
    return rows.with_columns(cs.by_dtype(dtype).cast(target) for dtype, target in wider.items())


def spark_schema(schema: pl.Schema) -> Any:
    """The StructType of rows with this schema, as `for_spark` gives them."""
    from pyspark.sql.pandas.types import from_arrow_schema  # noqa: PLC0415 - slow to import

    columns = {}
    for name, dtype in schema.items():
        empty = for_spark(pl.DataFrame(schema={name: dtype})).to_arrow(compat_level=pl.CompatLevel.oldest())
        try:
            columns[name] = from_arrow_schema(empty.schema).fields[0]
        except Exception as error:
            raise WrongTypeError(
                f"column '{name}' is {dtype}, which Spark cannot hold: {str(error).splitlines()[0]}",
                cure="leave it out, with .schema(...) for the other columns",
            ) from error
    from pyspark.sql.types import StructType  # noqa: PLC0415 - slow to import

    return StructType(list(columns.values()))


def to_spark_batches(rows: pl.DataFrame, schema: Any) -> Iterator[pa.RecordBatch]:
    """Rows as batches of Arrow with the columns of a StructType."""
    from pyspark.sql.pandas.types import to_arrow_schema  # noqa: PLC0415 - slow to import

    names = [field.name for field in schema]
    table = for_spark(rows.select(names)).to_arrow(compat_level=pl.CompatLevel.oldest())
    yield from table.cast(to_arrow_schema(schema, timezone=_ZONE)).to_batches()


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
