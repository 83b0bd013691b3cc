"""Scaling on Spark: what is measured, a hot key that gets a partition of its own, tasks that read, the command line."""

from __future__ import annotations

import time
from pathlib import Path

import polars as pl
import pytest
from click.testing import CliRunner
from polars.testing import assert_frame_equal
from pyspark.sql import SparkSession

import holdfast as hf
from holdfast.cli import main
from holdfast.engine.scaling_rules import ScalingDecision
from holdfast.epoch.record_change import record_of
from holdfast.epoch.report import EpochReport
from holdfast.meta import Commands, MetaStore
from holdfast.plan.scale_command import ScaleCommand
from holdfast.state.position import key_positions
from observers import watching

pytestmark = pytest.mark.spark

ROWS, EPOCHS = 3_000, 30
FRAMES = [
    pl.DataFrame(
        {
            "ts": range(at, at + ROWS),
            "k": [7 if i % 10 < 7 else 1_000 + i % 331 for i in range(ROWS)],
            "v": [i % 13 for i in range(ROWS)],
        }
    )
    for at in range(0, EPOCHS * ROWS, ROWS)
]
EAGER = hf.Scaling(report=0.3, threshold=0.02, cooldown=1.0, calm=1_000, most=4, sources=False)
"""Epochs this small use little CPU; whatever they use is too much."""


def remember(rows: pl.DataFrame, state: pl.DataFrame, context: hf.ProcessContext) -> hf.Step:
    seen = pl.concat([state, rows.select("k", total="v")]).group_by("k").agg(pl.col("total").sum())
    return hf.Step(output=seen.head(0), upserts=seen)


def skewed(name: str) -> hf.Pipeline:
    pipeline = hf.Pipeline(name)
    rows = pipeline.source("in", hf.source.memory(FRAMES, epochs=True), event_time="ts", time_unit="s")
    output = {"k": pl.Int64, "total": pl.Int64}
    totals = rows.key_by("k").process(
        remember, state={"total": pl.Int64}, output=output, keep_forever=True, name="totals"
    )
    totals.sink("out", hf.sink.collect())
    return pipeline


def test_a_hot_key_is_isolated_and_named(spark: SparkSession, tmp_path: Path) -> None:
    told: list[ScalingDecision] = []
    reports: list[EpochReport] = []
    hf.run(
        skewed("hot"), spark=spark, store=tmp_path, partitions=1, scaling=EAGER, trigger="80ms",
        observer=watching(epoch_committed=reports.append, scaling_decided=told.append),
    )  # fmt: skip
    place = int(key_positions([pl.Series([7])])[0])
    meta = MetaStore(tmp_path)
    commit = meta.last_commit("hot")
    meta.close()
    assert commit is not None
    assert {place, place + 1} <= set(record_of(commit).routing["totals"].bounds)
    done = [decision for decision in told if decision.epoch is not None]
    assert sum("key k=7 (70% of the rows)" in decision.reason for decision in done) == 1
    assert all(decision.operator == "totals" for decision in told)
    _check_measured(reports)
    everything = pl.concat(FRAMES)
    assert_frame_equal(
        hf.state(tmp_path, "hot", "totals"),
        everything.group_by("k").agg(total=pl.col("v").sum()),
        check_row_order=False,
    )


def _check_measured(reports: list[EpochReport]) -> None:
    for report in reports:
        parts = report.work["totals"]
        assert sum(part.rows for part in parts) == report.rows == sum(part.rows for part in report.reading)
        assert all(part.cpu >= 0 for part in parts)
        assert sum(part.cpu for part in parts) > 0
    alone = [
        part for part in reports[-1].work["totals"] if part.load and part.load.interval.hi - part.load.interval.lo == 1
    ]
    assert [part.rows for part in alone] == [ROWS * 7 // 10]


def test_tasks_that_read_are_scaled_by_their_source(spark: SparkSession, tmp_path: Path) -> None:
    reports: list[EpochReport] = []

    def on_epoch(report: EpochReport) -> None:
        reports.append(report)
        if report.epoch == 3:
            meta = MetaStore(tmp_path)
            Commands(meta).ask("read", ScaleCommand("in", 3).encode(), time.time())
            meta.close()

    hf.run(
        skewed("read"), spark=spark, store=tmp_path, tasks=1, observer=watching(epoch_committed=on_epoch), max_epochs=12
    )
    assert len(reports[0].reading) == 1
    assert len(reports[-1].reading) == 3
    assert {report.rows for report in reports} == {ROWS}


def test_scaling_is_switched_on_from_the_command_line(tmp_path: Path) -> None:
    wrong = CliRunner().invoke(main, ["run", "app.py", "--scale-most", "3", "--store", str(tmp_path)])
    assert wrong.exit_code == 2
    assert "needs --scale" in wrong.output
