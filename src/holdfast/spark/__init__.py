"""Holdfast on Spark: the session, the Java behind it, the jobs that run epochs, batches of Structured Streaming, and
the data source `spark.read.format("holdfast")`."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["register"]


def __dir__() -> list[str]:
    return __all__


def register(spark: SparkSession) -> None:
    """Make the format "holdfast" known to a session: `spark.read`, `readStream` and `writeStream` take it then.

    Spark finds it by itself where Holdfast is installed for the Python of its driver; this is for other sessions.
    """
    from holdfast.spark.front_door import HoldfastSource  # noqa: PLC0415 - Spark is slow to import

    spark.dataSource.register(HoldfastSource)
