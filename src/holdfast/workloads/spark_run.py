"""Run a query on plain Structured Streaming for a while, and say how fast it went.

The input must not be the bottleneck, so it stays inside the JVM: Spark's rate source numbers blocks of a thousand
rows, the blocks are unfolded, and each row is looked up in the broadcast dataset by its number, its event time
shifted by the round. In trials reading this way took 1 CPU second for 14 to 16 million rows, and for 6 to 7 million
where the rate source made every row. A query as cheap as YSB still spends a good part of its time on it.
"""

from __future__ import annotations

import json
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import polars as pl
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name every PySpark program uses
from pyspark.sql.streaming.query import StreamingQuery

from holdfast.errors import EpochFailedError
from holdfast.workloads.datasets import Dataset
from holdfast.workloads.queries import query
from holdfast.workloads.spark_queries import spark_query

__all__ = ["SPARK_SETTINGS", "SparkRun", "run_spark", "spark_source"]

SPARK_SETTINGS: Mapping[str, str] = {
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    "spark.sql.streaming.numRecentProgressUpdates": "100000",
}
"""What Spark's documentation recommends for large state, and a memory for all progress reports."""

BLOCK = 1_000
"""Rows that one row of the rate source stands for."""

EXPANDED_ROWS_PER_BATCH = 8_000_000

_WARM_UP_BATCHES = 2
_POLL_SECONDS = 0.05


@dataclass(frozen=True, slots=True)
class SparkRun:
    """What a run did after the warm-up; `seconds` is the time of its batches, which follow each other at once."""

    query: str
    tuples: int
    tuple_bytes: int
    output_rows: int
    seconds: float
    batch_seconds: tuple[float, ...]

    @property
    def batches(self) -> int:
        return len(self.batch_seconds)

    @property
    def tuples_per_second(self) -> float:
        return self.tuples / self.seconds if self.seconds else 0.0


def spark_source(spark: SparkSession, data: Dataset, events: pl.DataFrame, rows_per_batch: int) -> DataFrame:
    """A stream that replays `events` without end, as fast as it is read, in batches of whole blocks."""
    tasks = spark.sparkContext.defaultParallelism
    numbered = events.with_columns(pl.int_range(pl.len(), dtype=pl.Int64).alias("row"))
    table = spark.createDataFrame(numbered.to_arrow(compat_level=pl.CompatLevel.oldest()))
    numbers = (
        spark.readStream.format("rate-micro-batch")
        .option("rowsPerBatch", max(1, round(rows_per_batch / BLOCK)))
        .option("numPartitions", tasks)
        .load()
        .select("value", F.explode(F.sequence(F.lit(0), F.lit(BLOCK - 1))).alias("place"))
        .select((F.col("value") * BLOCK + F.col("place")).alias("number"))
        .select(
            (F.col("number") % events.height).alias("row"),
            (F.floor(F.col("number") / events.height) * data.period(events)).alias("shift"),
        )
    )
    # The task's number, times zero, is there because it is not deterministic: the optimiser moves no filter below
    # it. Else a query's filter would run on the table, once per batch, and not on every row.
    shifted = F.col(data.event_time) + F.col("shift") + F.spark_partition_id() * 0
    rows = numbers.join(F.broadcast(table), "row").withColumn(data.event_time, shifted)
    return rows.select(*events.columns)


def run_spark(
    spark: SparkSession,
    name: str,
    seconds: float,
    *,
    events: pl.DataFrame | None = None,
    rows_per_batch: int | None = None,
    slide: int | None = None,
    checkpoint: str | None = None,
    patience: float = 120.0,
) -> SparkRun:
    """Run query `name` for about `seconds` after two batches of warm-up, discarding its results.

    `events` are replayed, by default the query's dataset. Batches have `rows_per_batch` rows, by default so many
    that Spark, which copies a row into each of its windows, has some millions of rows to handle. `checkpoint` is
    the directory for offsets and state, a temporary one unless given. A run that has not
    finished the warm-up, or a batch after it, gets `patience` seconds more for each of the two.
    """
    asked = query(name)
    if rows_per_batch is None:
        windows_of_a_row = max(asked.sizes) // asked.checked_slide(slide)
        rows_per_batch = max(2 * BLOCK, EXPANDED_ROWS_PER_BATCH // windows_of_a_row)
    rows = asked.dataset.load() if events is None else events
    settings = {**SPARK_SETTINGS, "spark.sql.shuffle.partitions": str(spark.sparkContext.defaultParallelism)}
    with _settings(spark, settings), _directory(checkpoint) as directory:
        source = spark_source(spark, asked.dataset, rows, rows_per_batch)
        running = (
            spark_query(name, source, slide=slide)
            .writeStream.format("noop")
            .outputMode("append")
            .option("checkpointLocation", directory)
            .start()
        )
        try:
            _wait(running, patience, batches=_WARM_UP_BATCHES)
            _wait(running, seconds, batches=None)
            _wait(running, patience, batches=_WARM_UP_BATCHES + 1)
            progress = [_report(each) for each in running.recentProgress[_WARM_UP_BATCHES:]]
        finally:
            running.stop()
    durations = tuple(each["durationMs"]["triggerExecution"] / 1_000 for each in progress)
    return SparkRun(
        query=asked.name,
        tuples=sum(_blocks(each) for each in progress) * BLOCK,
        tuple_bytes=asked.tuple_bytes,
        output_rows=sum(each["sink"]["numOutputRows"] for each in progress),
        seconds=sum(durations),
        batch_seconds=durations,
    )


def _report(progress: Any) -> dict[str, Any]:
    fields: dict[str, Any] = progress if isinstance(progress, dict) else progress.jsonValue
    return fields


def _blocks(progress: dict[str, Any]) -> int:
    """Blocks of input in a batch, by the offsets: Spark's own count has a block twice if a query reads it twice."""
    source = progress["sources"][0]
    start, end = (json.loads(source[side])["offset"] for side in ("startOffset", "endOffset"))
    return int(end - start)


def _wait(running: StreamingQuery, seconds: float, *, batches: int | None) -> None:
    """Until the time is over, or so many batches are done."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        failure = running.exception()
        if failure is not None:
            raise EpochFailedError(f"the streaming query failed: {failure}", cure="see Spark's log for the first error")
        if batches is not None and len(running.recentProgress) >= batches:
            return
        time.sleep(_POLL_SECONDS)


@contextmanager
def _settings(spark: SparkSession, settings: Mapping[str, str]) -> Iterator[None]:
    """Change the session's settings for a while."""
    before = {key: spark.conf.get(key, None) for key in settings}
    try:
        for key, value in settings.items():
            spark.conf.set(key, value)
        yield
    finally:
        for key, old in before.items():
            if old is None:
                spark.conf.unset(key)
            else:
                spark.conf.set(key, old)


@contextmanager
def _directory(given: str | None) -> Iterator[str]:
    if given is not None:
        yield given
        return
    made = tempfile.mkdtemp(prefix="holdfast-checkpoint-")
    try:
        yield made
    finally:
        shutil.rmtree(made, ignore_errors=True)
