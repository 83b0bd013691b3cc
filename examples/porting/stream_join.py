"""Impressions with the clicks that follow within an hour; an impression without a click comes with nulls."""

import polars as pl
import pyspark.sql.functions as sf
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

import holdfast as hf


def structured_streaming(
    spark: SparkSession, impressions: str, clicks: str, joined: str, checkpoint: str
) -> StreamingQuery:
    shown = (
        spark.readStream.schema("ad BIGINT, shown TIMESTAMP")
        .option("maxFilesPerTrigger", 1)
        .json(impressions)
        .withWatermark("shown", "5 minutes")
    )
    clicked = (
        spark.readStream.schema("ad BIGINT, clicked TIMESTAMP")
        .option("maxFilesPerTrigger", 1)
        .json(clicks)
        .withWatermark("clicked", "5 minutes")
    )
    pairs = shown.alias("i").join(
        clicked.alias("c"),
        sf.expr("i.ad = c.ad AND clicked BETWEEN shown AND shown + INTERVAL 1 HOUR"),
        "left_outer",
    )
    return (
        pairs.select("i.ad", "shown", "clicked")
        .writeStream.format("parquet")
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start(joined)
    )


def holdfast_pipeline(impressions: str, clicks: str, joined: str) -> hf.Pipeline:
    pipeline = hf.Pipeline("attribution")
    instant = pl.Datetime("us", "UTC")
    shown = pipeline.source(
        "impressions",
        hf.source.files(impressions, "ndjson", {"ad": pl.Int64, "shown": instant}, grow=True),
        event_time="shown",
        lateness="5 min",
    )
    clicked = pipeline.source(
        "clicks",
        hf.source.files(clicks, "ndjson", {"ad": pl.Int64, "clicked": instant}, grow=True),
        event_time="clicked",
        lateness="5 min",
    )
    pairs = shown.join(clicked, on="ad", within=("0s", "1 h"), how="left")
    pairs.select("ad", "shown", "clicked").sink("joined", hf.sink.parquet(joined))
    return pipeline
