"""A crew: workers that stay, as tasks of one Spark job. Output is that of any other executor, whoever is killed."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import psutil
import pytest
from pyspark.sql import SparkSession

import holdfast as hf
from holdfast.engine.fragment_run import FragmentRun
from holdfast.engine.in_process_platform import InProcessPlatform
from holdfast.engine.options import RunOptions
from holdfast.engine.spark_platform import SparkPlatform
from holdfast.errors import BadRowError, DeclarationError
from holdfast.spark.crew import Crew
from observers import watching

pytestmark = pytest.mark.spark

EPOCHS, ROWS = 24, 400
FRAME = pl.DataFrame(
    {"ts": [29 * n for n in range(EPOCHS * ROWS)], "key": [n % 13 for n in range(EPOCHS * ROWS)]}
).with_columns(value=pl.col("ts") / 8)


def totals(place: Path) -> hf.Pipeline:
    """Two stages behind the first: a window by key, and one over its results."""
    pipeline = hf.Pipeline("totals")
    rows = pipeline.source("rows", hf.source.memory(FRAME), event_time="ts", time_unit="ms").key_by("key")
    windows = rows.window(hf.window.sliding("8s", "2s"), name="sums").agg(n=hf.count(), total=hf.sum("value"))
    windows.sink("out", hf.sink.parquet(place / "out"))
    return pipeline


def options(place: Path, **more: Any) -> RunOptions:
    return RunOptions(store=place / "store", durable=False, least_rows=ROWS, most_rows=ROWS, executor="crew", **more)


def output(place: Path) -> list[Any]:
    return sorted(hf.read_output(place / "out", "parquet").rows())


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    place = tmp_path_factory.mktemp("expected")
    FragmentRun(totals(place), InProcessPlatform(), options(place)).run()
    return output(place)


def run(spark: SparkSession, place: Path, at: Callable[[Crew, int], None] = lambda crew, epoch: None) -> FragmentRun:
    """`at` is called after each commit."""
    made = FragmentRun(
        totals(place),
        SparkPlatform(spark),
        options(place),
        observer=watching(epoch_committed=lambda report: at(crew, report.epoch)),
    )
    crew = made.loop.executor
    assert isinstance(crew, Crew)
    made.run()
    return made


def test_the_output_is_that_of_any_other_executor(spark: SparkSession, tmp_path: Path, expected: list[Any]) -> None:
    made = run(spark, tmp_path)
    assert made.committed == EPOCHS
    assert output(tmp_path) == expected
    assert not spark.sparkContext.statusTracker().getActiveJobsIds(), "the workers end with the run"


@pytest.mark.parametrize("victims", [1, 2], ids=["one", "all"])
def test_a_killed_worker_is_replaced_and_the_others_stay(
    spark: SparkSession, tmp_path: Path, expected: list[Any], victims: int
) -> None:
    before: list[set[int]] = []

    def kill(crew: Crew, epoch: int) -> None:
        if epoch in (5, 11):
            before.append(set(crew.workers))
            for pid in sorted(crew.workers)[:victims]:
                os.kill(pid, signal.SIGKILL)
        if epoch == EPOCHS - 1:
            before.append(set(crew.workers))

    made = run(spark, tmp_path, kill)
    assert made.committed == EPOCHS
    assert output(tmp_path) == expected
    assert before[0] != before[1] != before[2]
    if victims == 1:
        assert before[0] & before[1], "who was not killed went on"


def test_a_worker_that_is_stopped_is_given_up(spark: SparkSession, tmp_path: Path, expected: list[Any]) -> None:
    stopped: list[int] = []

    def stop(crew: Crew, epoch: int) -> None:
        if epoch == 6:
            stopped.append(min(crew.workers))
            os.kill(stopped[0], signal.SIGSTOP)

    began = time.monotonic()
    run(spark, tmp_path, stop)
    assert output(tmp_path) == expected
    assert time.monotonic() - began < 60, "it was not waited for"
    deadline = time.monotonic() + 10
    while psutil.pid_exists(stopped[0]):  # whoever started it has to notice, too
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_an_error_of_a_task_reaches_the_user_as_it_is(spark: SparkSession, tmp_path: Path) -> None:
    pipeline = hf.Pipeline("bad")
    rows = pl.DataFrame({"ts": [1, None], "key": [1, 2]}, schema={"ts": pl.Int64, "key": pl.Int64})
    stream = pipeline.source("rows", hf.source.memory(rows), event_time="ts", time_unit="ms").key_by("key")
    stream.window(hf.window.tumbling("1s")).agg(n=hf.count()).sink("out", hf.sink.collect())
    with pytest.raises(BadRowError, match="operator 'rows', epoch 1"):
        hf.run(pipeline, spark=spark, store=tmp_path, executor="crew")


def test_a_run_that_is_stopped_goes_on_where_it_was(spark: SparkSession, tmp_path: Path, expected: list[Any]) -> None:
    made: list[FragmentRun] = []

    def stop(report: Any) -> None:
        if report.epoch == 7:
            made[0].stop()

    made.append(
        FragmentRun(totals(tmp_path), SparkPlatform(spark), options(tmp_path), observer=watching(epoch_committed=stop))
    )
    made[0].run()
    assert 7 <= made[0].committed < EPOCHS
    run(spark, tmp_path)
    assert output(tmp_path) == expected


def test_where_slots_are_missing_epochs_are_jobs(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    made = FragmentRun(totals(tmp_path), SparkPlatform(spark), options(tmp_path, tasks=50))
    try:
        assert not isinstance(made.loop.executor, Crew)
        assert "a crew needs 52 slots" in caplog.text
    finally:
        made.close()


def test_an_executor_that_there_is_not_is_refused() -> None:
    with pytest.raises(DeclarationError, match="there is no executor 'ship'"):
        hf.RunOptions(executor="ship")  # type: ignore[arg-type]


def test_nothing_of_a_crew_is_left(spark: SparkSession, tmp_path: Path) -> None:
    run(spark, tmp_path)
    deadline = time.monotonic() + 5
    while [thread for thread in threading.enumerate() if thread.name.startswith("crew")]:
        assert time.monotonic() < deadline, threading.enumerate()
        time.sleep(0.05)
