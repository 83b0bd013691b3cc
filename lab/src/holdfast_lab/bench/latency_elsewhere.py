"""How long the same rows take in Structured Streaming and in Flink.

*Structured Streaming* reads the rows that have arrived from a source in Python, which is Holdfast's own schedule, with
a new micro-batch as soon as the one before is done. A row is done when the micro-batch that contains it is committed to
the checkpoint and by the sink: Parquet files, exactly once. Spark's own file sink takes no results that change, so
those by key are written by batch number, a batch that comes again in the place of the first.

*Flink* makes the same rows in the same order, with the same keys and values: its `datagen` connector counts ticks at a
fixed rate (a second's in one go), and each is unfolded into the rows of its time inside Flink. Its file sink shows what
a checkpoint has completed, exactly once, so a row is done when the first checkpoint ends that began after its arrival.
That is when Flink begins to show it: what its sink takes to rename files after that is not counted.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name every PySpark program uses
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.query import StreamingQuery

from holdfast.errors import EpochFailedError
from holdfast_lab.bench.open_loop import SPREAD, CommitLog, LatencyOfRows, RowSchedule, checkpoint_latency
from holdfast_lab.workloads.flink_cluster import FlinkJob, flink_session
from holdfast_lab.workloads.flink_run import flink_settings
from holdfast_lab.workloads.queries import MILESTONE
from holdfast_lab.workloads.spark_run import SPARK_SETTINGS

__all__ = ["DIFFERENCES", "flink_latency", "spark_latency"]

DIFFERENCES = (
    "All read the same rows in the same order at the same rate, with the same keys, and write files exactly once.",
    "Structured Streaming reads them from a source in Python. Of totals by key it tells, batch by batch, those of every"
    " tenth row of a key that a batch ends with; Holdfast and Flink tell those of every tenth row.",
    "Flink makes the rows itself, and its connector makes those of a second in one go: on time on average over seconds,"
    " not row by row, so that some are there up to a second early; event time is when they were made. A source that is"
    " held up makes them later: then it is said that it did not keep up. Files are CSV there and Parquet elsewhere.",
    "From arrival to commit; what sinks take to show files after that is counted for none of them. Rows that are pushed"
    " over HTTP are measured in Holdfast alone, which has receivers of its own.",
)
"""What differs between the systems, for whoever reads the figures."""

_SECONDS_TO_START = 15.0
_PATIENCE = 1.0
_POLL_SECONDS = 0.05
_KEPT_UP = 0.95
"""The share of the rate that Flink's source must have kept."""
_TICKS = 100
_ARRAY = 100
_LONGEST_SECONDS = 600
_PROGRESS_KEPT = "100000"
"""Spark forgets what it has told of all but the last 100 batches, unless asked not to."""


# Structured Streaming


class _Part(InputPartition):
    def __init__(self, start: int, stop: int) -> None:
        self.start, self.stop = start, stop


class _ScheduleReader(DataSourceStreamReader):
    def __init__(self, schedule: RowSchedule) -> None:
        self._schedule = schedule

    def initialOffset(self) -> dict[str, int]:  # noqa: N802 - Spark's name
        return {"row": 0}

    def latestOffset(self) -> dict[str, int]:  # type: ignore[override]  # noqa: N802 - Spark's name
        return {"row": self._schedule.due(time.time())}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        low, high = start["row"], end["row"]
        middle = (low + high) // 2
        return [_Part(low, middle), _Part(middle, high)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, _Part)
        if partition.stop > partition.start:
            yield from self._schedule.frame(partition.start, partition.stop).to_arrow().to_batches()

    def commit(self, end: dict[str, int]) -> None:
        """Nothing is kept."""


class _ScheduleOfRows(DataSource):
    @classmethod
    def name(cls) -> str:
        return "schedule"

    def schema(self) -> str:
        return "event_time bigint, key bigint, value bigint"

    def streamReader(self, schema: Any) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        rate, warm, seconds, began = (float(self.options[name]) for name in ("rate", "warm", "seconds", "began"))
        return _ScheduleReader(RowSchedule(rate, warm, seconds, int(self.options["keys"]), began))


