"""The rating of Linear Road: what the search finds, and a run that is timed and checked."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from holdfast_lab.bench.road_rating import RoadRating, search
from holdfast_lab.bench.road_run import RoadOptions, RoadTraffic, measure_roads


@dataclass(frozen=True)
class Held:
    count: int
    most: int

    @property
    def holds(self) -> bool:
        return self.count <= self.most


@pytest.mark.parametrize("first", [1, 50, 400])
@pytest.mark.parametrize("most", [1, 37, 349, 350])
def test_the_search_ends_near_the_greatest_number_that_holds(first: int, most: int) -> None:
    runs = search(lambda count: Held(count, most), first)
    best = max(run.count for run in runs if run.holds)
    assert best <= most <= 1.05 * best + 1
    assert len(runs) < 25


def test_nothing_holds_if_not_even_one_expressway_does() -> None:
    assert not any(run.holds for run in search(lambda count: Held(count, 0), 8))
    assert RoadRating(()).rating == 0


@pytest.mark.spark
@pytest.mark.slow
def test_answers_of_a_run_are_all_right_and_their_latency_is_known(spark: SparkSession, tmp_path: Path) -> None:
    options = RoadOptions(minutes=0.5, warm=0.5, compress=4.0)
    figures = measure_roads(spark, 2, RoadTraffic.heaviest(options), options, tmp_path)
    assert figures.verdict is not None
    assert figures.verdict.right, figures.verdict
    assert not figures.unsteady
    assert figures.seconds == pytest.approx(7.5, rel=0.05)
    assert {"toll", "balance", "expenditure"} <= figures.latency.keys()
    assert all(0 < found.p50 <= found.p99 <= found.most for found in figures.latency.values())
    assert figures.disk
    assert figures.to_json()["l"] == 2
    assert RoadRating((figures,)).bars()[0]["ok"] is False
