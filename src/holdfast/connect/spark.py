"""Between Spark's types and Polars': what `from_spark` needs."""

from __future__ import annotations

from typing import Any

import polars as pl
import pyarrow as pa

from holdfast.errors import WrongTypeError

__all__ = ["from_spark_batch", "polars_schema"]


def polars_schema(schema: Any, operator: str) -> pl.Schema:
    """The Polars schema of a Spark StructType, by way of Arrow, which is how batches travel."""
    from pyspark.sql.pandas.types import to_arrow_schema

    try:
        empty = to_arrow_schema(schema).empty_table()
        frame = pl.from_arrow(empty)
    except Exception as error:
        raise WrongTypeError(
            f"the DataFrame has a column that Arrow cannot carry: {error}",
            cure="cast or drop that column in Spark before handing the DataFrame over",
            operator=operator,
        ) from error
    assert isinstance(frame, pl.DataFrame)
    return frame.schema


def from_spark_batch(batch: pa.RecordBatch, schema: pl.Schema) -> pl.DataFrame:
    """A batch of `mapInArrow` as a frame with the declared types."""
    frame = pl.from_arrow(batch)
    assert isinstance(frame, pl.DataFrame)
    return frame.cast(schema) if frame.schema != schema else frame
