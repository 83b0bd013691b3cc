"""Checkpoint policies: whatever is lost with the volatile tier, the output stays what it would have been."""

from __future__ import annotations

import contextlib
from pathlib import Path

import polars as pl
import pytest
from losing import Build, KilledError, dying_after, lose, plain, rows
from pyspark.sql import SparkSession

import holdfast as hf
from holdfast.durability.checkpoints import CheckpointReport
from holdfast.engine.fragment_run import FragmentRun
from holdfast.engine.options import RunOptions
from holdfast.engine.recovery import RecoveryReport
from holdfast.engine.spark_platform import SparkPlatform
from holdfast.epoch.record import EpochRecord
from holdfast.epoch.record_change import record_of
from holdfast.epoch.report import EpochReport
from holdfast.graph.policies import DELTA, NONE, CheckpointPolicy, IntervalPolicy
from holdfast.meta import MetaStore
from holdfast.plan.executor_choice import ExecutorName
from holdfast.store import DirectoryStore
from observers import watching

pytestmark = pytest.mark.spark

FRAMES = [
    pl.DataFrame({"ts": [epoch * 5 + i // 20 for i in range(100)], "k": [(epoch * 7 + i * i) % 31 for i in range(100)]})
    for epoch in range(16)
]


def counting(sink: hf.sink.Sink) -> hf.Pipeline:
    """Windows of 20 s, so of four epochs, sliding."""
    pipeline = hf.Pipeline("counted")
    events = pipeline.source("in", hf.source.memory(FRAMES, epochs=True), event_time="ts", time_unit="s")
    windows = events.key_by("k").window(hf.window.sliding("20s", "5s"))
    windows.agg(n=hf.count()).named("counts").sink("out", sink)
    return pipeline


def totals(rows: pl.DataFrame, state: pl.DataFrame, context: hf.ProcessContext) -> hf.Step:
    added = rows.group_by("k").agg(n=pl.len().cast(pl.Int64))
    now = pl.concat([state, added]).group_by("k").agg(pl.col("n").sum())
    return hf.Step(upserts=now, output=now.select("k", "n"))


def totalling(sink: hf.sink.Sink) -> hf.Pipeline:
    pipeline = hf.Pipeline("totalled")
    events = pipeline.source("in", hf.source.memory(FRAMES, epochs=True), event_time="ts", time_unit="s")
    process = events.key_by("k").process(
        totals, state={"n": pl.Int64}, output={"k": pl.Int64, "n": pl.Int64}, keep_forever=True, name="totals"
    )
    process.sink("out", sink)
    return pipeline


@pytest.mark.parametrize(
    ("build", "policy", "host_lost", "executor"),
    [
        pytest.param(counting, IntervalPolicy(0.5), True, "crew", id="windows at intervals, host lost"),
        pytest.param(totalling, IntervalPolicy(0.5), False, "crew", id="process at intervals, process lost"),
        pytest.param(counting, NONE, True, "crew", id="windows without checkpoints, host lost", marks=pytest.mark.long),
        pytest.param(totalling, NONE, True, "crew", id="process without checkpoints, host lost"),
        pytest.param(counting, IntervalPolicy(0.5), True, "jobs", id="windows at intervals in jobs, host lost"),
        pytest.param(
            totalling, NONE, True, "jobs", id="process without checkpoints in jobs, host lost", marks=pytest.mark.long
        ),
    ],
)
def test_the_output_does_not_depend_on_what_is_lost(
    build: Build, policy: CheckpointPolicy, host_lost: bool, executor: ExecutorName, spark: SparkSession, tmp_path: Path
) -> None:
    expected = plain(build, spark, tmp_path)
    volatile = tmp_path / "volatile"
    options = RunOptions(store=tmp_path / "store", checkpoint=policy, volatile=volatile, retain=3, executor=executor)
    recoveries: list[RecoveryReport] = []
    for death in (5, 12):
        run = FragmentRun(
            build(hf.sink.parquet(tmp_path / "out")), SparkPlatform(spark), options,
            observer=watching(epoch_committed=dying_after(death), recovered=recoveries.append),
        )  # fmt: skip
        with pytest.raises(KilledError):
            run.run()
        if host_lost:
            lose(volatile)
    last = FragmentRun(
        build(hf.sink.parquet(tmp_path / "out")),
        SparkPlatform(spark),
        options,
        observer=watching(recovered=recoveries.append),
    )
    last.run()
    assert rows(tmp_path / "out") == expected
    replayed = [report.replayed for report in recoveries]
    if not host_lost:
        assert max(replayed) <= 2, "only what was in flight"
    elif policy is NONE and build is totalling:
        assert all(count >= death for count, death in zip(replayed, (5, 12), strict=True)), "everything"
    elif policy is NONE:
        assert max(replayed) <= 8, "only what open windows were made of"
    assert not list(volatile.rglob("*")), "a clean end leaves all state on the stable tier"
    assert last_record(tmp_path / "store", last.program.name).base is None


def test_what_is_retained_after_a_clean_end_can_be_read(spark: SparkSession, tmp_path: Path) -> None:
    """The last epoch closes all windows, so it has no state to copy; those before it were in memory only."""
    volatile, store = tmp_path / "volatile", tmp_path / "store"
    options = RunOptions(store=store, checkpoint=IntervalPolicy(600), volatile=volatile, retain=3)
    FragmentRun(counting(hf.sink.parquet(tmp_path / "out")), SparkPlatform(spark), options).run()
    meta = MetaStore(store)
    try:
        retained = [commit.epoch for commit in meta.commits("counted")]
    finally:
        meta.close()
    assert retained
    for epoch in retained:
        hf.state(store, "counted", "counts", epoch=epoch)


def last_record(store: Path, pipeline: str) -> EpochRecord:
    meta = MetaStore(store)
    try:
        commit = meta.last_commit(pipeline)
    finally:
        meta.close()
    assert commit is not None
    return record_of(commit)


def test_lost_state_is_replayed_in_parallel(spark: SparkSession, tmp_path: Path) -> None:
    expected = plain(totalling, spark, tmp_path)
    volatile = tmp_path / "volatile"
    options = RunOptions(store=tmp_path / "store", checkpoint=NONE, volatile=volatile, partitions=1)
    pipeline = totalling(hf.sink.parquet(tmp_path / "out"))
    with pytest.raises(KilledError):
        FragmentRun(pipeline, SparkPlatform(spark), options, observer=watching(epoch_committed=dying_after(7))).run()
    lose(volatile)
    options = RunOptions(
        store=tmp_path / "store", checkpoint=NONE, volatile=volatile, partitions=1, recovery_partitions=3
    )
    record = FragmentRun(pipeline, SparkPlatform(spark), options).run()
    assert record.routing["totals"].partitions == 3
    assert rows(tmp_path / "out") == expected


@pytest.mark.parametrize("spoilt", [False, True])
def test_state_that_is_lost_or_spoilt_comes_from_a_backup(spark: SparkSession, tmp_path: Path, spoilt: bool) -> None:
    expected = plain(totalling, spark, tmp_path)
    backups = (tmp_path / "one", tmp_path / "two")
    options = RunOptions(store=tmp_path / "store", checkpoint=DELTA, backups=backups)
    copies: list[CheckpointReport] = []
    pipeline = totalling(hf.sink.parquet(tmp_path / "out"))
    first = RunOptions(store=tmp_path / "store", checkpoint=DELTA, backups=backups, max_epochs=6)
    run = FragmentRun(pipeline, SparkPlatform(spark), first, observer=watching(checkpoint_copied=copies.append))
    record = run.run()
    assert copies
    assert {copy.bytes for copy in copies} == {0}
    stable = DirectoryStore(tmp_path / "store" / "totalled" / "state")
    names = sorted(record.files())
    held = [name for name in names if any(list(place.glob(f"*/totalled/{name}")) for place in backups)]
    assert held == names, "a clean end has backed up everything"
    for file in {stable.existing(name) for name in names}:
        size = file.stat().st_size
        file.unlink()
        if spoilt:
            file.write_bytes(bytes(size))
    FragmentRun(pipeline, SparkPlatform(spark), options).run()
    assert rows(tmp_path / "out") == expected


def test_the_volatile_tier_spills_what_is_beyond_its_budget(spark: SparkSession, tmp_path: Path) -> None:
    expected = plain(totalling, spark, tmp_path)
    volatile, spilled = tmp_path / "volatile", tmp_path / "store" / "totalled" / "spilled"
    seen: list[tuple[int, int]] = []

    def look(_: EpochReport) -> None:
        seen.append((size(volatile), size(spilled)))

    options = RunOptions(store=tmp_path / "store", checkpoint=NONE, volatile=volatile, memory="8 kB")
    FragmentRun(
        totalling(hf.sink.parquet(tmp_path / "out")),
        SparkPlatform(spark),
        options,
        observer=watching(epoch_committed=look),
    ).run()
    assert rows(tmp_path / "out") == expected
    assert max(disk for _, disk in seen) > 0
    assert sum(memory <= 16_000 for memory, _ in seen) >= len(seen) / 2, "beyond it is what the last epochs wrote"


def size(place: Path) -> int:
    found = 0
    for path in place.rglob("*.arrow"):
        with contextlib.suppress(FileNotFoundError):  # what was spilled, or is not needed any more, goes meanwhile
            found += path.stat().st_size
    return found


def test_a_replay_that_is_killed_is_begun_again(spark: SparkSession, tmp_path: Path) -> None:
    """More epochs are replayed than are retained, and the base must stay until the last of them."""
    expected = plain(totalling, spark, tmp_path)
    volatile = tmp_path / "volatile"
    pipeline = totalling(hf.sink.parquet(tmp_path / "out"))
    first = RunOptions(store=tmp_path / "store", checkpoint=DELTA, volatile=volatile, retain=1, max_epochs=3)
    FragmentRun(pipeline, SparkPlatform(spark), first).run()
    options = RunOptions(store=tmp_path / "store", checkpoint=NONE, volatile=volatile, retain=1)
    with pytest.raises(KilledError):
        FragmentRun(pipeline, SparkPlatform(spark), options, observer=watching(epoch_committed=dying_after(12))).run()
    lose(volatile)
    replaying = FragmentRun(
        pipeline, SparkPlatform(spark), RunOptions(store=tmp_path / "store", checkpoint=DELTA, retain=1)
    )
    real, count = replaying._meta.rewrite_commit, 0

    def dying(*arguments: object, **named: object) -> None:
        nonlocal count
        count += 1
        if count == 6:
            raise KilledError
        real(*arguments, **named)  # type: ignore[arg-type]

    replaying._meta.rewrite_commit = dying  # type: ignore[method-assign]
    with pytest.raises(KilledError):
        replaying.run()
    FragmentRun(pipeline, SparkPlatform(spark), RunOptions(store=tmp_path / "store", checkpoint=DELTA, retain=1)).run()
    assert rows(tmp_path / "out") == expected
