"""A streaming DataFrame of Spark, counted by a pipeline that has its own epochs, and its results as a DataFrame again.

Run it with `python examples/spark_frames.py`. A query of Structured Streaming writes to the p-stream `events`, the
pipeline reads it, and Spark reads what the pipeline has put out, and its state.
"""

from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

import holdfast as hf

# Spark looks for them from processes of its own, so the paths are whole.
INPUT, STORE, OUTPUT = (Path.cwd() / name for name in ("events", "store", "out/by-user"))


def events(spark: SparkSession) -> DataFrame:
    """Some events in a file, as a stream. Of several partitions, rows would come in no order, and need lateness."""
    made = spark.range(0, 1_000, 1, 1).selectExpr("id AS ts", "id % 7 AS user")
    made.write.mode("ignore").parquet(str(INPUT))
    return spark.readStream.schema(made.schema).parquet(str(INPUT))


def feed(frame: DataFrame) -> None:
    """Write all that there is to the p-stream; without `availableNow` the query goes on."""
    query = frame.writeStream.format("holdfast").option("store", str(STORE)).option("stream", "events")
    query = query.option("checkpointLocation", str(Path.cwd() / "checkpoints/events"))
    query.trigger(availableNow=True).start().awaitTermination()


def counted(frame: DataFrame) -> hf.Pipeline:
    pipeline = hf.Pipeline("by-user")
    (
        pipeline.from_spark("events", frame, stream="events", event_time="ts", time_unit="s")
        .key_by("user")
        .window(hf.window.tumbling("100s"))
        .agg(events=hf.count())
        .named("counts")
        .sink("results", hf.sink.parquet(OUTPUT))
    )
    return pipeline


def main(spark: SparkSession) -> DataFrame:
    frame = events(spark)
    feed(frame)
    hf.run(counted(frame), spark=spark, store=STORE, until_idle=True)
    state = spark.read.format("holdfast").option("store", str(STORE))
    state.option("pipeline", "by-user").option("operator", "counts").load().show()
    return spark.read.format("holdfast").load(str(OUTPUT))


if __name__ == "__main__":
    main(hf.open_spark()).orderBy("window_end", "user").show()
    hf.close_spark()
