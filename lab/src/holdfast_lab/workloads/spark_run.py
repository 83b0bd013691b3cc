"""Run a query on plain Structured Streaming for a while, and say how fast it went.

The input must not be the bottleneck, so it stays inside the JVM: Spark's rate source numbers blocks of a thousand
rows, the blocks are unfolded, and each row is looked up in the broadcast dataset by its number, its event time
shifted by the round. In trials reading this way took 1 CPU second for 14 to 16 million rows, and for 6 to 7 million
where the rate source made every row. A query as cheap as YSB still spends a good part of its time on it.

What is broadcast must be small, so a denser stream comes from repeating each row where it stands: its copies have its
event time and follow it at once.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import polars as pl
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name every PySpark program uses
from pyspark.sql.streaming.query import StreamingQuery

from holdfast.errors import EpochFailedError
from holdfast.graph.durations import ticks
from holdfast_lab.workloads.datasets import Dataset
from holdfast_lab.workloads.queries import query
from holdfast_lab.workloads.spark_queries import spark_query

__all__ = [
    "SPARK_SETTINGS",
    "SparkBatch",
    "SparkRun",
    "block_rows",
    "bytes_below",
    "run_spark",
    "seconds_for_all",
    "spark_batches",
    "spark_results",
    "spark_source",
    "sql_schema",
    "unfold",
]

SPARK_SETTINGS: Mapping[str, str] = {
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    "spark.sql.streaming.numRecentProgressUpdates": "100000",
    "spark.sql.streaming.minBatchesToRetain": "100000",
}
"""What Spark's documentation recommends for large state, a memory for all progress reports, and nothing removed from
the checkpoint, so that its growth is what was written."""

BLOCK = 1_000
"""About as many rows does one row of the rate source stand for."""

EXPANDED_ROWS_PER_BATCH = 8_000_000

_WARM_UP_BATCHES = 2
_POLL_SECONDS = 0.05


@dataclass(frozen=True, slots=True)
class SparkBatch:
    """A micro-batch by its progress report. `started` and `committed` are seconds of the wall clock.

    `greatest` is the latest event time among its rows, `watermark` the one it closed windows by, which the batches
    before it have set: both in milliseconds, whatever the dataset's unit.
    """

    blocks: int
    started: float
    committed: float
    output_rows: int
    greatest: int | None
    watermark: int | None

    @property
    def seconds(self) -> float:
        return self.committed - self.started

    @staticmethod
    def of(progress: Mapping[str, Any]) -> SparkBatch:
        started = datetime.fromisoformat(progress["timestamp"]).timestamp()
        times = progress.get("eventTime", {})
        return SparkBatch(
            blocks=_blocks(progress),
            started=started,
            committed=started + progress["durationMs"]["triggerExecution"] / 1_000,
            output_rows=progress["sink"]["numOutputRows"],
            greatest=_milliseconds(times.get("max")),
            watermark=_milliseconds(times.get("watermark")),
        )


@dataclass(frozen=True, slots=True)
class SparkRun:
    """What a run did after the warm-up. `persisted_bytes` is by how much its checkpoint has grown: offsets, commits and
    the state's changes. The results are discarded. `elapsed` and `rows_per_batch` tell of a run that got nowhere."""

    query: str
    tuples: int
    tuple_bytes: int
    persisted_bytes: int
    batches: tuple[SparkBatch, ...]
    elapsed: float = 0.0
    """Seconds from the start of the streaming query to its end, the warm-up among them."""
    rows_per_batch: int = 0
    warm_up_tuples: int = 0
    warm_up_seconds: float = 0.0

    @property
    def output_rows(self) -> int:
        return sum(batch.output_rows for batch in self.batches)

    @property
    def seconds(self) -> float:
        """The time of the batches, which follow each other at once."""
        return sum(batch.seconds for batch in self.batches)

    def speed(self) -> tuple[float, str | None]:
        """Tuples per second, and what to say of it if it is not from batches after the warm-up.

        Without a single finished batch it is a bound from above: the batch under way would have to end at once.
        """
        if self.batches and self.seconds > 0:
            return self.tuples / self.seconds, None
        if self.warm_up_tuples and self.warm_up_seconds > 0:
            said = f"only batches of the warm-up were done within {self.elapsed:.0f} s: their speed"
            return self.warm_up_tuples / self.warm_up_seconds, said
        said = f"0 windows: no batch of {self.rows_per_batch:,} tuples was done within {self.elapsed:.0f} s; at most"
        return self.rows_per_batch / max(self.elapsed, 1e-9), said


