"""The `unaligned-checkpoints` experiment: what it makes of reports, and a run of each kind."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from holdfast.epoch.epoch_times import EpochTimes
from holdfast.epoch.report import EpochReport
from holdfast_lab.experiment.scabbard.unaligned_checkpoints import ALIGNED, P_STREAM, ROWS, BatchFigures, measure
from holdfast_lab.experiment.scabbard.varied_input import varied
from holdfast_lab.workloads.queries import query


def report(fragment: str, started: float, committed: float, **facts: Any) -> EpochReport:
    given = dict.fromkeys(
        ("rows", "entered", "output_rows", "late_rows", "bad_rows", "state_rows", "state_bytes", "written_bytes",
         "streamed_rows", "streamed_bytes"), 0,
    )  # fmt: skip
    rest: dict[str, Any] = {"epoch": 1, "greatest": {}, "watermark": None, "lag": None}
    rest |= {"seconds": committed - started, "times": EpochTimes(sync=0.1, commit=0.2)}
    return EpochReport(fragment=fragment, started=started, committed=committed, **{**given, **rest, **facts})


def test_a_batch_takes_until_the_reader_of_its_stream_has_committed_it() -> None:
    reports = [
        report("w", 0.0, 1.0, entered=100, streamed_rows=10, streamed_bytes=50, written_bytes=50),  # the warm-up
        report("w", 1.0, 2.0, entered=100, streamed_rows=10, streamed_bytes=50, written_bytes=50),
        report("r", 2.0, 2.5, rows=10, written_bytes=5),
        report("w", 2.0, 3.0, entered=100, streamed_rows=10, streamed_bytes=50, written_bytes=50),
        report("r", 3.0, 4.0, rows=20, written_bytes=5),
    ]
    found = BatchFigures.of(reports, 1.0, "w")
    assert found.latencies == [3.0, 2.0]  # the reader took the second and the third together
    assert (found.tuples, found.seconds, found.epochs) == (200, 3.0, 2)
    assert (found.stream_bytes, found.state_bytes) == (100, 10)
    assert found.checkpoint_seconds == pytest.approx(0.6)


def test_a_batch_that_nobody_has_read_has_no_latency() -> None:
    reports = [report("w", 0.0, 1.0, streamed_rows=10), report("w", 1.0, 2.0, streamed_rows=10)]
    assert BatchFigures.of([*reports, report("r", 2.0, 3.0, rows=10)], 0.0, "w").latencies == [3.0]


@pytest.mark.spark
def test_rows_beside_the_state_take_far_more_bytes_than_a_p_stream(spark: SparkSession, tmp_path: Path) -> None:
    source = varied(query("YSB").dataset, 1, 100_000).source(tmp_path / "input")
    aligned, rows, stream = (
        measure(spark, source, way, 1_024, tmp_path / "run", 0.1, warm_epochs=1) for way in (ALIGNED, ROWS, P_STREAM)
    )
    assert aligned.stream_bytes == 0
    assert rows.stream_bytes > 20 * rows.tuples
    assert stream.stream_bytes / stream.tuples < rows.stream_bytes / rows.tuples / 5
    assert all(found.latencies and found.checkpoint_seconds > 0 for found in (aligned, rows, stream))
    assert [path.name for path in tmp_path.iterdir()] == ["input"]
