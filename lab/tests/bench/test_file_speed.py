"""What `bench files` makes of its runs, and that plain Polars computes what the oracle does."""

from __future__ import annotations

from pathlib import Path

import pytest
from test_bench_figures import report

from holdfast_lab.bench.file_input import FILE_FORMATS, write_event_files
from holdfast_lab.bench.file_speed import FileRun, FileSpeed, steady_speed
from holdfast_lab.bench.polars_query import ysb_results
from holdfast_lab.workloads.synthetic import ysb_ads, ysb_events


def run(engine: str, backlog: float, format: str = "csv") -> FileRun:
    return FileRun(format, engine, 100, backlog, None, None)


def test_a_ratio_is_the_median_of_those_within_the_rounds() -> None:
    runs = [
        run("polars", 10.0),
        run("crew", 9.0),
        run("crew", 10.0),
        run("polars", 20.0),
        run("polars", 10.0),
        run("crew", 8.0),
    ]
    speed = FileSpeed(tuple(runs))
    [bar] = speed.bars()
    assert (bar.value, bar.bar, bar.ok) == (0.8, 0.85, False), "of 0.9, 0.5 and 0.8"
    assert speed.to_json()["bars"] == [{"name": bar.name, "value": 0.8, "bar": 0.85, "ok": False}]


def test_the_steady_speed_leaves_the_first_quarter_of_the_rows_out() -> None:
    epochs = [report(1, 10, 0.0, 5.0), report(2, 30, 5.0, 6.0), report(3, 40, 6.0, 7.0), report(4, 40, 7.0, 8.0)]
    assert steady_speed(epochs) == pytest.approx(40.0)
    assert steady_speed(epochs[:1]) is None


@pytest.mark.parametrize("format", FILE_FORMATS)
def test_polars_counts_the_views_of_all_files(tmp_path: Path, format: str) -> None:
    made = write_event_files(tmp_path, format, 3, 2_000)
    found = ysb_results(format, made.paths(), made.schema).collect()
    views = ysb_events(2_000).filter(event_type=0).join(ysb_ads(), on="ad_id").group_by("campaign_id").len()
    expected = {campaign: 3 * count for campaign, count in views.iter_rows()}
    assert {row["campaign_id"]: row["views"] for row in found.iter_rows(named=True)} == expected
    assert found["window_start"].unique().to_list() == [0]
    assert made.rows == 6_000
