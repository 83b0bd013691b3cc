"""A backlog in small portions: as a job that ends with it, or as one that stays and looks now and then."""

import polars as pl
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

import holdfast as hf


def structured_streaming(
    spark: SparkSession, events: str, copy: str, checkpoint: str, every: str | None = None
) -> StreamingQuery:
    rows = spark.readStream.schema("at TIMESTAMP, id BIGINT").option("maxFilesPerTrigger", 1).json(events)
    writer = rows.writeStream.format("parquet").option("checkpointLocation", checkpoint)
    if every is None:
        return writer.trigger(availableNow=True).start(copy)
    return writer.trigger(processingTime=every).start(copy)


def holdfast_run(events: str, copy: str, store: str, every: str | None = None) -> hf.Running:
    pipeline = hf.Pipeline("copy")
    schema = {"at": pl.Datetime("us", "UTC"), "id": pl.Int64}
    rows = pipeline.source("events", hf.source.files(events, "ndjson", schema, grow=True), event_time="at")
    rows.sink("copy", hf.sink.parquet(copy))
    return hf.start(pipeline, store=store, trigger=every or "available now", most_rows=100)
