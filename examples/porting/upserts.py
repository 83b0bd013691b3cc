"""The latest address of each customer in a table of PostgreSQL, replaced as changes come."""

import polars as pl
import psycopg
import pyspark.sql.functions as sf
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

import holdfast as hf


def structured_streaming(spark: SparkSession, changes: str, database: str, checkpoint: str) -> StreamingQuery:
    rows = (
        spark.readStream.schema("version BIGINT, customer BIGINT, city STRING")
        .option("maxFilesPerTrigger", 1)
        .json(changes)
    )

    def upsert(batch: DataFrame, batch_id: int) -> None:
        latest = batch.groupBy("customer").agg(sf.max_by("city", "version"))
        with psycopg.connect(database) as connection:
            connection.cursor().executemany(
                "INSERT INTO cities (customer, city) VALUES (%s, %s)"
                " ON CONFLICT (customer) DO UPDATE SET city = excluded.city",
                [tuple(row) for row in latest.collect()],
            )

    return (
        rows.writeStream.foreachBatch(upsert)
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start()
    )


def holdfast_pipeline(changes: str, database: str) -> hf.Pipeline:
    pipeline = hf.Pipeline("cities")
    schema = {"version": pl.Int64, "customer": pl.Int64, "city": pl.String}
    rows = pipeline.source("changes", hf.source.files(changes, "ndjson", schema, grow=True))
    rows.select("customer", "city").sink("cities", hf.sink.database(database, "cities", key="customer"))
    return pipeline
