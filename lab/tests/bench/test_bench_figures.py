"""From epochs to the figures of a benchmark: what counts, and what a latency is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from holdfast.epoch.report import EpochReport
from holdfast_lab.bench.bench_figures import Meter, figures, latencies
from holdfast_lab.bench.dense_input import DENSE_ROWS, dense, dense_table
from holdfast_lab.bench.query_runs import spark_figures
from holdfast_lab.workloads import dataset, query
from holdfast_lab.workloads.spark_run import SparkRun, block_rows, bytes_below, spark_batches


def report(epoch: int, rows: int, started: float, committed: float, time: int = 0) -> EpochReport:
    return EpochReport(
        fragment="q", epoch=epoch, rows=rows, entered=rows, started=started, committed=committed,
        seconds=committed - started, output_rows=1,
        late_rows=0, bad_rows=0, state_rows=0, state_bytes=0, written_bytes=10, streamed_rows=0,
        streamed_bytes=0, greatest={"s": time}, watermark=time,
        lag=None,
    )  # fmt: skip


def test_growing_epochs_are_warm_up() -> None:
    stopped: list[bool] = []
    meter = Meter(2.0, stop=lambda: stopped.append(True), warm_epochs=3)
    for epoch, rows in enumerate([10, 40, 160, 640, 650, 640, 600, 610, 600], start=1):
        meter.epoch_committed(report(epoch, rows, epoch - 1.0, float(epoch)))
    assert meter.warm == 6
    assert [report.epoch for report in meter.measured()] == [7, 8, 9]
    assert stopped  # two seconds after the warm-up
    made = figures(meter, "q", 100, None)
    assert made.tuples == 1_810
    assert made.seconds == 3.0
    assert made.raw_bytes == 181_000
    assert made.persisted_bytes == 30


def test_warm_up_ends_when_patience_does() -> None:
    meter = Meter(1.0, patience=5.0)
    for epoch in range(1, 8):
        meter.epoch_committed(report(epoch, 2**epoch, epoch - 1.0, float(epoch)))
    assert meter.warm == 5


def test_latency_runs_from_an_epoch_to_the_commit_of_its_first_window() -> None:
    # Windows end every 10 ticks; epochs end at 4, 9, 12, 25.
    reports = [report(i + 1, 1, float(i), i + 0.5, time) for i, time in enumerate([4, 9, 12, 25])]
    # 4 and 9 are in the window that ends at 10, reached by the third epoch; 12 in that of 20, by the fourth;
    # the window of 25 has not closed.
    assert latencies(reports, 10) == [2.5, 1.5, 1.5]
    assert latencies(reports, None) == [0.5] * 4


def test_dense_input_keeps_times_and_repeats_rows() -> None:
    data = dataset("cm")
    events = data.load()
    made = dense(data, 10 * events.height)
    assert made.frame.height == 10 * events.height
    assert made.period == data.period(events)
    assert made.frame[data.event_time].is_sorted()
    assert made.frame[data.event_time].n_unique() == events[data.event_time].n_unique()


@pytest.mark.parametrize("name", ["cm", "sg", "lrb", "sm", "ysb", "nq"])
def test_both_engines_get_as_many_tuples_per_second_of_event_time(name: str) -> None:
    data = dataset(name)
    events = data.load()
    here = DENSE_ROWS // events.height * events.height / data.period(events)
    table = dense_table(data, 400_000)
    assert table.input.frame.height <= 400_000
    there = table.input.frame.height * table.repeat / table.input.period
    assert there == pytest.approx(here, rel=0.01)


@pytest.mark.parametrize("repeat", [1, 7, 10, 2_000])
def test_a_block_has_whole_rows(repeat: int) -> None:
    assert block_rows(repeat) % repeat == 0
    assert block_rows(repeat) > 0


def progress(batch: int, *, greatest: int, watermark: int) -> dict[str, Any]:
    """A report as Structured Streaming gives it, of batches that start every two seconds and take 1.5."""

    def moment(seconds: int) -> str:
        return f"1970-01-01T00:{seconds // 60:02}:{seconds % 60:02}.000Z"

    return {
        "timestamp": moment(2 * batch),
        "durationMs": {"triggerExecution": 1_500, "addBatch": 1_200},
        "eventTime": {"max": moment(greatest), "min": moment(0), "watermark": moment(watermark)},
        "sources": [{"startOffset": f'{{"offset": {5 * batch}}}', "endOffset": f'{{"offset": {5 * batch + 5}}}'}],
        "sink": {"numOutputRows": 3},
    }


def spark_run(*times: int) -> SparkRun:
    """A run whose batches reach these seconds of event time, behind two batches of warm-up at 0."""
    reached = [0, 0, *times]
    reports = [
        progress(number, greatest=time, watermark=reached[max(0, number - 1)]) for number, time in enumerate(reached)
    ]
    return SparkRun("YSB", tuples=1_000, tuple_bytes=128, persisted_bytes=77, batches=spark_batches(reports))


def test_the_figures_of_spark_mean_what_those_of_holdfast_do() -> None:
    run = spark_run(4, 9, 12, 25, 26)
    assert [batch.blocks for batch in run.batches] == [5] * 5
    made = spark_figures(query("YSB"), run, 123.4, None)
    # Windows end every 10 s. Spark closes them a batch after the one that passed their end: what ends at 10 and was
    # passed by the third batch is put out by the fourth, what ends at 20 by the fifth.
    assert made.latency_seconds == (7.5, 5.5, 5.5)
    assert made.seconds == 7.5
    assert made.epoch_seconds == (1.5,) * 5
    assert made.output_rows == 15
    said = made.to_json()
    assert said["persisted_bytes"] == 77
    assert said["rows_per_event_second"] == 123
    assert "latency_missing" not in said


def test_a_latency_that_could_not_be_measured_is_null_with_a_reason() -> None:
    said = spark_figures(query("YSB"), spark_run(4, 5), 1.0, None).to_json()
    assert said["latency_ms"] == {"p50": None, "p95": None}
    assert "no window closed" in said["latency_missing"]


def test_the_size_of_a_checkpoint_is_that_of_all_its_files(tmp_path: Path) -> None:
    (tmp_path / "state" / "0").mkdir(parents=True)
    (tmp_path / "state" / "0" / "1.changelog").write_bytes(b"x" * 10)
    (tmp_path / "offsets").write_bytes(b"y" * 5)
    assert bytes_below(str(tmp_path)) == 15
