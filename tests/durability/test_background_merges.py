"""Merging beside the epochs: the output stays what it is, and nothing is left behind, whatever becomes of a merge."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import polars as pl
import psutil
import pytest
from pyspark.sql import SparkSession

import holdfast as hf
from harness import Cut, run
from holdfast.engine import background_merges
from holdfast.engine.fragment_run import FragmentRun
from holdfast.engine.merge_worker import MergeProcess
from holdfast.engine.options import RunOptions
from holdfast.engine.spark_platform import SparkPlatform
from holdfast.epoch.record_change import record_of
from holdfast.epoch.report import EpochReport
from holdfast.meta import MetaStore
from holdfast.state.levels import next_merge
from holdfast.state.routing import Routing
from holdfast.store import DirectoryStore, segment_of
from observers import watching

EPOCHS = 60
FRAMES = [
    pl.DataFrame({"ts": range(at, at + 200), "k": [i * 7 % 101 for i in range(200)], "v": range(200)})
    for at in range(0, EPOCHS * 200, 200)
]


def counted(rows: pl.DataFrame, state: pl.DataFrame, context: hf.ProcessContext) -> hf.Step:
    added = rows.group_by("k").agg(pl.len().cast(pl.Int64).alias("more"))
    after = added.join(state, on="k", how="left").select("k", n=pl.col("n").fill_null(0) + pl.col("more"))
    return hf.Step(output=after, upserts=after)


def build(sink: hf.sink.Sink) -> hf.Pipeline:
    pipeline = hf.Pipeline("merged")
    rows = pipeline.source("in", hf.source.memory(FRAMES, epochs=True), event_time="ts", time_unit="s")
    columns = {"k": pl.Int64, "n": pl.Int64}
    counts = rows.key_by("k").process(counted, state={"n": pl.Int64}, output=columns, keep_forever=True, name="counts")
    counts.sink("out", sink)
    return pipeline


@pytest.fixture
def eager(monkeypatch: pytest.MonkeyPatch) -> None:
    """Merge beside the epochs whatever can be."""
    monkeypatch.setattr(background_merges, "next_merge", partial(next_merge, most=2, small=1, target=2_000))


RETAINED = 3


def run_with(
    spark: SparkSession, store: Path, on_epoch: Callable[[FragmentRun, EpochReport], None]
) -> tuple[FragmentRun, pl.DataFrame]:
    sink = hf.sink.collect()
    made: list[FragmentRun] = []
    options = RunOptions(store=store, partitions=2, retain=RETAINED)
    made.append(
        FragmentRun(
            build(sink),
            SparkPlatform(spark),
            options,
            observer=watching(epoch_committed=lambda report: on_epoch(made[0], report)),
        )
    )
    made[0].run()
    return made[0], sink.frame().sort("k", "n")


def wait(running: FragmentRun, report: EpochReport) -> None:
    """Give a merge the time to end, now and then."""
    until = time.monotonic() + 20
    while report.epoch % 2 == 0 and running.merges.busy and time.monotonic() < until:
        assert isinstance(running.merges.worker, MergeProcess)
        if running.merges.worker.answered:
            break
        time.sleep(0.01)


def expected() -> pl.DataFrame:
    outcome = run(build(hf.sink.collect()), Cut(rows=200))
    return outcome.sinks["out"].sort("k", "n")


def files_named(store: Path) -> set[str]:
    meta = MetaStore(store)
    try:
        records = [record_of(commit) for commit in meta.commits("merged")[:RETAINED]]  # it knows more of them
    finally:
        meta.close()
    return {segment_of(name) or name for record in records for name in record.files()}


@pytest.mark.spark
@pytest.mark.usefixtures("eager")
def test_merges_beside_the_epochs_change_no_output_and_leave_nothing(spark: SparkSession, tmp_path: Path) -> None:
    running, rows = run_with(spark, tmp_path, wait)
    assert rows.equals(expected())
    assert running.merges.merged >= 2
    assert set(DirectoryStore(tmp_path / "merged" / "state").names()) == files_named(tmp_path)
    assert not [child for child in psutil.Process().children() if "holdfast.task.merge_process" in child.cmdline()]


@pytest.mark.spark
@pytest.mark.usefixtures("eager")
def test_epochs_go_on_when_the_merging_process_dies(spark: SparkSession, tmp_path: Path) -> None:
    killed: list[int] = []

    def kill(running: FragmentRun, report: EpochReport) -> None:
        worker = running.merges.worker
        assert isinstance(worker, MergeProcess)
        if worker.pid is not None and worker.pid not in killed:
            killed.append(worker.pid)
            os.kill(worker.pid, signal.SIGKILL)
            time.sleep(0.05)

    running, rows = run_with(spark, tmp_path, kill)
    assert rows.equals(expected())
    assert running.merges.merged == 0
    assert 1 <= len(killed) <= 3
    assert set(DirectoryStore(tmp_path / "merged" / "state").names()) == files_named(tmp_path)


def test_a_record_without_the_merged_pieces_stays_as_it_is() -> None:
    outcome = run(build(hf.sink.collect()), Cut(rows=200, partitions=2))
    before, after = outcome.records[10], outcome.records[-1]
    found = next_merge(before.state, most=2, small=1)
    assert found is not None
    target, merge = found
    assert before.spliced(target, merge.pieces, ()) is not None
    assert after.spliced(target, merge.pieces, ()) is None, "an epoch has merged them itself"
    scaled = before.routed({"counts": Routing.even(3)})
    assert scaled.spliced(target, merge.pieces, ()) is None, "they are seen through other intervals"
    assert before.routed({"counts": Routing.even(1)}).spliced(target, merge.pieces, ()) is None


def test_merges_are_part_of_what_the_other_tests_cut() -> None:
    """The option of the harness does merge: or all that relies on it would show nothing."""
    outcome = run(build(hf.sink.collect()), Cut(rows=200, partitions=2, merges=(1, 3)))
    names = set().union(*(record.files() for record in outcome.records))
    assert sum("merged-" in name for name in names) > 10
    assert outcome.sinks["out"].sort("k", "n").equals(expected())
