"""Continuous eventual checkpoints: state that is lost is gathered from the footprints of windows, and the output stays
what it would have been."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest
from click.testing import CliRunner
from losing import Build, KilledError, dying_after, lose, plain, rows
from polars.testing import assert_frame_equal
from pyspark.sql import SparkSession

import holdfast as hf
from holdfast.cli import main
from holdfast.engine.fragment_run import FragmentRun
from holdfast.engine.options import RunOptions
from holdfast.engine.recovery import RecoveryReport
from holdfast.engine.spark_platform import SparkPlatform
from holdfast.epoch.record import Footing
from holdfast.epoch.record_change import record_of
from holdfast.epoch.report import EpochReport
from holdfast.errors import DeclarationError
from holdfast.graph.policies import DELTA, OPEN_ONLY, CheckpointPolicy, IntervalPolicy
from holdfast.meta import Commands, MetaStore
from holdfast.plan.executor_choice import ExecutorName
from holdfast.plan.scale_command import ScaleCommand
from holdfast.pstream.pstream import PStream
from observers import watching
from strategies import long_cases

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


def source(pipeline: hf.Pipeline, name: str = "in", shift: int = 0) -> hf.Stream:
    frames = [frame.with_columns(pl.col("k") + shift) for frame in FRAMES]
    return pipeline.source(name, hf.source.memory(frames, epochs=True), event_time="ts", time_unit="s")


def by_count(sink: hf.sink.Sink) -> hf.Pipeline:
    pipeline = hf.Pipeline("by-count")
    windows = source(pipeline).key_by("k").window(hf.window.count(10))
    windows.agg(n=hf.count(), total=hf.sum("v")).named("counts").sink("out", sink)
    return pipeline


def by_sliding_count(sink: hf.sink.Sink) -> hf.Pipeline:
    pipeline = hf.Pipeline("by-sliding-count")
    windows = source(pipeline).key_by("k").window(hf.window.count(12, 5))
    windows.agg(top=hf.max("v"), total=hf.sum("v")).named("counts").sink("out", sink)
    return pipeline


def by_time(sink: hf.sink.Sink) -> hf.Pipeline:
    pipeline = hf.Pipeline("by-time")
    windows = source(pipeline).key_by("k").window(hf.window.tumbling("30s"))
    windows.agg(n=hf.count(), total=hf.sum("v")).named("counts").sink("out", sink)
    return pipeline


def by_sliding_time(sink: hf.sink.Sink) -> hf.Pipeline:
    pipeline = hf.Pipeline("by-sliding-time")
    windows = source(pipeline).key_by("k").window(hf.window.sliding("20s", "5s"))
    windows.agg(n=hf.count(), top=hf.max("v")).named("counts").sink("out", sink)
    return pipeline


def joined(sink: hf.sink.Sink) -> hf.Pipeline:
    pipeline = hf.Pipeline("joined")
    left, right = source(pipeline, "left"), source(pipeline, "right", shift=3)
    made = left.join(right.filter(pl.col("v") > 6), on="k", window=hf.window.tumbling("15s"), name="pairs")
    made.sink("out", sink)
    return pipeline


POLICIES = [
    OPEN_ONLY,
    hf.checkpoint.eventual(Q=40, U=300, CI="200ms", CP="200ms"),
    hf.checkpoint.eventual("1ms", CI="1s", CP="1s"),
]
BUILDS = [by_count, by_sliding_count, by_time, by_sliding_time, joined]
DIFFERENT = [POLICIES[2], POLICIES[1], POLICIES[0], POLICIES[1], POLICIES[2]]


EXECUTORS: list[ExecutorName] = ["crew", "jobs", "crew", "jobs", "crew"]
QUICKLY = [
    each
    for each in zip(BUILDS, DIFFERENT, EXECUTORS, strict=True)
    if each[0] not in (by_sliding_count, by_sliding_time)
]


@pytest.mark.parametrize(
    ("build", "policy", "executor"),
    [
        *QUICKLY,
        *long_cases(*(each for each in itertools.product(BUILDS, POLICIES, EXECUTORS[:2]) if each not in QUICKLY)),
    ],
    ids=lambda value: value.__name__ if callable(value) else str(value),
)
def test_what_is_lost_is_gathered_from_footprints(
    build: Build, policy: CheckpointPolicy, executor: ExecutorName, spark: SparkSession, tmp_path: Path
) -> None:
    expected = plain(build, spark, tmp_path)
    volatile = tmp_path / "volatile"
    options = RunOptions(store=tmp_path / "store", checkpoint=policy, volatile=volatile, retain=3, executor=executor)
    recoveries: list[RecoveryReport] = []
    for death in (5, 11):
        run = FragmentRun(
            build(hf.sink.parquet(tmp_path / "out")), SparkPlatform(spark), options,
            observer=watching(epoch_committed=dying_after(death), recovered=recoveries.append),
        )  # fmt: skip
        with pytest.raises(KilledError):
            run.run()
        lose(volatile)
    last = FragmentRun(
        build(hf.sink.parquet(tmp_path / "out")),
        SparkPlatform(spark),
        options,
        observer=watching(recovered=recoveries.append),
    )
    last.run()
    assert rows(tmp_path / "out") == expected
    assert len(recoveries) == 2
    for report in recoveries:
        [gathered] = report.gathered
        assert gathered.windows > 0
        assert gathered.oldest == report.epoch


# p-streams

SIZES = hf.checkpoint.eventual(Q=20, U=150, CI="200ms", CP="200ms")


def through_streams(sink: hf.sink.Sink) -> hf.Pipeline:
    """A p-stream before the operator, and one behind it that others read."""
    pipeline = hf.Pipeline("through")
    counts = source(pipeline).persist("events", push_up=False).key_by("k").window(hf.window.count(7))
    kept = counts.agg(n=hf.count(), total=hf.sum("v")).named("counts").persist("counted", push_up=False)
    kept.filter(pl.col("total") > 30).sink("out", sink)
    return pipeline


def test_footprints_beside_results_are_not_noticed_downstream(spark: SparkSession, tmp_path: Path) -> None:
    expected = plain(through_streams, spark, tmp_path)
    store, volatile = tmp_path / "store", tmp_path / "volatile"
    settings = {"spark": spark, "store": store, "checkpoint": SIZES, "volatile": volatile, "retain": 2}
    settings |= {"least_rows": 100, "most_rows": 100}
    told: list[RecoveryReport] = []

    def dying(report: EpochReport) -> None:
        if report.epoch == 6 and report.fragment == "through.counted":
            raise KilledError

    pipeline = through_streams(hf.sink.parquet(tmp_path / "out"))
    with pytest.raises(KilledError):
        hf.run(pipeline, observer=watching(epoch_committed=dying), **settings)
    lose(volatile)
    streams = output("streams", "--store", store, "--json")
    assert {"through.events", "through.counted"} <= {stream["stream"] for stream in json.loads(streams)}
    assert "through.counted" in output("streams", "--store", store)
    meta = MetaStore(store)
    try:
        entries = list(PStream(meta, store.resolve(), "through.counted").backwards())
        epochs = [entry.control["counts"].epoch for entry in entries if entry.control]
        assert epochs
        assert epochs == sorted(set(epochs), reverse=True)
    finally:
        meta.close()
    hf.run(pipeline, observer=watching(recovered=told.append), **settings)
    assert rows(tmp_path / "out") == expected
    assert {gathering.operator for report in told for gathering in report.gathered} == {"counts"}
    meta = MetaStore(store)
    try:
        for name in ("through.events", "through.counted"):
            assert PStream(meta, store.resolve(), name).retained()[0] <= 2, "a clean end needs nothing"
    finally:
        meta.close()


def output(*arguments: object) -> str:
    result = CliRunner().invoke(main, [str(argument) for argument in arguments])
    assert result.exit_code == 0, result.output
    return result.output


LONG = [frame for shift in range(2) for frame in (f.with_columns(pl.col("ts") + shift * 80) for f in FRAMES)]


def long_run(sink: hf.sink.Sink) -> hf.Pipeline:
    pipeline = hf.Pipeline("long")
    events = pipeline.source("in", hf.source.memory(LONG, epochs=True), event_time="ts", time_unit="s")
    windows = events.persist("events", push_up=False).key_by("k").window(hf.window.count(9))
    windows.agg(n=hf.count(), total=hf.sum("v")).named("counts").sink("out", sink)
    return pipeline


@pytest.mark.long  # the properties have it without Spark
def test_logs_and_upstream_stay_short_over_a_long_run(spark: SparkSession, tmp_path: Path) -> None:
    expected = plain(long_run, spark, tmp_path)
    store, volatile = tmp_path / "store", tmp_path / "volatile"
    log = "long.out.counts.footprints"
    lengths: list[tuple[int, int, int]] = []

    def look(report: EpochReport) -> None:
        if report.fragment != "long.out":
            return
        meta = MetaStore(store)
        try:
            extent = last_footing(meta, "long.out", "counts").extent
            files = sum(path.is_file() for path in (store / "streams" / log).rglob("*"))
            entries = PStream(meta, store.resolve(), log).retained()[0]
            lengths.append((entries, files, len(extent.marks)))
        finally:
            meta.close()
        if report.epoch == 28:
            raise KilledError

    settings = {"spark": spark, "store": store, "checkpoint": SIZES, "volatile": volatile, "retain": 2}
    pipeline = long_run(hf.sink.parquet(tmp_path / "out"))
    hf.run(pipeline, fragments=["events"], **settings)
    with pytest.raises(KilledError):
        hf.run(
            pipeline,
            fragments=["out"],
            least_rows=100,
            most_rows=100,
            observer=watching(epoch_committed=look),
            **settings,
        )
    assert max(entries for entries, _, _ in lengths) <= 12
    # Tasks of the next epoch may have written theirs already.
    assert all(entries <= marks + 1 and files <= 2 * (entries + 1) for entries, files, marks in lengths), lengths
    meta = MetaStore(store)
    try:
        assert PStream(meta, store.resolve(), "long.events").retained()[0] <= len(LONG) - 28 + 12
    finally:
        meta.close()
    lose(volatile)
    told: list[RecoveryReport] = []
    hf.run(
        pipeline, fragments=["out"], least_rows=100, most_rows=100, observer=watching(recovered=told.append), **settings
    )
    assert rows(tmp_path / "out") == expected
    assert told[0].gathered


def last_footing(meta: MetaStore, pipeline: str, operator: str) -> Footing:
    commit = meta.last_commit(pipeline)
    assert commit is not None
    return record_of(commit).footings[operator]


# one store, one life after the other


@pytest.mark.long  # the properties have it without Spark
def test_policies_change_between_runs_with_a_loss_after_each(spark: SparkSession, tmp_path: Path) -> None:
    expected = plain(by_time, spark, tmp_path)
    volatile = tmp_path / "volatile"
    deaths: list[tuple[CheckpointPolicy, int | None]] = [
        (DELTA, 3), (SIZES, 6), (IntervalPolicy(60.0), 9), (POLICIES[0], 12), (SIZES, None),
    ]  # fmt: skip
    for policy, death in deaths:
        options = RunOptions(store=tmp_path / "store", checkpoint=policy, volatile=volatile, retain=2)
        pipeline = by_time(hf.sink.parquet(tmp_path / "out"))
        if death is None:
            FragmentRun(pipeline, SparkPlatform(spark), options).run()
            continue
        with pytest.raises(KilledError):
            FragmentRun(
                pipeline, SparkPlatform(spark), options, observer=watching(epoch_committed=dying_after(death))
            ).run()
        lose(volatile)
    assert rows(tmp_path / "out") == expected


def test_footprints_follow_a_change_of_scale(spark: SparkSession, tmp_path: Path) -> None:
    """`scale` in the middle, and a recovery with other partitions; then a name changes as well."""
    expected = plain(by_sliding_count, spark, tmp_path)
    store, volatile = tmp_path / "store", tmp_path / "volatile"
    options = RunOptions(store=store, checkpoint=SIZES, volatile=volatile, partitions=2, recovery_partitions=3)

    def scaling(report: EpochReport) -> None:
        if report.epoch == 3:
            meta = MetaStore(store)
            Commands(meta).ask("by-sliding-count", ScaleCommand("counts", 4).encode(), 0.0)
            meta.close()
        dying_after(8)(report)

    pipeline = by_sliding_count(hf.sink.parquet(tmp_path / "out"))
    with pytest.raises(KilledError):
        FragmentRun(pipeline, SparkPlatform(spark), options, observer=watching(epoch_committed=scaling)).run()
    lose(volatile)
    told: list[RecoveryReport] = []
    with pytest.raises(KilledError):
        FragmentRun(
            pipeline,
            SparkPlatform(spark),
            options,
            observer=watching(epoch_committed=dying_after(11), recovered=told.append),
        ).run()
    lose(volatile)
    renamed = hf.Pipeline("by-sliding-count")
    windows = source(renamed).key_by("k").window(hf.window.count(12, 5), name="slid", was="counts")
    made = windows.agg(top=hf.max("v"), total=hf.sum("v"))
    made.sink("out", hf.sink.parquet(tmp_path / "out"))
    record = FragmentRun(renamed, SparkPlatform(spark), options, observer=watching(recovered=told.append)).run()
    assert rows(tmp_path / "out") == expected
    assert record.routing["slid"].partitions == 3
    assert [[gathering.operator for gathering in report.gathered] for report in told] == [["counts"], ["slid"]]


def added_up(state: pl.DataFrame) -> pl.DataFrame:
    """The state with one row for a key and pane. In a time window, each task that read may have left its own row."""
    if "pane" not in state.columns:
        return state.sort(state.columns[:2])
    identity = ["k", "pane", "from"]
    return state.group_by(identity).agg(pl.exclude(identity).sum()).sort(identity)


@pytest.mark.parametrize("build", [by_time, *long_cases(by_count)])
def test_state_is_read_exported_and_imported_as_under_delta(build: Build, spark: SparkSession, tmp_path: Path) -> None:
    """With a clean stop in the middle, after which nothing is replayed."""
    expected = plain(build, spark, tmp_path)
    states, heights = [], []
    for name, policy in (("delta", DELTA), ("eventual", SIZES)):
        pipeline = build(hf.sink.parquet(tmp_path / name))
        store = tmp_path / f"{name}-store"
        hf.run(pipeline, spark=spark, store=store, checkpoint=policy, volatile=tmp_path / "volatile", max_epochs=7)
        found = hf.state(store, pipeline.name, "counts")
        states.append(added_up(found))
        heights.append(found.height)
        told = json.loads(output("state", pipeline.name, "counts", "--store", store, "--json"))
        assert len(told) == found.height
    assert_frame_equal(*states)
    store, file = tmp_path / "eventual-store", tmp_path / "state.parquet"
    hf.export_state(store, pipeline.name, "counts", file)
    assert hf.import_state(store, pipeline.name, "counts", file) == heights[1]
    recoveries: list[RecoveryReport] = []
    options = RunOptions(store=store, checkpoint=SIZES, volatile=tmp_path / "volatile")
    with pytest.raises(KilledError):
        FragmentRun(
            pipeline,
            SparkPlatform(spark),
            options,
            observer=watching(epoch_committed=dying_after(11), recovered=recoveries.append),
        ).run()
    assert recoveries[0].replayed == 0
    lose(tmp_path / "volatile")
    FragmentRun(pipeline, SparkPlatform(spark), options, observer=watching(recovered=recoveries.append)).run()
    assert recoveries[1].gathered
    assert rows(tmp_path / "eventual") == expected


# what is refused


def test_what_structured_streaming_gives_cannot_be_replayed(spark: SparkSession, tmp_path: Path) -> None:
    pipeline = hf.Pipeline("rates")
    events = pipeline.from_spark("in", spark.readStream.format("rate").load().select("value"))
    events.window(hf.window.count(5), name="counts").agg(n=hf.count()).sink("out", hf.sink.collect())
    with pytest.raises(DeclarationError, match="sources that can be read again"):
        FragmentRun(pipeline, SparkPlatform(spark), RunOptions(store=tmp_path, checkpoint=SIZES))


# real deaths


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("query", ["cm1", "ysb"])
def test_a_host_that_is_lost_with_kill_9_loses_no_row(query: str, tmp_path: Path) -> None:
    faults = "2"
    told = subprocess.run(
        [str(Path(sys.executable).with_name("holdfast")), "chaos", query, "--faults", faults, "--kinds", "host",
         "--checkpoint", "eventual(Q=2000, U=20000)", "--json"],
        env={**os.environ, "TMPDIR": str(tmp_path)}, capture_output=True, text=True, timeout=280, check=False,
    )  # fmt: skip
    assert told.returncode == 0, told.stdout + told.stderr
    found = json.loads(told.stdout.splitlines()[-1])
    assert (found["faults"], found["lost"], found["duplicated"], found["equal"]) == (int(faults), 0, 0, True)
