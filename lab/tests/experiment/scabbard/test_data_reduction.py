"""The `data-reduction` experiment: its input, its configurations, and one run of each kind through a p-stream."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from holdfast.epoch.report import EpochReport
from holdfast.pstream.description import Place, Placement
from holdfast_lab.bench.dense_input import dense
from holdfast_lab.experiment.scabbard.data_reduction import CONFIGURATIONS, MeasuringPlan, ReductionFigures, measure
from holdfast_lab.experiment.scabbard.varied_input import varied
from holdfast_lab.workloads.datasets import dataset
from holdfast_lab.workloads.queries import query

CONFIGURATION = {config.name: config for config in CONFIGURATIONS}


def report(fragment: str, committed: float, **facts: Any) -> EpochReport:
    given = dict.fromkeys(
        ("rows", "entered", "output_rows", "late_rows", "bad_rows", "state_rows", "state_bytes", "written_bytes",
         "streamed_rows", "streamed_bytes"), 0,
    )  # fmt: skip
    times: dict[str, Any] = {"started": committed - 1, "committed": committed, "seconds": 1.0}
    none: dict[str, Any] = {"epoch": 1, "greatest": {}, "watermark": None, "lag": None}
    return EpochReport(fragment=fragment, **{**given, **times, **none, **facts})


@pytest.mark.parametrize("name", ["cm", "sm", "ysb"])
def test_varied_input_has_the_times_of_dense_input(name: str) -> None:
    data = dataset(name)
    rows = 200_000
    one, other = varied(data, 3, rows), dense(data, rows)
    assert one.period == other.period
    assert one.frame.schema == other.frame.schema
    assert one.frame[data.event_time].equals(other.frame[data.event_time])


def test_rounds_of_varied_input_are_not_alike_but_hold_the_same_values() -> None:
    data = dataset("cm")
    sample = data.load()
    frame = varied(data, 3, 5 * sample.height).frame
    assert frame["job_id"].value_counts().sort("job_id")["count"].to_list() == [
        5 * count for count in sample["job_id"].value_counts().sort("job_id")["count"]
    ]
    same = dense(data, 5 * sample.height).frame
    assert (frame["job_id"] == same["job_id"]).mean() < 0.9  # type: ignore[operator]


def test_columns_that_grow_keep_growing() -> None:
    assert varied(dataset("sm"), 3, 20_000).frame["message"].is_sorted()


def test_lossy_rounds_float_columns_only() -> None:
    assert CONFIGURATION["both-lossy"].persist(query("CM1"))["lossy"] == {"cpu": 0.005, "ram": 0.005, "disk": 0.005}
    assert CONFIGURATION["both-lossless"].persist(query("CM1"))["lossy"] is None


def test_tuples_count_when_the_reader_has_committed_them() -> None:
    reports = [
        report("q.w", 1.0, entered=100, streamed_bytes=10, written_bytes=10),  # the warm-up
        report("q.w", 2.0, entered=100, streamed_bytes=10, written_bytes=10, cpu={"0-0": 1.0}),
        report("q.w", 3.0, entered=100, streamed_bytes=10, written_bytes=10, cpu={"0-0": 1.0}),
        report("q.r", 6.0, written_bytes=5, cpu={"0-0": 0.5}),
    ]
    found = ReductionFigures.of(reports, 1.0, "q.w", Placement(Place("events", ()), "so"))
    assert (found.tuples, found.seconds, found.stream_bytes, found.all_bytes) == (200, 5.0, 20, 25)
    assert (found.writer_cpu, found.reader_cpu) == (2.0, 0.5)


@pytest.mark.spark
def test_both_reductions_write_far_less_than_none(spark: SparkSession, tmp_path: Path) -> None:
    asked = query("SG1")
    source = varied(asked.dataset, 1, 100_000).source(tmp_path / "input")
    pace = MeasuringPlan(0.1, latency=0.1, warm_epochs=1, least_rows=50_000)
    none, both = (
        measure(spark, asked, source, CONFIGURATION[name], tmp_path / name, pace)
        for name in ("no-opt", "both-lossless")
    )
    assert none.tuples > 0
    assert none.stream_bytes / none.tuples == pytest.approx(28, rel=0.05)
    assert none.placement.place.window is None
    assert both.placement.place.window == "global"
    assert both.stream_bytes / both.tuples < 28 / 7
    assert [path.name for path in tmp_path.iterdir()] == ["input"]
