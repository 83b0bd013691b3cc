"""Payments that the sender may send twice within ten minutes; the first one counts."""

import polars as pl
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

import holdfast as hf


def structured_streaming(spark: SparkSession, payments: str, once: str, checkpoint: str) -> StreamingQuery:
    rows = (
        spark.readStream.schema("at TIMESTAMP, id BIGINT, cents BIGINT").option("maxFilesPerTrigger", 1).json(payments)
    )
    distinct = rows.withWatermark("at", "10 minutes").dropDuplicatesWithinWatermark(["id"])
    return (
        distinct.writeStream.format("parquet")
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start(once)
    )


def holdfast_pipeline(payments: str, once: str) -> hf.Pipeline:
    pipeline = hf.Pipeline("payments")
    schema = {"at": pl.Datetime("us", "UTC"), "id": pl.Int64, "cents": pl.Int64}
    rows = pipeline.source("payments", hf.source.files(payments, "ndjson", schema, grow=True), event_time="at")
    rows.deduplicate("id", within="10 min").sink("once", hf.sink.parquet(once))
    return pipeline
