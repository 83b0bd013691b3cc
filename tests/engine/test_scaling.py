"""The parallelism of an operator changes while its pipeline runs, and its output does not."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest
from click.testing import CliRunner
from pyspark.sql import SparkSession

import holdfast as hf
from holdfast.cli import main
from holdfast.engine.fragment_run import FragmentRun
from holdfast.engine.options import RunOptions
from holdfast.engine.spark_platform import SparkPlatform
from holdfast.epoch.report import EpochReport
from holdfast.errors import DeclarationError
from holdfast.meta import Commands, MetaStore
from holdfast.plan.program import compile_program
from holdfast.plan.scale_command import ScaleCommand
from holdfast.plan.scaled_routing import rerouted
from holdfast.pstream import PUnit
from holdfast.state.manifest import Interval, Manifest, Piece
from holdfast.state.partition import partition_processing_state
from holdfast.state.routing import Routing
from observers import watching

FRAMES = [
    pl.DataFrame({"ts": range(at, at + 500), "k": [i * 7 % 101 for i in range(500)], "v": range(500)})
    for at in range(0, 20_000, 500)
]


def build(sink: hf.sink.Sink) -> hf.Pipeline:
    pipeline = hf.Pipeline("scaled")
    rows = pipeline.source("in", hf.source.memory(FRAMES, epochs=True), event_time="ts", time_unit="s")
    counts = rows.key_by("k").window(hf.window.sliding("2000s", "500s"), name="counts").agg(n=hf.count(), v=hf.sum("v"))
    counts.sink("out", sink)
    return pipeline


def test_the_output_does_not_depend_on_scaling(spark: SparkSession, tmp_path: Path) -> None:
    plain = hf.sink.collect()
    hf.run(build(plain), spark=spark, store=tmp_path / "plain", partitions=1)
    sink = hf.sink.collect()
    run = FragmentRun(
        build(sink),
        SparkPlatform(spark),
        RunOptions(store=tmp_path / "scaled", partitions=1),
        observer=watching(epoch_committed=asking(tmp_path)),
    )
    record = run.run()
    assert record.routing["counts"].partitions == 3
    order = ["k", "window_end"]
    assert sink.frame().sort(order).equals(plain.frame().sort(order))


def asking(store: Path) -> Callable[[EpochReport], None]:
    """Asks for another parallelism in every fifth epoch, three partitions at last."""

    def on_epoch(report: EpochReport) -> None:
        if report.epoch % 5 == 0:
            meta = MetaStore(store / "scaled")
            partitions = {5: 4, 10: 2, 15: 1, 20: 5}.get(report.epoch, 3)
            Commands(meta).ask("scaled", ScaleCommand("counts", partitions).encode(), time.time())
            meta.close()

    return on_epoch


def test_scale_is_a_command_that_is_answered(spark: SparkSession, tmp_path: Path) -> None:
    pipeline = hf.Pipeline("endless")
    events = pipeline.source("in", endless(), event_time="ts", time_unit="s")
    events.key_by("k").window(hf.window.tumbling("100s"), name="counts").agg(n=hf.count()).sink(
        "out", hf.sink.collect()
    )
    run = FragmentRun(pipeline, SparkPlatform(spark), RunOptions(store=tmp_path, max_seconds=40, latency=0.2))
    thread = threading.Thread(target=run.run)
    thread.start()
    try:
        wait_until_known(tmp_path, "endless")
        told = CliRunner().invoke(main, ["scale", "endless", "counts", "3", "--store", str(tmp_path)])
        assert "counts of endless has 3 partitions from epoch" in told.output
        wrong = CliRunner().invoke(main, ["scale", "endless", "nothing", "3", "--store", str(tmp_path)])
        assert wrong.exit_code == 1
        assert "counts" in wrong.output
    finally:
        run.stop()
        thread.join(60)


def test_a_pipeline_without_input_obeys_too(spark: SparkSession, tmp_path: Path) -> None:
    pipeline = hf.Pipeline("idle")
    (tmp_path / "in").mkdir()
    files = hf.source.files(tmp_path / "in", format="ndjson", schema={"ts": pl.Int64, "k": pl.Int64}, grow=True)
    events = pipeline.source("events", files, event_time="ts", time_unit="s")
    events.key_by("k").window(hf.window.tumbling("100s"), name="counts").agg(n=hf.count()).sink(
        "out", hf.sink.collect()
    )
    run = FragmentRun(pipeline, SparkPlatform(spark), RunOptions(store=tmp_path / "store", max_seconds=60))
    thread = threading.Thread(target=run.run)
    thread.start()
    try:
        wait_until_known(tmp_path / "store", "idle")
        store = ["--store", str(tmp_path / "store")]
        told = CliRunner().invoke(main, ["scale", "idle", "counts", "1", *store])
        assert "counts of idle has 1 partition from epoch 1 on" in told.output
        told = CliRunner().invoke(main, ["scale", "idle", "events", "3", *store])
        assert "events of idle has 3 tasks from epoch" in told.output
        wrong = CliRunner().invoke(main, ["scale", "idle", "count", "3", *store])
        assert "it has: counts, events" in wrong.output
    finally:
        run.stop()
        thread.join(60)
    stopped = CliRunner().invoke(main, ["scale", "idle", "counts", "3", *store])
    assert "'idle' is not running" in stopped.output


def wait_until_known(store: Path, pipeline: str) -> None:
    deadline = time.monotonic() + 60
    meta = MetaStore(store)
    try:
        while pipeline not in meta.pipelines():
            assert time.monotonic() < deadline, "the pipeline does not start"
            time.sleep(0.1)
    finally:
        meta.close()


def endless() -> hf.source.Source:
    return hf.source.replay(pl.DataFrame({"ts": range(100), "k": [i % 9 for i in range(100)]}), "ts", rate=2_000)


def test_what_cannot_be_scaled_is_refused() -> None:
    pipeline = hf.Pipeline("p")
    rows = pipeline.source("in", hf.source.memory(FRAMES[0]), event_time="ts", time_unit="s")
    rows.window(hf.window.tumbling("10s"), name="all").agg(n=hf.count()).sink("out", hf.sink.collect())
    program = compile_program(pipeline)
    with pytest.raises(DeclarationError, match="without a key"):
        rerouted(program, {}, ScaleCommand("all", 2))
    with pytest.raises(DeclarationError, match="it has: all"):
        rerouted(program, {}, ScaleCommand("some", 2))
    with pytest.raises(DeclarationError, match="1 to 1024"):
        rerouted(program, {}, ScaleCommand("all", 0))


def test_pieces_are_shared_and_never_seen_twice() -> None:
    whole = Interval(0, 1 << 64)
    parts = [Manifest(whole, (Piece("t", PUnit("never opened", 10, 100, ""), whole, whole),))]
    split = partition_processing_state(parts, Routing.even(4))
    assert [piece.interval for part in split for piece in part.pieces] == [part.interval for part in split]
    merged = partition_processing_state(split, Routing.even(1))
    assert [piece.interval for piece in merged[0].pieces] == [part.interval for part in split]
    assert partition_processing_state(split, Routing.even(4)) == split
