"""From epochs to the figures of a benchmark: what counts, and what a latency is."""

from __future__ import annotations

from holdfast.bench.figures import Meter, figures, latencies
from holdfast.bench.input import dense
from holdfast.epoch.driver import EpochReport
from holdfast.workloads import dataset


def report(epoch: int, rows: int, started: float, committed: float, time: int = 0) -> EpochReport:
    return EpochReport(
        epoch=epoch, rows=rows, started=started, committed=committed, seconds=committed - started, output_rows=1,
        late_rows=0, bad_rows=0, state_rows=0, state_bytes=0, written_bytes=10, greatest={"s": time}, watermark=time,
        lag=None,
    )  # fmt: skip


def test_growing_epochs_are_warm_up() -> None:
    stopped: list[bool] = []
    meter = Meter(2.0, stop=lambda: stopped.append(True), warm_epochs=3)
    for epoch, rows in enumerate([10, 40, 160, 640, 650, 640, 600, 610, 600], start=1):
        meter.add(report(epoch, rows, epoch - 1.0, float(epoch)))
    assert meter.warm == 6
    assert [each.epoch for each in meter.measured()] == [7, 8, 9]
    assert stopped  # two seconds after the warm-up
    made = figures(meter, "q", 100, None)
    assert made.tuples == 1_810
    assert made.seconds == 3.0
    assert made.raw_bytes == 181_000
    assert made.persisted_bytes == 30


def test_warm_up_ends_when_patience_does() -> None:
    meter = Meter(1.0, patience=5.0)
    for epoch in range(1, 8):
        meter.add(report(epoch, 2**epoch, epoch - 1.0, float(epoch)))
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
