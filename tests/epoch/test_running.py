"""`hf.start`: pipelines beside the program, with a handle on each."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest
from pyspark.sql import SparkSession

import holdfast as hf
from holdfast.errors import ClusterError, OperatorError

pytestmark = pytest.mark.spark


def endless(name: str, sink: hf.Sink, rate: float = 2_000) -> hf.Pipeline:
    def numbers(start: int, stop: int) -> pl.DataFrame:
        return pl.DataFrame({"n": pl.int_range(start, stop, dtype=pl.Int64, eager=True)})

    pipeline = hf.Pipeline(name)
    pipeline.source("numbers", hf.generator(numbers, {"n": pl.Int64}, rate=rate)).sink("out", sink)
    return pipeline


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 90
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_two_pipelines_run_beside_the_program_until_they_are_stopped(spark: SparkSession, tmp_path: Path) -> None:
    sinks = [hf.collect(), hf.collect()]
    with (
        hf.start(endless("first", sinks[0]), spark=spark, store=tmp_path / "a", latency=0.1) as first,
        hf.start(endless("second", sinks[1]), spark=spark, store=tmp_path / "b", latency=0.1) as second,
    ):
        until(lambda: min(first.status().epochs.get("first", 0), second.status().epochs.get("second", 0)) >= 2)
        assert first.status().state == "running"
        with pytest.raises(TimeoutError, match="'first' still runs"):
            first.wait(timeout=0.1)
        first.stop()
        records = first.wait()
        assert records.keys() == {"first"}
        assert second.status().state == "running"
    for running, sink in ((first, sinks[0]), (second, sinks[1])):
        status = running.status()
        assert status.state == "ended"
        assert status.committed is not None
        assert status.rows == status.output_rows == sink.frame().height > 0
        assert sink.frame()["n"].sort().to_list() == list(range(status.rows))


def test_an_error_is_raised_by_wait_and_shown_by_status(spark: SparkSession, tmp_path: Path) -> None:
    def fragile(rows: pl.DataFrame) -> pl.DataFrame:
        if rows.height:
            raise ZeroDivisionError("odd")
        return rows

    pipeline = hf.Pipeline("fragile")
    pipeline.source("rows", hf.memory(pl.DataFrame({"v": [1]}))).map(fragile, name="scrub").sink("out", hf.collect())
    running = hf.start(pipeline, spark=spark, store=tmp_path)
    with pytest.raises(OperatorError, match="operator 'scrub', epoch 1"):
        running.wait()
    assert running.status().state == "failed"
    assert "ZeroDivisionError: odd" in str(running.status().problem)


def test_the_open_session_is_used_and_left_open(spark: SparkSession, tmp_path: Path) -> None:
    sink = hf.collect()
    pipeline = hf.Pipeline("short")
    pipeline.source("rows", hf.memory(pl.DataFrame({"v": [1, 2]}))).sink("out", sink)
    with hf.start(pipeline, store=tmp_path) as running:
        running.wait()
    assert sink.frame().height == 2
    assert spark.range(3).count() == 3
    with pytest.raises(ClusterError, match="has a Spark session already"):
        hf.start(pipeline, store=tmp_path, conf={"spark.executor.memory": "2g"})
    with pytest.raises(ClusterError, match="a session was given"):
        hf.start(pipeline, store=tmp_path, spark=spark, master="local[2]")