def block_rows(repeat: int) -> int:
    """How many tuples a block has if each row comes `repeat` times."""
    return max(1, BLOCK // repeat) * repeat


def spark_source(
    spark: SparkSession, data: Dataset, events: pl.DataFrame, rows_per_batch: int, repeat: int = 1
) -> DataFrame:
    """A stream that replays `events` without end, as fast as it is read, in batches of whole blocks."""
    blocks = (
        spark.readStream.format("rate-micro-batch")
        .option("rowsPerBatch", max(1, round(rows_per_batch / block_rows(repeat))))
        .option("numPartitions", spark.sparkContext.defaultParallelism)
        .load()
    )
    return unfold(blocks, data, events, repeat)


def unfold(blocks: DataFrame, data: Dataset, events: pl.DataFrame, repeat: int) -> DataFrame:
    """The rows that the numbers in `value` stand for: block after block of `events`, each row `repeat` times."""
    numbered = events.with_columns(pl.int_range(pl.len(), dtype=pl.Int64).alias("row"))
    table = blocks.sparkSession.createDataFrame(numbered.to_arrow(compat_level=pl.CompatLevel.oldest()))
    rows_of_block = block_rows(repeat) // repeat
    numbers = (
        blocks.select("value", F.explode(F.sequence(F.lit(0), F.lit(rows_of_block - 1))).alias("place"))
        .select((F.col("value") * rows_of_block + F.col("place")).alias("number"))
        .select(
            (F.col("number") % events.height).alias("row"),
            (F.floor(F.col("number") / events.height) * data.period(events)).alias("shift"),
        )
    )
    # The task's number, times zero, is there because it is not deterministic: the optimiser moves no filter below
    # it. Else a query's filter would run on the table, once per batch, and not on every row.
    shifted = F.col(data.event_time) + F.col("shift") + F.spark_partition_id() * 0
    rows = numbers.join(F.broadcast(table), "row")
    if repeat > 1:
        # Behind the look-up, which then is paid once for all copies.
        rows = rows.select("*", F.explode(F.sequence(F.lit(1), F.lit(repeat))).alias("copy"))
    return rows.withColumn(data.event_time, shifted).select(*events.columns)


def run_spark(
    spark: SparkSession,
    name: str,
    seconds: float,
    *,
    events: pl.DataFrame | None = None,
    repeat: int = 1,
    rows_per_batch: int | None = None,
    slide: int | None = None,
    checkpoint: str | None = None,
    patience: float = 120.0,
) -> SparkRun:
    """Run query `name` for about `seconds` after two batches of warm-up, discarding its results.

    `events` are replayed, by default the query's dataset, each row `repeat` times. Batches have `rows_per_batch` rows,
    by default so many that Spark, which copies a row into each of its windows, has some millions of rows to handle.
    `checkpoint` is the directory for offsets and state, a temporary one unless given. A run that has not finished the
    warm-up, or a batch after it, gets `patience` seconds more for each of the two.
    """
    asked = query(name)
    if rows_per_batch is None:
        windows_of_a_row = max(asked.sizes) // asked.checked_slide(slide)
        rows_per_batch = max(2 * BLOCK, EXPANDED_ROWS_PER_BATCH // windows_of_a_row)
    rows = asked.dataset.load() if events is None else events
    settings = {**SPARK_SETTINGS, "spark.sql.shuffle.partitions": str(spark.sparkContext.defaultParallelism)}
    with _settings(spark, settings), _directory(checkpoint) as directory:
        source = spark_source(spark, asked.dataset, rows, rows_per_batch, repeat)
        began = time.monotonic()
        running = (
            spark_query(name, source, slide=slide)
            .writeStream.format("noop")
            .outputMode("append")
            .option("checkpointLocation", directory)
            .start()
        )
        try:
            _wait(running, patience, batches=_WARM_UP_BATCHES)
            size_before = bytes_below(directory)
            _wait(running, seconds, batches=None)
            _wait(running, patience, batches=_WARM_UP_BATCHES + 1)
            progress = running.recentProgress
            elapsed = time.monotonic() - began
            batches = spark_batches(progress)
            warm_up = tuple(SparkBatch.of(_report(batch)) for batch in progress[:_WARM_UP_BATCHES])
            size_after = bytes_below(directory)
        finally:
            running.stop()
    return SparkRun(
        query=asked.name,
        tuples=sum(batch.blocks for batch in batches) * block_rows(repeat),
        tuple_bytes=asked.tuple_bytes,
        persisted_bytes=size_after - size_before,
        batches=batches,
        elapsed=elapsed,
        rows_per_batch=max(1, round(rows_per_batch / block_rows(repeat))) * block_rows(repeat),
        warm_up_tuples=sum(batch.blocks for batch in warm_up) * block_rows(repeat),
        warm_up_seconds=sum(batch.seconds for batch in warm_up),
    )


def spark_results(
    spark: SparkSession, name: str, events: pl.DataFrame, place: Path, *, slide: int | None = None
) -> pl.DataFrame:
    """What query `name` puts out for all of `events`. Its files go to `place`, a new directory.

    Spark has no end of input, so a row of a far later time comes last and closes all windows.
    """
    asked = query(name)
    time_column = asked.dataset.event_time
    latest = events[time_column].max()
    assert isinstance(latest, int)
    closing: dict[str, int] = {time_column: latest + ticks("10000s", asked.dataset.time_unit)}
    if "event_type" in events.columns:  # it must pass the query's filter
        closing["event_type"] = 3 if asked.name == "CM2" else 0
    last = events.tail(1).with_columns(
        pl.lit(value).cast(events.schema[key]).alias(key) for key, value in closing.items()
    )
    files = place / "input"
    files.mkdir(parents=True)
    for number, part in enumerate((events, last)):
        part.write_parquet(files / f"{number}.parquet")
        os.utime(files / f"{number}.parquet", (1_000_000 + number,) * 2)  # files are read in order of this time
    stream = (
        spark.readStream.schema(spark.read.parquet(str(files)).schema)
        .option("maxFilesPerTrigger", 1)
        .parquet(str(files))
    )
    table = f"results_{asked.name.lower()}"
    settings = {**SPARK_SETTINGS, "spark.sql.shuffle.partitions": str(spark.sparkContext.defaultParallelism)}
    with _settings(spark, settings):
        running = (
            spark_query(name, stream, slide=slide)
            .writeStream.format("memory")
            .queryName(table)
            .outputMode("append")
            .option("checkpointLocation", str(place / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        try:
            running.awaitTermination()
            results = spark.table(table).toArrow()
        finally:
            running.stop()
            spark.catalog.dropTempView(table)
    return pl.DataFrame(pl.from_arrow(results))


def seconds_for_all(spark: SparkSession, name: str, stream: DataFrame, checkpoint: Path) -> float:
    """How long query `name` takes for all that a stream has now, without a sink."""
    settings = {**SPARK_SETTINGS, "spark.sql.shuffle.partitions": str(spark.sparkContext.defaultParallelism)}
    with _settings(spark, settings):
        began = time.perf_counter()
        running = (
            spark_query(name, stream)
            .writeStream.format("noop")
            .option("checkpointLocation", str(checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        try:
            running.awaitTermination()
            return time.perf_counter() - began
        finally:
            running.stop()


def sql_schema(schema: pl.Schema) -> str:
    """Whole numbers, as Spark declares them."""
    types: dict[type[pl.DataType], str] = {pl.Int8: "byte", pl.Int32: "int", pl.Int64: "long"}
    return ", ".join(f"{name} {types[type(dtype)]}" for name, dtype in schema.items())


def spark_batches(progress: Sequence[Any]) -> tuple[SparkBatch, ...]:
    """The batches after the warm-up."""
    return tuple(SparkBatch.of(_report(batch)) for batch in progress[_WARM_UP_BATCHES:])


def bytes_below(directory: str) -> int:
    """The size of all files of a checkpoint, which is being written to."""
    total = 0
    for place, _, names in os.walk(directory):
        for name in names:
            try:
                total += (Path(place) / name).stat().st_size
            except FileNotFoundError:  # a temporary name, renamed meanwhile
                continue
    return total


def _milliseconds(moment: str | None) -> int | None:
    return None if moment is None else round(datetime.fromisoformat(moment).timestamp() * 1_000)


def _report(progress: Any) -> dict[str, Any]:
    fields: dict[str, Any] = progress if isinstance(progress, dict) else progress.jsonValue
    return fields


def _blocks(progress: Mapping[str, Any]) -> int:
    """Blocks of input in a batch, by the offsets: Spark's own count has a block twice if a query reads it twice."""
    source = progress["sources"][0]
    sides = (json.loads(source[side] or "null") for side in ("startOffset", "endOffset"))
    start, end = (0 if side is None else side["offset"] for side in sides)  # the first batch has no start
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
