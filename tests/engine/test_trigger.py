"""Triggers: an epoch begins at most every interval, and takes all that has come."""

from __future__ import annotations

from datetime import timedelta
from itertools import pairwise
from pathlib import Path

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import SparkSession

import holdfast as hf
from holdfast.engine.fragment_run import FragmentRun
from holdfast.engine.in_process_platform import InProcessPlatform
from holdfast.engine.loop import Loop
from holdfast.engine.options import RunOptions
from holdfast.engine.pacer import Trigger
from holdfast.epoch.report import EpochReport
from holdfast.errors import WrongTypeError
from holdfast.threads import SystemThreads
from observers import watching


@given(st.floats(0.1, 100), st.lists(st.floats(0, 50), max_size=50))
def test_between_two_epochs_there_is_the_interval(seconds: float, steps: list[float]) -> None:
    trigger, now, begun = Trigger(seconds, 1000), 5.0, []
    for step in steps:
        now += step
        if trigger.is_due(now):
            trigger.began(now)
            begun.append(now)
    assert all(after - before >= seconds * (1 - 1e-9) for before, after in pairwise(begun))
    assert trigger.rows(7) == 1000


def test_without_a_trigger_epochs_come_as_the_pacer_says() -> None:
    trigger = Trigger(None, 1000)
    trigger.began(5.0)
    assert trigger.is_due(5.0)
    assert trigger.rows(7) == 7


def test_a_trigger_is_a_duration_or_what_is_available_now() -> None:
    assert RunOptions(trigger="1 min").trigger_seconds == 60
    assert RunOptions(trigger=timedelta(seconds=2)).trigger_seconds == 2
    now = RunOptions(trigger="available now")
    assert now.until_idle
    assert now.trigger_seconds is None
    for wrong in ("soon", 0, "0s"):
        with pytest.raises(WrongTypeError):
            RunOptions(trigger=wrong)


class SetBack(SystemThreads):
    """The time of day is set back by an hour whenever somebody looks at it."""

    hours = 1_000

    def now(self) -> float:
        self.hours -= 1
        return 3_600.0 * self.hours


def test_a_clock_that_is_set_back_holds_up_neither_epochs_nor_checkpoints_nor_output(tmp_path: Path) -> None:
    pipeline = hf.Pipeline("often")
    rows = pipeline.source("rows", hf.source.memory(pl.DataFrame({"ts": range(40)})), event_time="ts", time_unit="s")
    counts = rows.key_by("ts").window(hf.window.tumbling("2s")).agg(n=hf.count())
    counts.sink("out", hf.sink.ndjson(tmp_path / "out", every="1ms"))
    seen: list[tuple[int, int]] = []
    copied: list[int] = []

    def look(loop: Loop) -> None:
        seen.append((loop.machine.committed, len(list((tmp_path / "out").glob("epoch=*")))))
        assert len(seen) < 10_000, "it does not go on"

    options = RunOptions(
        store=tmp_path / "store", volatile=tmp_path / "memory", trigger="10ms", most_rows=10, partitions=1, tasks=1,
        checkpoint=hf.checkpoint.interval("1ms"), durable=False, poll=0.001, overlap=False,
    )  # fmt: skip
    observer = watching(checkpoint_copied=lambda report: copied.append(report.epoch))
    FragmentRun(
        pipeline, InProcessPlatform(before_step=look), options, observer=observer, threads=SetBack()
    ).run()  # fmt: skip
    assert seen[-1][0] >= 4
    assert any(0 < files < epochs + 1 and epochs >= 2 for epochs, files in seen), "output is seen while it runs"
    assert len(copied) > 1, "state is copied while it runs"


@pytest.mark.spark
def test_a_run_with_a_trigger_takes_all_that_has_come(spark: SparkSession, tmp_path: Path) -> None:
    def numbers(start: int, stop: int) -> pl.DataFrame:
        return pl.DataFrame({"n": pl.int_range(start, stop, dtype=pl.Int64, eager=True)})

    reports: list[EpochReport] = []
    sink = hf.sink.collect()
    pipeline = hf.Pipeline("often")
    pipeline.source("numbers", hf.source.generator(numbers, {"n": pl.Int64}, rate=200_000)).sink("out", sink)
    hf.run(
        pipeline, spark=spark, store=tmp_path, trigger="600ms", least_rows=100, latency=0.01, max_epochs=3,
        observer=watching(epoch_committed=reports.append),
    )  # fmt: skip
    assert len(reports) == 3
    assert all(report.rows >= 100_000 for report in reports[1:])  # of half a second, and not as the pacer says
    assert sink.frame().height == sum(report.rows for report in reports)
