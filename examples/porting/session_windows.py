"""Visits: clicks of one visitor with less than half an hour between them."""

import polars as pl
import pyspark.sql.functions as sf
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

import holdfast as hf


def structured_streaming(spark: SparkSession, clicks: str, visits: str, checkpoint: str) -> StreamingQuery:
    rows = (
        spark.readStream.schema("at TIMESTAMP, visitor BIGINT, page STRING")
        .option("maxFilesPerTrigger", 1)
        .json(clicks)
    )
    counted = (
        rows.withWatermark("at", "5 minutes")
        .groupBy("visitor", sf.session_window("at", "30 minutes"))
        .agg(sf.count("*").alias("clicks"), sf.max_by("page", "at").alias("last_page"))
        .select("visitor", "session_window.start", "session_window.end", "clicks", "last_page")
    )
    return (
        counted.writeStream.format("parquet")
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start(visits)
    )


def holdfast_pipeline(clicks: str, visits: str) -> hf.Pipeline:
    pipeline = hf.Pipeline("visits")
    schema = {"at": pl.Datetime("us", "UTC"), "visitor": pl.Int64, "page": pl.String}
    source = hf.source.files(clicks, "ndjson", schema, grow=True)
    rows = pipeline.source("clicks", source, event_time="at", lateness="5 min")
    counted = (
        rows.key_by("visitor").window(hf.window.session("30 min")).agg(clicks=hf.count(), last_page=hf.last("page"))
    )
    counted.sink("visits", hf.sink.parquet(visits))
    return pipeline