def spark_latency(
    spark: SparkSession, load: str, rate: float, warm: float, seconds: float, keys: int, place: Path
) -> LatencyOfRows:
    """Run a load on Structured Streaming: `sliding`, or totals by key."""
    settings = {
        **SPARK_SETTINGS,
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.streaming.numRecentProgressUpdates": _PROGRESS_KEPT,
    }
    for key, value in settings.items():
        spark.conf.set(key, value)
    spark.dataSource.register(_ScheduleOfRows)
    schedule = RowSchedule(rate, warm, seconds, keys, time.time() + _SECONDS_TO_START)
    given = {"rate": rate, "began": schedule.began, "warm": warm, "seconds": seconds, "keys": keys}
    reading = spark.readStream.format("schedule")
    for name, option in given.items():
        reading = reading.option(name, repr(option))
    running = _started(reading.load(), load, place)
    try:
        gives_up = schedule.end + _PATIENCE * seconds
        while time.time() < gives_up:
            failure = running.exception()
            if failure is not None:
                raise EpochFailedError(f"the streaming query failed: {failure}", cure="see Spark's log")
            log = _batches(running)
            if log.rows and log.rows[-1] >= schedule.rows:
                break
            time.sleep(_POLL_SECONDS)
        return _batches(running).latency(schedule, time.time())
    finally:
        running.stop()


def _started(rows: DataFrame, load: str, place: Path) -> StreamingQuery:
    if load == "sliding":
        timed = rows.withColumn("at", F.timestamp_micros("event_time")).withWatermark("at", "0 seconds")
        counts = timed.groupBy(F.window("at", "60 seconds", "1 second"), "key").count()
        writing = counts.writeStream.format("parquet").option("path", str(place / "out")).outputMode("append")
    else:
        totals = rows.groupBy("key").agg(F.count("*").alias("n"), F.sum("value").alias("total"))

        def tell(changed: DataFrame, batch: int) -> None:
            told = changed.filter(F.pmod("n", F.lit(MILESTONE)) == 0)
            told.write.mode("overwrite").parquet(str(place / "out" / str(batch)))

        writing = totals.writeStream.foreachBatch(tell).outputMode("update")
    return writing.option("checkpointLocation", str(place / "checkpoint")).start()


def _batches(running: StreamingQuery) -> CommitLog:
    log = CommitLog()
    for progress in running.recentProgress:
        told: Any = progress if isinstance(progress, dict) else progress.jsonValue
        end = json.loads(told["sources"][0]["endOffset"] or '{"row": 0}')
        began = datetime.fromisoformat(told["timestamp"]).timestamp()
        log.add(int(end["row"]), began + told["durationMs"]["triggerExecution"] / 1_000)
    return log


# Flink


def flink_latency(
    load: str, rate: float, warm: float, seconds: float, keys: int, interval: float, place: Path
) -> LatencyOfRows | None:
    """Run a load on Flink with a checkpoint every `interval` seconds. None if no checkpoint was completed."""
    settings = {
        **flink_settings(place, checkpoints=True, heap=True),
        "execution.checkpointing.interval": f"{round(1_000 * interval)} ms",
    }
    with flink_session(place, settings) as session:
        session.run(*arriving(round(rate), keys))
        job = session.start(_insert(session, load, place))
        try:
            rows = per_tick(round(rate))
            began = _first_rows(job)
            schedule = RowSchedule(rate, warm, seconds, keys, began)
            time.sleep(max(0.0, began + warm - time.time()))
            read, at = _read(job), time.time()
            time.sleep(max(0.0, schedule.end - time.time()))
            made = _read(job) - read + rate / rows  # those of a second come at once: the last may not be there yet
            kept = made * rows / (rate * max(1e-9, time.time() - at))
            time.sleep(3 * interval)
            return checkpoint_latency(_checkpoints(job), schedule, kept_up=kept >= _KEPT_UP)
        finally:
            job.cancel()


def per_tick(rate: int) -> int:
    """Rows of a tick, of which there are a hundred a second, or fewer where the rate is not a multiple of that."""
    return rate // max(ticks for ticks in range(1, _TICKS + 1) if rate % ticks == 0)


