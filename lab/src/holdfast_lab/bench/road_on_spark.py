"""The toll notifications of Linear Road in Structured Streaming.

State is kept by `applyInPandasWithState`, and a key is not a vehicle or a segment but a bucket of expressways, one for
each task. Each micro-batch then is one call per task, which treats all its reports at once by vectorised code, the
functions of Holdfast's own application. A call for each vehicle would cost hundreds of times as much as its report is
worth, and so would a look-up in the state for each of them (`transformWithStateInPandas`); windows and joins in SQL
cannot say what a trip or an accident is. The price is that the state of a bucket is written as a whole with each
micro-batch: about 25 bytes for every vehicle on its roads. It is in Spark's default state store: with a handful of
large values RocksDB has nothing to offer.

Micro-batches follow each other at once. The sink is Spark's for Parquet files, exactly once, and an answer is there
when its micro-batch is committed.
"""

from __future__ import annotations

import io
import itertools
import json
import pickle
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pandas as pd
import polars as pl
import pyarrow as pa
from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name every PySpark program uses
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.state import GroupState, GroupStateTimeout

from holdfast.errors import EpochFailedError
from holdfast_lab.bench.open_loop import CommitLog
from holdfast_lab.bench.road_elsewhere import REPORT, TOLLS, OpenPeer, RoadPeer, RoadSchedule
from holdfast_lab.bench.road_run import RoadOptions, application
from holdfast_lab.linear_road.small_traffic import INPUT_SCHEMA

__all__ = ["TollsOfBucket", "spark_peer"]

_TYPES: dict[type[pl.DataType], str] = {pl.Int8: "tinyint", pl.Int16: "smallint", pl.Int32: "int", pl.Int64: "bigint"}
_STATE = "trips binary, standing binary, segments binary"
_PIECE = 400_000
_SETTINGS = {
    "spark.sql.streaming.numRecentProgressUpdates": "100000",
    "spark.sql.streaming.minBatchesToRetain": "2",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "400000",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
}
_LABELS = 1_000
_WARM_BATCHES = 8
"""What comes before the measurement is taken in so many micro-batches: Java compiles what runs again and again."""


def spark_peer(spark: SparkSession) -> OpenPeer:
    """Structured Streaming in a session."""
    return partial(_opened, spark)


@contextmanager
def _opened(spark: SparkSession, schedule: RoadSchedule, options: RoadOptions, place: Path) -> Iterator[RoadPeer]:
    for key, value in {**_SETTINGS, "spark.sql.shuffle.partitions": str(options.partitions)}.items():
        spark.conf.set(key, value)
    spark.dataSource.register(_Reports)
    (place / "schedule").write_bytes(pickle.dumps(schedule))
    reports = spark.readStream.format("reports").option("schedule", str(place / "schedule")).load()
    tolls = (
        reports.withColumn("bucket", _bucket(spark, options.partitions))
        .groupBy("bucket")
        .applyInPandasWithState(TollsOfBucket(), _declared(TOLLS), _STATE, "append", GroupStateTimeout.NoTimeout)
    )
    running = (
        tolls.writeStream.format("parquet")
        .option("path", str(place / "answers"))
        .option("checkpointLocation", str(place / "checkpoint"))
        .outputMode("append")
        .start()
    )
    try:
        yield _SparkPeer(spark, running, place / "answers")
    finally:
        running.stop()


def _bucket(spark: SparkSession, buckets: int) -> Column:
    """Expressways in turn; the buckets are called so that Spark's hash gives each a task of its own."""
    task = F.pmod(F.hash(F.col("id").cast("int")), F.lit(buckets))
    known = spark.range(_LABELS).groupBy(task.alias("task")).agg(F.min("id").alias("label")).orderBy("task").collect()
    labels = F.array(*(F.lit(int(row["label"])).cast("int") for row in known))
    return F.element_at(labels, (F.col("xway") % len(known) + 1).cast("int"))


def _declared(schema: pl.Schema) -> str:
    return ", ".join(f"{name} {_TYPES[type(dtype)]}" for name, dtype in schema.items())


class _SparkPeer:
    def __init__(self, spark: SparkSession, running: StreamingQuery, out: Path) -> None:
        self._spark, self._running, self._out = spark, running, out
        self._log = CommitLog()
        self._batch = -1

    def commits(self) -> CommitLog:
        failure = self._running.exception()
        if failure is not None:
            raise EpochFailedError(f"the streaming query failed: {failure}", cure="see Spark's log for the first error")
        last = self._running.lastProgress
        if last is not None and _told(last)["batchId"] > self._batch:
            for progress in self._running.recentProgress:
                self._note(_told(progress))
        return self._log

    def _note(self, told: dict[str, Any]) -> None:
        """A batch that had no rows ends with the offset of the one before."""
        if told["batchId"] <= self._batch or told["sources"][0]["endOffset"] is None:
            return
        self._batch = told["batchId"]
        began = datetime.fromisoformat(told["timestamp"]).timestamp()
        rows = json.loads(told["sources"][0]["endOffset"])["row"]
        self._log.add(int(rows), began + told["durationMs"]["triggerExecution"] / 1_000)

    def answers(self) -> pl.LazyFrame:
        """Of the files that the sink's own log names."""
        files = self._spark.read.parquet(str(self._out)).inputFiles()
        return pl.scan_parquet([unquote(urlsplit(file).path) for file in files])


