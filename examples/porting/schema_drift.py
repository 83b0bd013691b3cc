"""JSON whose writers change it: fields appear, and some lines do not fit. Bad lines are kept aside."""

import polars as pl
import pyspark.sql.functions as sf
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

import holdfast as hf


def structured_streaming(
    spark: SparkSession, orders: str, good: str, bad: str, checkpoint: str, schema: str
) -> StreamingQuery:
    lines = spark.readStream.option("maxFilesPerTrigger", 1).text(orders)
    row = sf.from_json("value", f"{schema}, _corrupt STRING", {"columnNameOfCorruptRecord": "_corrupt"})
    parsed = lines.select("value", row.alias("row"))

    def write(batch: DataFrame, batch_id: int) -> None:
        batch.where("row._corrupt IS NULL").select("row.*").drop("_corrupt").write.mode("append").parquet(good)
        batch.where("row._corrupt IS NOT NULL").select("value").write.mode("append").text(bad)

    return (
        parsed.writeStream.foreachBatch(write)
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start()
    )


def holdfast_pipeline(orders: str, good: str, bad: str, schema: dict[str, type[pl.DataType]]) -> hf.Pipeline:
    pipeline = hf.Pipeline("orders")
    lines = hf.source.files(orders, "ndjson", schema, grow=True, bad_rows="dead_letter")
    rows = pipeline.source("orders", lines)
    rows.sink("good", hf.sink.parquet(good))
    rows.dead_letters.sink("bad", hf.sink.ndjson(bad))
    return pipeline