def arriving(rate: int, keys: int) -> list[str]:
    """The tables and views that make the rows of a `RowSchedule` inside Flink."""
    rows = per_tick(rate)
    ticks = rate // rows
    inner = ", ".join(map(str, range(min(rows, _ARRAY))))
    outer = ", ".join(str(_ARRAY * number) for number in range(-(-rows // _ARRAY)))
    return [
        f"""CREATE TEMPORARY TABLE ticks (
            `tick` BIGINT, `at` AS CAST(CURRENT_TIMESTAMP AS TIMESTAMP(3)), `now` AS PROCTIME(),
            WATERMARK FOR `at` AS `at`
        ) WITH (
            'connector' = 'datagen', 'rows-per-second' = '{ticks}', 'fields.tick.kind' = 'sequence',
            'fields.tick.start' = '0', 'fields.tick.end' = '{_LONGEST_SECONDS * ticks}'
        )""",
        # The arrays depend on the tick in name only. Without that it were the join of two streams, with state.
        f"""CREATE TEMPORARY VIEW unfolded AS SELECT *,
            CASE WHEN `tick` IS NULL THEN ARRAY[0] ELSE ARRAY[{outer}] END AS `some`,
            CASE WHEN `tick` IS NULL THEN ARRAY[0] ELSE ARRAY[{inner}] END AS `ones` FROM ticks""",
        f"""CREATE TEMPORARY VIEW numbered AS SELECT `tick` * {rows} + s.`n` + o.`n` AS `number`, `at`, `now`
            FROM unfolded CROSS JOIN UNNEST(`some`) AS s(`n`) CROSS JOIN UNNEST(`ones`) AS o(`n`)
            WHERE s.`n` + o.`n` < {rows}""",
        f"""CREATE TEMPORARY VIEW arriving AS SELECT MOD(`number` * {SPREAD}, {keys}) AS `key`,
            MOD(`number`, 1000) AS `value`, `at`, `now` FROM numbered""",
    ]


def _insert(session: Any, load: str, place: Path) -> str:
    files = f"'connector' = 'filesystem', 'format' = 'csv', 'path' = '{(place / 'out').as_uri()}'"
    if load == "sliding":
        session.run(f"CREATE TEMPORARY TABLE results (`key` BIGINT, `end` TIMESTAMP(3), `n` BIGINT) WITH ({files})")
        return """INSERT INTO results SELECT `key`, `window_end`, COUNT(*) FROM TABLE(HOP(
            TABLE arriving, DESCRIPTOR(`at`), INTERVAL '1' SECOND, INTERVAL '60' SECOND))
            GROUP BY `key`, `window_start`, `window_end`"""
    session.run(
        "CREATE TEMPORARY TABLE results (`key` BIGINT, `at` TIMESTAMP(3), `n` BIGINT, `total` BIGINT) WITH ("
        + files
        + ")"
    )
    return f"""INSERT INTO results SELECT `key`, `at`, `n`, `total` FROM (
        SELECT `key`, `at`, COUNT(*) OVER w AS `n`, SUM(`value`) OVER w AS `total` FROM arriving
        WINDOW w AS (PARTITION BY `key` ORDER BY `now`)) WHERE MOD(`n`, {MILESTONE}) = 0"""


def _first_rows(job: FlinkJob) -> float:
    end = time.time() + 90
    while time.time() < end:
        if _read(job):
            return time.time()
        if not job.running():
            break
        time.sleep(_POLL_SECONDS)
    raise EpochFailedError("Flink read nothing", cure="see flink.log; is the machine very busy?")


def _read(job: FlinkJob) -> int:
    """How many ticks the sources have made."""
    told = job.get()
    for vertex in told["vertices"] if told else ():
        if "Source: ticks" in vertex["name"]:
            metrics = f"/vertices/{vertex['id']}/metrics"
            known = [metric["id"] for metric in job.get(metrics) or ()]
            names = [name for name in known if ".Source__ticks" in name and name.endswith(".numRecordsOut")]
            if names:
                found = job.get(f"{metrics}?get={','.join(names)}") or ()
                return sum(round(float(metric["value"])) for metric in found)
    return 0


def _checkpoints(job: FlinkJob) -> list[tuple[float, float]]:
    told = job.get("/checkpoints")
    return [
        (entry["trigger_timestamp"] / 1_000, (entry["trigger_timestamp"] + entry["end_to_end_duration"]) / 1_000)
        for entry in (told["history"] if told else ())
        if entry["status"] == "COMPLETED"
    ]
