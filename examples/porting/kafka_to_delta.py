"""JSON messages of a Kafka topic into a Delta table, each once; messages that are no orders are left out."""

import polars as pl
import pyspark.sql.functions as sf
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

import holdfast as hf


def spark_source(spark: SparkSession, servers: str) -> DataFrame:
    topic = spark.readStream.format("kafka").option("kafka.bootstrap.servers", servers).option("subscribe", "orders")
    return topic.option("startingOffsets", "earliest").load()


def structured_streaming(messages: DataFrame, table: str, checkpoint: str) -> StreamingQuery:
    order = sf.from_json(sf.col("value").cast("string"), "at TIMESTAMP, shop STRING, amount DOUBLE")
    orders = messages.select(order.alias("order")).select("order.*").where("at IS NOT NULL")

    def append(batch: DataFrame, batch_id: int) -> None:
        done = DeltaTable(table).transaction_version("orders") if DeltaTable.is_deltatable(table) else None
        if done is None or done < batch_id:
            written = CommitProperties(app_transactions=[Transaction("orders", batch_id)])
            write_deltalake(table, batch.toArrow(), mode="append", commit_properties=written)

    return (
        orders.writeStream.foreachBatch(append)
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start()
    )


def holdfast_source(servers: str) -> hf.source.Source:
    schema = {"at": pl.Datetime("us", "UTC"), "shop": pl.String, "amount": pl.Float64}
    return hf.source.kafka(servers, "orders", schema, bad_rows="skip")


def holdfast_pipeline(messages: hf.source.Source, table: str) -> hf.Pipeline:
    pipeline = hf.Pipeline("orders")
    orders = pipeline.source("orders", messages, event_time="at")
    orders.sink("table", hf.sink.delta(table))
    return pipeline
