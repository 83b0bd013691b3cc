"""Streaming DataFrames: a row is late by the micro-batches before its own, and timestamps are instants."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from pyspark.sql import SparkSession

import holdfast as hf
from holdfast.connect.spark_types import notices_of_spark
from holdfast.epoch.report import EpochReport
from holdfast.errors import WrongTypeError
from observers import watching

pytestmark = pytest.mark.spark

CLOCKS_GO_BACK = datetime(2026, 10, 25, 0, 30, tzinfo=UTC)
"""In Berlin it is half past two then, and again an hour later."""


@pytest.fixture
def berlin(spark: SparkSession) -> Iterator[SparkSession]:
    before = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", "Europe/Berlin")
    yield spark
    spark.conf.set("spark.sql.session.timeZone", before)


def write(path: Path, times: list[datetime | None]) -> None:
    lines = [{"at": None if time is None else time.isoformat(), "clock": "2026-10-25T02:30:00"} for time in times]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def run(spark: SparkSession, place: Path) -> tuple[int, int]:
    """Run on what is there; how many rows were late, and how many bad."""
    reports: list[EpochReport] = []
    frame = spark.readStream.schema("at timestamp, clock timestamp_ntz").json(str(place / "in"))
    pipeline = hf.Pipeline("stream")
    rows = pipeline.from_spark("events", frame, event_time="at", lateness="2s", bad_rows="dead_letter")
    assert rows.schema == {"at": pl.Datetime("us", "UTC"), "clock": pl.Datetime("us")}
    rows.window(hf.window.tumbling("10s"), name="windows").agg(n=hf.count(), clock=hf.max("clock")).sink(
        "results", hf.sink.parquet(place / "out")
    )
    rows.dead_letters.sink("dead", hf.sink.ndjson(place / "dead"))
    hf.run(
        pipeline, spark=spark, store=place / "store", until_idle=True, observer=watching(epoch_committed=reports.append)
    )
    return sum(report.late_rows for report in reports), sum(report.bad_rows for report in reports)


def test_partitions_of_a_batch_have_no_order_and_timestamps_are_instants(berlin: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    first, second = CLOCKS_GO_BACK, CLOCKS_GO_BACK + timedelta(hours=1)
    minute = [first + timedelta(seconds=second) for second in range(60)]
    # Structured Streaming reads the files of a batch side by side, and counts all of their rows.
    write(tmp_path / "in" / "a.json", minute)
    write(tmp_path / "in" / "b.json", [*minute, None])
    assert run(berlin, tmp_path) == (0, 1)
    # The next batch finds the watermark that the first one has brought.
    write(tmp_path / "in" / "c.json", [first, minute[59], second, second + timedelta(seconds=12)])
    assert run(berlin, tmp_path) == (1, 0)
    found = hf.read_output(tmp_path / "out", "parquet").sort("window_start")
    assert found.schema["window_start"] == pl.Datetime("us", "UTC")
    windows = [(minute[start], 20 if start < 50 else 21) for start in range(0, 60, 10)] + [(second, 1)]
    assert found.select("window_start", "n").rows() == windows
    assert found["clock"].unique().to_list() == [datetime(2026, 10, 25, 2, 30)]
    [dead] = hf.read_output(tmp_path / "dead", "ndjson")["row"].to_list()
    assert json.loads(dead) == {"at": None, "clock": "2026-10-25 02:30:00.000000"}


def test_a_column_that_cannot_be_carried_is_named(spark: SparkSession) -> None:
    frame: Any = spark.readStream.format("rate").load().selectExpr("timestamp", "make_interval(1) AS odd")
    with pytest.raises(WrongTypeError, match=r"column .odd. of the DataFrame is interval.*not supported"):
        hf.Pipeline("stream").from_spark("events", frame, event_time="timestamp")


def test_a_source_that_cannot_be_read_again_says_so(spark: SparkSession) -> None:
    socket = spark.readStream.format("socket").option("host", "127.0.0.1").option("port", 9).load()
    [told] = notices_of_spark(socket.selectExpr("upper(value) as v"))
    assert "cannot be read again" in told
    assert notices_of_spark(spark.readStream.format("rate").load()) == ()
