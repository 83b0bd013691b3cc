"""Views of each page in ten minutes; a row may come five minutes late."""

import polars as pl
import pyspark.sql.functions as sf
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

import holdfast as hf


def structured_streaming(spark: SparkSession, views: str, counts: str, checkpoint: str) -> StreamingQuery:
    rows = spark.readStream.schema("at TIMESTAMP, page STRING").option("maxFilesPerTrigger", 1).json(views)
    counted = (
        rows.withWatermark("at", "5 minutes")
        .groupBy("page", sf.window("at", "10 minutes"))
        .agg(sf.count("*").alias("views"))
        .select("page", "window.start", "window.end", "views")
    )
    return (
        counted.writeStream.format("parquet")
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start(counts)
    )


def holdfast_pipeline(views: str, counts: str, late: str) -> hf.Pipeline:
    pipeline = hf.Pipeline("views")
    schema = {"at": pl.Datetime("us", "UTC"), "page": pl.String}
    rows = pipeline.source(
        "views", hf.source.files(views, "ndjson", schema, grow=True), event_time="at", lateness="5 min"
    )
    counted = rows.key_by("page").window(hf.window.tumbling("10 min")).agg(views=hf.count())
    counted.sink("counts", hf.sink.parquet(counts))
    counted.late.sink("late", hf.sink.ndjson(late))
    return pipeline
