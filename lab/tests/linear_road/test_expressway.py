"""The traffic of one expressway has the shape of the original benchmark, and comes from its seed alone."""

from __future__ import annotations

import polars as pl
import pytest

from holdfast_lab.linear_road.expressway import Expressway
from holdfast_lab.linear_road.road_oracle import PositionReport, road_answers
from holdfast_lab.linear_road.small_traffic import INPUT_SCHEMA

REPORT = ["time", "vid", "spd", "xway", "lane", "dir", "seg", "pos"]


@pytest.fixture(scope="module", name="hours")
def _hours() -> pl.DataFrame:
    return Expressway(1).rows()


def test_the_rate_rises_from_a_few_to_1700_tuples_per_second_in_three_hours(hours: pl.DataFrame) -> None:
    rates = hours.group_by(pl.col("time") // 60).len().sort("time")["len"] / 60
    assert len(rates) == 180
    assert rates[0] == pytest.approx(17, abs=6)
    assert rates[-1] == pytest.approx(1_700, rel=0.02)
    assert rates[90] == pytest.approx(860, rel=0.03)


def test_one_report_in_a_hundred_comes_with_a_request_and_half_of_them_ask_for_a_balance(hours: pl.DataFrame) -> None:
    counts = dict(hours["type"].value_counts().iter_rows())
    requests = counts[2] + counts[3] + counts[4]
    assert requests / counts[0] == pytest.approx(0.01, rel=0.02)
    assert [counts[kind] / requests for kind in (2, 3, 4)] == pytest.approx([0.5, 0.1, 0.4], abs=0.01)
    asked = hours.filter(pl.col("type") > 0)
    assert asked["qid"].sort().to_list() == list(range(asked.height))
    with_report = asked.join(hours.filter(pl.col("type") == 0), on=["vid", "time"], how="semi")
    assert with_report.height == asked.height


def test_vehicles_report_every_30_seconds_from_the_entry_lane_to_the_exit_lane(hours: pl.DataFrame) -> None:
    reports = hours.filter(pl.col("type") == 0).sort("vid", "time")
    assert reports.select((pl.col("seg") == pl.col("pos") // 5_280).all()).item()
    begins = (pl.col("vid") != pl.col("vid").shift(1)) | (pl.col("lane").shift(1) == 4)
    reports = reports.with_columns(begins=begins.fill_null(True), pause=pl.col("time") - pl.col("time").shift(1))
    assert reports.filter(pl.col("begins") != (pl.col("lane") == 0)).is_empty()
    assert set(reports.filter(~pl.col("begins"))["pause"]) == {30}
    back = reports.filter("begins", pl.col("vid") == pl.col("vid").shift(1))
    assert back.height > 1_000, "some vehicles come again"
    assert back.filter(pl.col("pause") <= 60).is_empty()


@pytest.mark.long
def test_there_is_an_accident_about_every_twenty_minutes() -> None:
    calm = Expressway(5, first=20, minutes=160, density=0.03).rows().filter(pl.col("type") == 0)
    right = road_answers([PositionReport(*row) for row in calm.select(REPORT).iter_rows()], [], [], {})
    places = {(direction, segment) for _, direction, segment in right.alerts.values()}
    assert 3 <= len(places) <= 16


def test_the_same_seed_gives_the_same_traffic_and_another_one_does_not() -> None:
    rows = Expressway.peak(7, 1).rows()
    assert rows.schema == INPUT_SCHEMA
    assert rows.equals(Expressway.peak(7, 1).rows())
    assert not rows.equals(Expressway.peak(8, 1).rows())


def test_traffic_that_begins_in_the_middle_has_all_vehicles_of_that_moment() -> None:
    rows = Expressway.peak(7, 1).rows()
    first = rows.filter(pl.col("type") == 0, pl.col("time") < 30)
    assert first.height == first["vid"].n_unique() == pytest.approx(50_000, rel=0.02)
    assert first["lane"].unique().to_list() == [0]
