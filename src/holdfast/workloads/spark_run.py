"""Run a query on plain Structured Streaming for a while, and say how fast it went.

The input must not be the bottleneck, so it stays inside the JVM: Spark's rate source numbers the rounds, and a
cross join with the broadcast dataset turns each number into a whole round of rows, their event times shifted by
the round. On two cores that gives more than 10 million rows a second, where the rate source alone, one row at a
time, gives 5 to 7.
"""

from __future__ import annotations

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
from pyspark.sql.streaming import StreamingQuery

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

_WARM_UP_BATCHES = 2
_POLL_SECONDS = 0.05
_LONGEST_WARM_UP = 120.0


@dataclass(frozen=True, slots=True)
class SparkRun:
    """What a run did after the warm-up: `seconds` is the time of the batches, which follow each other at once."""

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


def spark_source(
    spark: SparkSession, data: Dataset, events: pl.DataFrame, rows_per_batch: int
) -> tuple[DataFrame, int]:
    """A stream that replays `events` without end, as fast as it is read, and how many rows one round has.

    A batch has as many whole rounds as come nearest to `rows_per_batch`, at least one per task.
    """
    tasks = spark.sparkContext.defaultParallelism
    rounds = max(tasks, round(rows_per_batch / events.height))
    table = spark.createDataFrame(events.to_arrow(compat_level=pl.CompatLevel.oldest())).cache()
    table.count()
    numbers = (
        spark.readStream.format("rate-micro-batch")
        .option("rowsPerBatch", rounds)
        .option("numPartitions", tasks)
        .load()
        .select((F.col("value") * data.period(events)).alias("shift"))
    )
    # The task's number, times zero, is there because it is not deterministic: the optimiser does not move a filter
    # below it. Else a query's filter would run on the table, once per batch, and not on every row.
    shifted = F.col(data.event_time) + F.col("shift") + F.spark_partition_id() * 0
    rows = numbers.crossJoin(F.broadcast(table)).withColumn(data.event_time, shifted)
    return rows.select(*events.columns), events.height


def run_spark(
    spark: SparkSession,
    name: str,
    seconds: float,
    *,
    events: pl.DataFrame | None = None,
    rows_per_batch: int = 500_000,
    slide: int | None = None,
    checkpoint: str | None = None,
) -> SparkRun:
    """Run query `name` for about `seconds` after two batches of warm-up, discarding its results.

    `events` are replayed, by default the query's dataset. `checkpoint` is the directory for offsets and state, a
    temporary one unless given, which is removed at the end.
    """
    asked = query(name)
    rows = asked.dataset.load() if events is None else events
    settings = {**SPARK_SETTINGS, "spark.sql.shuffle.partitions": str(spark.sparkContext.defaultParallelism)}
    with _settings(spark, settings), _directory(checkpoint) as directory:
        source, round_rows = spark_source(spark, asked.dataset, rows, rows_per_batch)
        running = (
            spark_query(name, source, slide=slide)
            .writeStream.format("noop")
            .outputMode("append")
            .option("checkpointLocation", directory)
            .start()
        )
        try:
            _wait(running, _LONGEST_WARM_UP, batches=_WARM_UP_BATCHES)
            _wait(running, seconds, batches=None)
            progress = [_report(each) for each in running.recentProgress[_WARM_UP_BATCHES:]]
        finally:
            running.stop()
            spark.catalog.clearCache()
    durations = tuple(each["durationMs"]["triggerExecution"] / 1_000 for each in progress)
    return SparkRun(
        query=asked.name,
        tuples=sum(each["numInputRows"] for each in progress) * round_rows // _readers(progress),
        tuple_bytes=asked.tuple_bytes,
        output_rows=sum(each["sink"]["numOutputRows"] for each in progress),
        seconds=sum(durations),
        batch_seconds=durations,
    )


def _report(progress: Any) -> dict[str, Any]:
    fields: dict[str, Any] = progress if isinstance(progress, dict) else progress.jsonValue
    return fields


def _readers(progress: list[dict[str, Any]]) -> int:
    """How often the query reads its input: a join of a stream with itself counts every row on both sides."""
    return max((len(each["sources"]) for each in progress), default=1)


def _wait(running: StreamingQuery, seconds: float, *, batches: int | None) -> None:
    """Until the time is over, or so many batches are done."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        failure = running.exception()
        if failure is not None:
            raise EpochFailedError(
                f"the streaming query failed: {failure}", cure="see Spark's log for the first error"
            )
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
    made = tempfile.mkdtemp(prefix="holdfast-spark-")
    try:
        yield made
    finally:
        shutil.rmtree(made, ignore_errors=True)
