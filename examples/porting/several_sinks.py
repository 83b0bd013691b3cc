"""One stream to two places: all orders to an archive, large ones to a review."""

import polars as pl
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

import holdfast as hf


def structured_streaming(
    spark: SparkSession, orders: str, archive: str, review: str, checkpoint: str
) -> StreamingQuery:
    rows = spark.readStream.schema("id BIGINT, amount DOUBLE").option("maxFilesPerTrigger", 1).json(orders)

    def write(batch: DataFrame, batch_id: int) -> None:
        batch.persist()
        batch.write.mode("append").parquet(archive)
        batch.where("amount >= 1000").write.mode("append").parquet(review)
        batch.unpersist()

    return (
        rows.writeStream.foreachBatch(write).option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
    )


def holdfast_pipeline(orders: str, archive: str, review: str) -> hf.Pipeline:
    pipeline = hf.Pipeline("orders")
    schema = {"id": pl.Int64, "amount": pl.Float64}
    rows = pipeline.source("orders", hf.source.files(orders, "ndjson", schema, grow=True))
    rows.sink("archive", hf.sink.parquet(archive))
    rows.filter(pl.col("amount") >= 1000).sink("review", hf.sink.parquet(review))
    return pipeline
