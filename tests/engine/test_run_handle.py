"""`hf.start`: pipelines beside the program, with a handle on each."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path

import polars as pl
import pytest
from pyspark.sql import SparkSession

import holdfast as hf
from holdfast.errors import ClusterError, OperatorError

pytestmark = pytest.mark.spark


def endless(name: str, sink: hf.sink.Sink, rate: float = 2_000) -> hf.Pipeline:
    def numbers(start: int, stop: int) -> pl.DataFrame:
        return pl.DataFrame({"n": pl.int_range(start, stop, dtype=pl.Int64, eager=True)})

    pipeline = hf.Pipeline(name)
    pipeline.source("numbers", hf.source.generator(numbers, {"n": pl.Int64}, rate=rate)).sink("out", sink)
    return pipeline


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 90
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_two_pipelines_run_beside_the_program_until_they_are_stopped(spark: SparkSession, tmp_path: Path) -> None:
    sinks = [hf.sink.collect(), hf.sink.collect()]
    with (
        hf.start(endless("first", sinks[0]), spark=spark, store=tmp_path / "a", latency=0.1) as first,
        hf.start(endless("second", sinks[1]), spark=spark, store=tmp_path / "b", latency=0.1) as second,
    ):
        until(lambda: min(first.status().epochs, second.status().epochs) >= 2)
        assert first.status().state == "running"
        with pytest.raises(TimeoutError, match="'first' still runs"):
            first.wait(timeout=0.1)
        first.stop()
        summary = first.wait()
        assert summary == first.status()
        assert summary.fragments["first"].ended == "it was stopped"
        assert f"first ended: {summary.epochs} epochs, {summary.rows:,} rows in" in str(summary)
        assert str(summary).endswith(f"last committed epoch {summary.epochs}; it was stopped")
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
    pipeline.source("rows", hf.source.memory(pl.DataFrame({"v": [1]}))).map_batches(fragile, name="scrub").sink(
        "out", hf.sink.collect()
    )
    running = hf.start(pipeline, spark=spark, store=tmp_path)
    with pytest.raises(OperatorError, match="operator 'scrub', epoch 1"):
        running.wait()
    assert running.status().state == "failed"
    assert "ZeroDivisionError: odd" in str(running.status().problem)


def test_the_open_session_is_used_and_left_open(spark: SparkSession, tmp_path: Path) -> None:
    sink = hf.sink.collect()
    pipeline = hf.Pipeline("short")
    pipeline.source("rows", hf.source.memory(pl.DataFrame({"v": [1, 2]}))).sink("out", sink)
    with hf.start(pipeline, store=tmp_path) as running:
        running.wait()
    assert sink.frame().height == 2
    assert spark.range(3).count() == 3
    with pytest.raises(ClusterError, match="already has a Spark session"):
        hf.start(pipeline, store=tmp_path, conf={"spark.executor.memory": "2g"})
    with pytest.raises(ClusterError, match="both a session and settings"):
        hf.start(pipeline, store=tmp_path, spark=spark, master="local[2]")


class Told(hf.Observer):
    """Keeps what it is told, and raises after an epoch."""

    def __init__(self, fatal: int | None = None) -> None:
        self.events: list[object] = []
        self.fatal = fatal

    def started(self, fragments: Mapping[str, int]) -> None:
        self.events.append(dict(fragments))

    def epoch_committed(self, report: hf.EpochReport) -> None:
        self.events.append(report.epoch)
        if report.epoch == self.fatal:
            raise ZeroDivisionError("of the observer")

    def recovered(self, report: hf.RecoveryReport) -> None:
        self.events.append("recovered")

    def stopping(self) -> None:
        self.events.append("stopping")

    def ended(self, summary: hf.RunSummary) -> None:
        self.events.append(summary)


def test_what_an_observer_raises_ends_the_run_and_the_next_one_goes_on(spark: SparkSession, tmp_path: Path) -> None:
    frames = [pl.DataFrame({"n": [number]}) for number in range(4)]
    pipeline = hf.Pipeline("watched")
    pipeline.source("rows", hf.source.memory(frames, epochs=True)).sink("out", hf.sink.parquet(tmp_path / "out"))
    options = hf.RunOptions(store=tmp_path / "store", overlap=False)
    first, second = Told(fatal=2), Told()
    with pytest.raises(ZeroDivisionError, match="of the observer"):
        hf.run(pipeline, options, spark=spark, observer=first)
    assert first.events == [{"watched": 0}, 1, 2]
    summary = hf.run(pipeline, options, spark=spark, observer=second)
    assert second.events == [{"watched": 2}, 3, "recovered", 4, summary], "epoch 3 was under way already"
    assert hf.read_output(tmp_path / "out", "parquet")["n"].sort().to_list() == [0, 1, 2, 3]
    fragment = summary.fragments["watched"]
    assert (fragment.last_epoch, fragment.epochs, fragment.rows, fragment.output_rows) == (4, 2, 2, 2)
    assert fragment.recovery is not None
    assert fragment.ended == "its sources ended"


def test_stopping_is_told_once_and_only_while_it_runs(spark: SparkSession, tmp_path: Path) -> None:
    told = Told()
    with hf.start(
        endless("stopped", hf.sink.collect()), spark=spark, store=tmp_path, latency=0.1, observer=told
    ) as running:
        until(lambda: running.status().epochs > 0)
        running.stop()
        assert running.status().state in ("stopping", "ended")
        running.stop()
        assert running.wait() == told.events[-1]
    assert told.events.count("stopping") == 1
