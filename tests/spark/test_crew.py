"""A crew: workers that stay, as tasks of one Spark job. Output is that of any other executor, whoever is killed."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from pyspark import InheritableThread
from pyspark.sql import SparkSession

import holdfast as hf
from commits import around_commits
from crew_runs import EPOCHS, ROWS, options, output, run, totals, undisturbed_output, wait_for
from holdfast.engine.fragment_run import FragmentRun
from holdfast.engine.spark_platform import SparkPlatform
from holdfast.errors import BadRowError, DeclarationError
from holdfast.meta import Commands, Lease, MetaStore, RunNotes, opened_meta
from holdfast.plan.scale_command import ScaleCommand
from holdfast.spark.crew import Crew
from holdfast.spark.executor_switch import ExecutorSwitch
from holdfast.spark.job import cancel_jobs, running_tasks, tagged
from holdfast.spark.jobs import SparkJobs
from holdfast.spark.session import slots
from observers import watching

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    return undisturbed_output(tmp_path_factory.mktemp("expected"))


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


def test_a_spare_takes_the_place_of_a_worker_at_once(spark: SparkSession, tmp_path: Path, expected: list[Any]) -> None:
    seen: list[tuple[list[int], list[int]]] = []

    def kill(crew: Crew, epoch: int) -> None:
        if epoch == 9:
            wait_for(crew, lambda: bool(crew.spares))
            seen.append((crew.workers, crew.spares))
            os.kill(crew.workers[1], signal.SIGKILL)
        elif epoch == 10:
            seen.append((crew.workers, crew.spares))

    run(spark, tmp_path, kill)
    [(before, [spare]), (after, _)] = seen
    assert after == [before[0], spare]
    assert output(tmp_path) == expected


def dying(flag: Path, error: type[BaseException] | None, times: int) -> Callable[[pl.DataFrame], pl.DataFrame]:
    """A function that ends its process, or raises, so many times, but only in a crew."""

    def function(frame: pl.DataFrame) -> pl.DataFrame:
        crew = any(thread.name == "beats" for thread in threading.enumerate())
        if crew and frame["ts"].max() > 29 * 7 * ROWS and len(list(flag.parent.glob(f"{flag.name}*"))) < times:
            flag.with_name(f"{flag.name}-{os.getpid()}-{time.monotonic_ns()}").touch()
            if error is not None:
                raise error
            os.kill(os.getpid(), signal.SIGKILL)
        return frame

    return function


@pytest.mark.parametrize(
    ("error", "times"), [(MemoryError, 1), (None, 2), (None, 100)], ids=["MemoryError", "killed", "killed always"]
)
def test_a_worker_that_dies_of_its_own_input_is_replaced_and_at_last_epochs_are_jobs(
    spark: SparkSession,
    tmp_path: Path,
    expected: list[Any],
    error: type[BaseException] | None,
    times: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("holdfast.spark.executor_switch._PAUSE", 3600.0)  # no other crew comes
    pipeline = totals(tmp_path, dying(tmp_path / "died", error, times))
    made = FragmentRun(pipeline, SparkPlatform(spark), options(tmp_path))
    executor = made.loop.executor
    made.run()
    assert output(tmp_path) == expected
    assert len(list(tmp_path.glob("died*"))) >= min(times, 3)
    assert isinstance(executor, ExecutorSwitch)
    assert isinstance(executor.current, SparkJobs if times > 3 else Crew)
    with opened_meta(tmp_path / "store", None) as meta:
        [said] = RunNotes(meta).executors("totals").values()
    assert said.startswith("Spark jobs, one for each epoch: the crew was given up" if times > 3 else "a crew of 2")


def test_a_crew_that_gets_no_slots_gives_way_to_jobs_until_there_are_some(
    spark: SparkSession,
    tmp_path: Path,
    expected: list[Any],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr("holdfast.spark.crew._SECONDS_TO_GET_SLOTS", 3.0)
    monkeypatch.setattr("holdfast.spark.executor_switch._PAUSE", 0.1)
    monkeypatch.setattr("holdfast.spark.executor_switch._LONGEST_PAUSE", 1.0)
    sleep = "reflect('java.lang.Thread', 'sleep', cast(60000 as bigint))"
    count = slots(spark) - 1

    def hold() -> None:
        spark.sparkContext.setLocalProperty("spark.job.interruptOnCancel", "true")
        with tagged(spark, "holds-slots"), contextlib.suppress(Exception):
            spark.range(0, count, 1, count).selectExpr(sleep).collect()

    holder = InheritableThread(target=hold, daemon=True)
    holder.start()
    try:
        while running_tasks(spark, "holds-slots") < count:
            time.sleep(0.05)
        made = FragmentRun(totals(tmp_path), SparkPlatform(spark), options(tmp_path))
        switch = made.loop.executor
        assert isinstance(switch, ExecutorSwitch)

        def strike(meta: MetaStore, lease: Lease, epoch: int) -> None:
            if epoch == 2:
                cancel_jobs(spark, "holds-slots")
            deadline = time.monotonic() + 240
            while epoch == 4 and isinstance(switch.current, SparkJobs) and not (switch.coming and switch.coming.stands):
                assert time.monotonic() < deadline
                switch.look_after(epoch + 1, stopping=False)
                time.sleep(0.05)

        around_commits(after=strike, patch=monkeypatch.setattr)
        made.run()
    finally:
        cancel_jobs(spark, "holds-slots")
        holder.join()
    assert any("the crew was given up, because only" in message for message in caplog.messages)
    assert isinstance(switch.current, Crew)
    assert made.executor is not None
    assert made.executor.executor == "crew"
    assert output(tmp_path) == expected


def test_a_crew_grows_and_shrinks_with_the_partitions(spark: SparkSession, tmp_path: Path, expected: list[Any]) -> None:
    sizes: list[list[int]] = []

    def scale(crew: Crew, epoch: int) -> None:
        sizes.append(crew.workers)
        if epoch in (3, 14):
            with contextlib.closing(MetaStore(tmp_path / "store")) as meta:
                Commands(meta).ask("totals", ScaleCommand("sums", 4 if epoch == 3 else 2).encode(), time.time())
        if epoch == 8:
            wait_for(crew, lambda: len(crew.workers) + len(crew.spares) == 5)

    run(spark, tmp_path, scale)
    assert output(tmp_path) == expected
    assert [len(sizes[epoch - 1]) for epoch in (3, 11, EPOCHS)] == [2, 4, 2]
    assert sizes[2] == sizes[10][:2] == sizes[-1], "who was there stays"


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


def test_where_slots_are_missing_epochs_are_jobs(spark: SparkSession, tmp_path: Path) -> None:
    made = FragmentRun(totals(tmp_path), SparkPlatform(spark), options(tmp_path, tasks=500))
    try:
        assert isinstance(made.loop.executor, SparkJobs)
        assert "Spark jobs, one for each epoch: a crew needs 502 slots" in str(made.executor)
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
