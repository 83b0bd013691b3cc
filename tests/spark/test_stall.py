"""What hangs without an error: Python workers that are stopped, functions and calls that never come back."""

from __future__ import annotations

import itertools
import os
import signal
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import polars as pl
import psutil
import pytest
from pyspark import SparkContext
from pyspark.sql import SparkSession

import holdfast as hf
from holdfast.errors import DeadlineError
from observers import watching

pytestmark = pytest.mark.spark

ROWS = pl.DataFrame({"ts": range(60), "k": [i % 3 for i in range(60)]})


def source() -> tuple[hf.Pipeline, hf.Stream]:
    made = hf.Pipeline("grey")
    parts = [ROWS[at : at + 10] for at in range(0, 60, 10)]
    return made, made.source("events", hf.source.memory(parts, epochs=True), event_time="ts", time_unit="s")


def pipeline(out: hf.sink.Sink) -> hf.Pipeline:
    made, stream = source()
    stream.key_by("k").window(hf.window.tumbling("10s")).agg(n=hf.count()).sink("out", out)
    return made


def python_processes() -> tuple[list[psutil.Process], list[psutil.Process]]:
    """What forks the Python workers of the session, and the workers."""
    gateway = SparkContext._gateway
    assert gateway is not None
    java = psutil.Process(gateway.proc.pid)
    forks = java.children()
    return forks, [child for child in java.children(recursive=True) if child not in forks]


@pytest.fixture
def nothing_stays_stopped() -> Iterator[None]:
    yield
    for process in itertools.chain(*python_processes()):
        process.resume()


@pytest.mark.usefixtures("nothing_stays_stopped")
@pytest.mark.parametrize("all_of_them", [False, pytest.param(True, marks=pytest.mark.long)])
def test_an_epoch_whose_python_workers_are_stopped_is_run_again(
    spark: SparkSession, tmp_path: Path, all_of_them: bool
) -> None:
    out, stopped = hf.sink.collect(), list[int]()

    def stop_workers(report: hf.EpochReport) -> None:
        if report.epoch == 3:
            forks, workers = python_processes()
            for process in [*workers, *forks] if all_of_them else workers:
                os.kill(process.pid, signal.SIGSTOP)
                stopped.append(process.pid)

    hf.run(
        pipeline(out),
        spark=spark,
        store=tmp_path,
        observer=watching(epoch_committed=stop_workers),
        deadline="3s",
        durable=False,
    )
    assert stopped
    assert out.frame()["n"].sum() == ROWS.height
    assert not {process.pid for process in itertools.chain(*python_processes())} & set(stopped)


@pytest.mark.long
def test_an_epoch_that_never_ends_is_an_error_that_names_the_operator(spark: SparkSession, tmp_path: Path) -> None:
    mended = tmp_path / "mended"

    def wait(rows: pl.DataFrame, state: pl.DataFrame, context: hf.ProcessContext) -> hf.Step:
        while context.epoch == 2 and not mended.exists():
            time.sleep(60)
        return hf.Step(output=rows.select("k"))

    def waiting(out: hf.sink.Sink) -> hf.Pipeline:
        made, stream = source()
        processed = stream.key_by("k").process(
            wait, state={"n": pl.Int64}, output={"k": pl.Int64}, keep_forever=True, name="patient"
        )
        processed.sink("out", out)
        return made

    with pytest.raises(DeadlineError, match=r"operator 'patient', epoch 2: .* no progress .*stage 1") as caught:
        hf.run(waiting(hf.sink.collect()), spark=spark, store=tmp_path / "store", deadline="3s", durable=False)
    assert "--deadline" in caught.value.cure
    mended.touch()
    out = hf.sink.collect()
    hf.run(waiting(out), spark=spark, store=tmp_path / "store", deadline="3s", durable=False)
    assert out.frame().height == ROWS.height - 10  # the first epoch was committed before


def test_a_slow_function_that_works_is_left_alone(spark: SparkSession, tmp_path: Path) -> None:
    """Longer than its deadline, and at work all the time: the session's one attempt is enough."""
    tries = tmp_path / "tries"
    tries.mkdir()

    def slow(rows: pl.DataFrame) -> pl.DataFrame:
        if rows.height and rows["ts"].min() == 0:
            (tries / uuid.uuid4().hex).touch()
            began = time.process_time()
            while time.process_time() - began < 4:
                pass
        return rows

    made, stream = source()
    out = hf.sink.collect()
    stream.map_batches(slow, name="slow").sink("out", out)
    hf.run(made, spark=spark, store=tmp_path / "store", deadline="3s", durable=False, tasks=1)
    assert len(list(tries.iterdir())) == 1
    assert out.frame().height == ROWS.height
