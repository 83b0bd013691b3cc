"""Continuous eventual checkpoints: state that is lost is gathered from the footprints of windows, and the output stays
what it would have been."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest
from pyspark.sql import SparkSession

import holdfast as hf
from holdfast.epoch.driver import PipelineRun, RunOptions
from holdfast.epoch.recovery import RecoveryReport
from holdfast.epoch.report import EpochReport
from holdfast.state.policy import DELTA, Policy

pytestmark = pytest.mark.spark

FRAMES = [
    pl.DataFrame(
        {
            "ts": [epoch * 5 + i // 20 for i in range(100)],
            "k": [(epoch * 7 + i * i) % 31 for i in range(100)],
            "v": [float(i % 13) for i in range(100)],
        }
    )
    for epoch in range(16)
]
Build = Callable[[hf.Sink], hf.Pipeline]


def source(pipeline: hf.Pipeline, name: str = "in", shift: int = 0) -> hf.Stream:
    frames = [frame.with_columns(pl.col("k") + shift) for frame in FRAMES]
    return pipeline.source(name, hf.memory(frames, epochs=True), event_time="ts", time_unit="s")


def by_count(sink: hf.Sink) -> hf.Pipeline:
    pipeline = hf.Pipeline("by-count")
    windows = source(pipeline).key_by("k").window(hf.count_window(10))
    windows.agg(n=hf.count(), total=hf.sum("v"), name="counts").sink("out", sink)
    return pipeline


def by_sliding_count(sink: hf.Sink) -> hf.Pipeline:
    pipeline = hf.Pipeline("by-sliding-count")
    windows = source(pipeline).key_by("k").window(hf.count_window(12, 5))
    windows.agg(top=hf.max("v"), total=hf.sum("v"), name="counts").sink("out", sink)
    return pipeline


def by_time(sink: hf.Sink) -> hf.Pipeline:
    pipeline = hf.Pipeline("by-time")
    windows = source(pipeline).key_by("k").window(hf.tumbling("30s"))
    windows.agg(n=hf.count(), total=hf.sum("v"), name="counts").sink("out", sink)
    return pipeline


def by_sliding_time(sink: hf.Sink) -> hf.Pipeline:
    pipeline = hf.Pipeline("by-sliding-time")
    windows = source(pipeline).key_by("k").window(hf.sliding("20s", "5s"))
    windows.agg(n=hf.count(), top=hf.max("v"), name="counts").sink("out", sink)
    return pipeline


def joined(sink: hf.Sink) -> hf.Pipeline:
    pipeline = hf.Pipeline("joined")
    left, right = source(pipeline, "left"), source(pipeline, "right", shift=3)
    made = left.join(right.filter(pl.col("v") > 6), on="k", window=hf.tumbling("15s"), name="pairs")
    made.sink("out", sink)
    return pipeline


class KilledError(Exception):
    pass


def dying_after(epoch: int) -> Callable[[EpochReport], None]:
    def on_epoch(report: EpochReport) -> None:
        if report.epoch == epoch:
            raise KilledError

    return on_epoch


def lose(volatile: Path) -> None:
    import shutil

    while volatile.exists():
        shutil.rmtree(volatile, ignore_errors=True)


def rows(path: Path) -> list[tuple[object, ...]]:
    frame = hf.read_output(path, "parquet")
    return sorted(frame.rows())


def plain(build: Build, spark: SparkSession, place: Path) -> list[tuple[object, ...]]:
    hf.run(build(hf.parquet(place / "plain")), spark=spark, store=place / "plain-store", checkpoint=DELTA)
    return rows(place / "plain")


BUILDS = [by_count, by_sliding_count, by_time, by_sliding_time, joined]
POLICIES = [
    Policy("eventual", only_open=True),
    hf.eventual(Q=40, U=300, CI="200ms", CP="200ms"),
    hf.eventual("1ms", CI="1s", CP="1s"),
]


@pytest.mark.parametrize(
    ("build", "policy"),
    [(build, policy) for build in BUILDS for policy in POLICIES]
    if os.environ.get("HOLDFAST_FUZZ")
    else list(zip(BUILDS, [POLICIES[2], POLICIES[1], POLICIES[0], POLICIES[1], POLICIES[2]], strict=True)),
    ids=lambda value: value.__name__ if callable(value) else str(value),
)
def test_what_is_lost_is_gathered_from_footprints(
    build: Build, policy: Policy, spark: SparkSession, tmp_path: Path
) -> None:
    expected = plain(build, spark, tmp_path)
    volatile = tmp_path / "volatile"
    options = RunOptions(store=tmp_path / "store", checkpoint=policy, volatile=volatile, retain=3)
    recoveries: list[RecoveryReport] = []
    for death in (5, 11):
        run = PipelineRun(
            build(hf.parquet(tmp_path / "out")), spark, options,
            on_epoch=dying_after(death), on_recovery=recoveries.append,
        )  # fmt: skip
        with pytest.raises(KilledError):
            run.run()
        lose(volatile)
    last = PipelineRun(build(hf.parquet(tmp_path / "out")), spark, options, on_recovery=recoveries.append)
    last.run()
    assert rows(tmp_path / "out") == expected
    assert len(recoveries) == 2
    for report in recoveries:
        [gathered] = report.gathered
        assert gathered.windows > 0
        assert gathered.oldest == report.epoch
