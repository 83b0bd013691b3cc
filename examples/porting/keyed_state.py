"""Devices that have gone silent: for each, its readings and their sum, reported ten minutes after its last reading."""

from collections.abc import Iterator

import pandas as pd
import polars as pl
from pyspark.sql import SparkSession
from pyspark.sql.streaming import StatefulProcessor, StatefulProcessorHandle
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.stateful_processor import ExpiredTimerInfo, TimerValues

import holdfast as hf


class SilenceProcessor(StatefulProcessor):
    def init(self, handle: StatefulProcessorHandle) -> None:
        self.handle = handle
        self.totals = handle.getValueState("totals", "n BIGINT, total DOUBLE")

    def handleInputRows(
        self, key: tuple[int], rows: Iterator[pd.DataFrame], timerValues: TimerValues
    ) -> Iterator[pd.DataFrame]:
        n, total = self.totals.get() if self.totals.exists() else (0, 0.0)
        last = 0
        for frame in rows:
            n += len(frame)
            total += float(frame["value"].sum())
            last = max(last, int(frame["at"].max().timestamp() * 1000))
        self.totals.update((n, total))
        for timer in list(self.handle.listTimers()):
            self.handle.deleteTimer(timer)
        self.handle.registerTimer(last + 600_000)
        yield pd.DataFrame()

    def handleExpiredTimer(
        self, key: tuple[int], timerValues: TimerValues, expiredTimerInfo: ExpiredTimerInfo
    ) -> Iterator[pd.DataFrame]:
        n, total = self.totals.get()
        self.totals.clear()
        yield pd.DataFrame({"device": [key[0]], "n": [n], "total": [total]})

    def close(self) -> None:
        pass


def structured_streaming(spark: SparkSession, readings: str, silent: str, checkpoint: str) -> StreamingQuery:
    spark.conf.set(
        "spark.sql.streaming.stateStore.providerClass",
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
    )
    rows = (
        spark.readStream.schema("at TIMESTAMP, device BIGINT, value DOUBLE")
        .option("maxFilesPerTrigger", 1)
        .json(readings)
    )
    reported = (
        rows.withWatermark("at", "1 minute")
        .groupBy("device")
        .transformWithStateInPandas(
            SilenceProcessor(), "device BIGINT, n BIGINT, total DOUBLE", outputMode="append", timeMode="EventTime"
        )
    )
    return (
        reported.writeStream.format("parquet")
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start(silent)
    )


def silence(rows: pl.DataFrame, state: pl.DataFrame, context: hf.ProcessContext) -> hf.Step:
    added = rows.group_by("device").agg(n=pl.len().cast(pl.Int64), total=pl.col("value").sum(), last=pl.col("at").max())
    totals = added.join(state, on="device", how="left", suffix="_before").select(
        "device",
        n=pl.col("n") + pl.col("n_before").fill_null(0),
        total=pl.col("total") + pl.col("total_before").fill_null(0),
        last="last",
    )
    silent = state.join(context.timers, on="device", how="semi")
    return hf.Step(
        output=silent.select("device", "n", "total"),
        upserts=totals.select("device", "n", "total"),
        deletes=silent.select("device"),
        timers=totals.select("device", at=pl.col("last").dt.offset_by("10m")),
    )


def holdfast_pipeline(readings: str, silent: str) -> hf.Pipeline:
    pipeline = hf.Pipeline("silence")
    schema = {"at": pl.Datetime("us", "UTC"), "device": pl.Int64, "value": pl.Float64}
    source = hf.source.files(readings, "ndjson", schema, grow=True)
    rows = pipeline.source("readings", source, event_time="at", lateness="1 min")
    reported = rows.key_by("device").process(
        silence,
        state={"n": pl.Int64, "total": pl.Float64},
        output={"device": pl.Int64, "n": pl.Int64, "total": pl.Float64},
        ttl="1 h",
        timers="10 min",
    )
    reported.sink("silent", hf.sink.parquet(silent))
    return pipeline