def _told(progress: Any) -> dict[str, Any]:
    fields: dict[str, Any] = progress if isinstance(progress, dict) else progress.jsonValue
    return fields


# The source


class _RowsOfAll(InputPartition):
    def __init__(self, start: int, stop: int) -> None:
        self.start, self.stop = start, stop


class _ReportReader(DataSourceStreamReader):
    """Runs in a process of its own, which plans, and in tasks, which read."""

    def __init__(self, schedule: RoadSchedule, tasks: int) -> None:
        self._schedule, self._tasks = schedule, tasks
        self._beginning: float | None = None
        self._planned = 0

    def initialOffset(self) -> dict[str, int]:  # noqa: N802 - Spark's name
        return {"row": 0}

    def latestOffset(self) -> dict[str, int]:  # type: ignore[override]  # noqa: N802 - Spark's name
        if self._beginning is None:
            self._beginning = self._schedule.beginning()
        due, warm = self._schedule.due(time.time(), self._beginning), self._schedule.warm
        return {"row": due if self._planned >= warm else min(due, self._planned + -(-warm // _WARM_BATCHES))}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        self._planned = max(self._planned, end["row"])
        low, rows = start["row"], end["row"] - start["row"]
        ends = [low + rows * task // self._tasks for task in range(self._tasks + 1)]
        return [_RowsOfAll(*piece) for piece in itertools.pairwise(ends)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, _RowsOfAll)
        step = max(1, _PIECE // self._schedule.roads.count)
        for low in range(partition.start, partition.stop, step):
            rows = self._schedule.roads.frame(low, min(low + step, partition.stop), REPORT)
            yield from rows.to_arrow().to_batches()

    def commit(self, end: dict[str, int]) -> None:
        """Nothing is kept."""


class _Reports(DataSource):
    @classmethod
    def name(cls) -> str:
        return "reports"

    def schema(self) -> str:
        return _declared(pl.Schema({name: INPUT_SCHEMA[name] for name in REPORT}))

    def streamReader(self, schema: Any) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        schedule: RoadSchedule = pickle.loads(Path(self.options["schedule"]).read_bytes())
        return _ReportReader(schedule, tasks=2)


# The query


class TollsOfBucket:
    """All reports of a bucket in a micro-batch, with the state of all its vehicles, places and segments."""

    def __init__(self) -> None:
        application()  # the functions go to the tasks by value
        trips, tolls = sys.modules["trips"], sys.modules["tolls"]
        self._follow, self._watch, self._upstream = trips.follow, tolls.watch_place, tolls.upstream
        self._calculate, self._segment = tolls.TollCalculator(), tolls.SEGMENT
        place = ["xway", "dir", "lane", "pos"]
        self._keys = (["vid"], place, tolls.SEGMENT)
        key_types = {**INPUT_SCHEMA}
        self._schemas = tuple(
            {**{name: key_types[name] for name in keys}, **columns}
            for keys, columns in zip(self._keys, (trips.STATE, tolls.STANDING, tolls.SEGMENT_STATE), strict=True)
        )

    def __call__(self, key: Any, frames: Iterator[pd.DataFrame], state: GroupState) -> Iterator[pd.DataFrame]:
        rows = pl.concat([pl.from_pandas(frame) for frame in frames]).select(REPORT)
        kept = state.get if state.exists else (None, None, None)
        known = [
            pl.DataFrame(schema=schema) if packed is None else pl.read_ipc_stream(io.BytesIO(packed))
            for schema, packed in zip(self._schemas, kept, strict=True)
        ]
        moves = self._step(known, 0, self._follow, rows.sort("time", maintain_order=True)).sort("time")
        moves = moves.with_columns(distance=pl.lit(None, pl.Int8), cleared=pl.lit(None, pl.Boolean))
        standing = moves.filter(pl.col("stopped").is_not_null())
        signals = self._step(known, 1, self._watch, standing) if standing.height else None
        if signals is not None and signals.height:
            moves = pl.concat([moves, self._upstream(signals, dict(moves.schema))], how="vertical_relaxed")
        notices = self._step(known, 2, self._calculate, moves)
        state.update(tuple(_packed(table) for table in known))
        told = notices.select("time", "vid", "xway", "dir", "seg", "lav", pl.col("toll").cast(pl.Int64).alias("amount"))
        yield told.to_pandas()

    def _step(self, known: list[pl.DataFrame], number: int, function: Any, rows: pl.DataFrame) -> pl.DataFrame:
        """Apply a function of the application to rows and the state of their keys, and change that state."""
        keys, table = self._keys[number], known[number]
        touched = rows.select(keys).unique()
        mine = table.join(touched, on=keys, how="semi")
        step = function(rows, mine, None)
        rest = table.join(touched, on=keys, how="anti")
        gone = mine if step.deletes is None else mine.join(step.deletes, on=keys, how="anti")
        if step.upserts is not None:
            gone = gone.join(step.upserts, on=keys, how="anti")
            gone = pl.concat([gone, step.upserts.select(table.columns).cast(dict(table.schema))])
        known[number] = pl.concat([rest, gone])
        output: pl.DataFrame = step.output
        return output


def _packed(table: pl.DataFrame) -> bytes:
    buffer = io.BytesIO()
    table.write_ipc_stream(buffer)
    return buffer.getvalue()
