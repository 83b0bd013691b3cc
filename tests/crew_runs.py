"""Small runs on a crew, for tests that do something to its workers: a windowed sum over rows of memory, cut into
epochs of the same size, whose output is compared with that of the run in one process."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from pyspark.sql import SparkSession

import holdfast as hf
from commits import around_commits
from holdfast.engine.fragment_run import FragmentRun
from holdfast.engine.in_process_platform import InProcessPlatform
from holdfast.engine.options import RunOptions
from holdfast.engine.spark_platform import SparkPlatform
from holdfast.spark.crew import Crew
from holdfast.spark.executor_switch import ExecutorSwitch

__all__ = ["EPOCHS", "FRAME", "ROWS", "crew_of", "options", "output", "run", "totals", "undisturbed_output", "wait_for"]

EPOCHS, ROWS = 24, 400
FRAME = pl.DataFrame(
    {"ts": [29 * n for n in range(EPOCHS * ROWS)], "key": [n % 13 for n in range(EPOCHS * ROWS)]}
).with_columns(value=pl.col("ts") / 8)


def totals(
    place: Path,
    function: Callable[[pl.DataFrame], pl.DataFrame] = lambda frame: frame,
    source: hf.source.Source | None = None,
) -> hf.Pipeline:
    pipeline = hf.Pipeline("totals")
    rows = pipeline.source("rows", source or hf.source.memory(FRAME), event_time="ts", time_unit="ms")
    windows = (
        rows.map_batches(function, schema=FRAME.schema)
        .key_by("key")
        .window(hf.window.sliding("8s", "2s"), name="sums")
        .agg(n=hf.count(), total=hf.sum("value"))
    )
    windows.sink("out", hf.sink.parquet(place / "out"))
    return pipeline


def options(place: Path, **more: Any) -> RunOptions:
    return RunOptions(store=place / "store", durable=False, least_rows=ROWS, most_rows=ROWS, **more)


def crew_of(made: FragmentRun) -> Crew:
    assert isinstance(made.loop.executor, ExecutorSwitch)
    assert isinstance(made.loop.executor.current, Crew)
    return made.loop.executor.current


def output(place: Path) -> list[Any]:
    return sorted(hf.read_output(place / "out", "parquet").rows())


def run(
    spark: SparkSession,
    place: Path,
    at: Callable[[Crew, int], None] = lambda crew, epoch: None,
    function: Callable[[pl.DataFrame], pl.DataFrame] = lambda frame: frame,
    source: hf.source.Source | None = None,
) -> FragmentRun:
    """`at` is called after each commit, before the next epoch is launched."""
    made = FragmentRun(totals(place, function, source), SparkPlatform(spark), options(place))
    crew = crew_of(made)
    with pytest.MonkeyPatch.context() as patch:
        around_commits(after=lambda meta, lease, epoch: at(crew, epoch) if epoch else None, patch=patch.setattr)
        made.run()
    return made


def undisturbed_output(place: Path) -> list[Any]:
    """What a run in one process puts out."""
    FragmentRun(totals(place), InProcessPlatform(), options(place)).run()
    return output(place)


def wait_for(crew: Crew, condition: Callable[[], bool]) -> None:
    """Let what has happened to the crew come to its knowledge."""
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        assert crew.wait(0, watch=False, seconds=0.02) is None
