"""Toll notifications of Linear Road in other systems: their answers are the oracle's, their input arrives by the clock,
and it is said that they are a part of the benchmark."""

from __future__ import annotations

import itertools
import random
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest
from pyspark import cloudpickle
from pyspark.sql import SparkSession

from holdfast_lab.bench.memory_watch import MemoryUse
from holdfast_lab.bench.road_elsewhere import OpenPeer, RoadSchedule, measure_peer, tolls_alone
from holdfast_lab.bench.road_on_flink import flink_peer
from holdfast_lab.bench.road_on_spark import TollsOfBucket, spark_peer
from holdfast_lab.bench.road_rating import RoadRating
from holdfast_lab.bench.road_run import AnswerLatency, RoadFigures, RoadOptions, RoadTraffic
from holdfast_lab.linear_road.expected_answers import ExpectedAnswers, Verdict, past_tolls
from holdfast_lab.linear_road.many_expressways import ManyExpressways
from holdfast_lab.linear_road.small_traffic import SmallTraffic
from holdfast_lab.workloads.flink_install import find_flink

COUNT = 3
HOUR = 3_600.0
"""Nobody gives up on a machine that is busy with something else."""


def part_of(seed: int, vehicles: int, warm_seconds: int = 240) -> RoadTraffic:
    one = SmallTraffic(seed, vehicles=vehicles).rows()
    history = past_tolls(one)
    warm = int(one["time"].search_sorted(warm_seconds))
    return tolls_alone(RoadTraffic(one, history, ExpectedAnswers.of(one, history), warm))


@pytest.fixture(scope="module", name="dense")
def _dense() -> RoadTraffic:
    """There are tolls, and accidents that make them free."""
    dense = part_of(1, 1_500)
    assert dense.expected.tolls.filter(pl.col("amount") > 0).height > 100
    return dense


def test_the_part_has_reports_alone_and_expects_tolls_alone() -> None:
    part = part_of(5, 200)
    assert set(part.one["type"]) == {0}
    assert part.one["time"][part.warm - 1] < 240 <= part.one["time"][part.warm]
    told = part.one.filter(pl.Series(part.expected.gets(0))).select("vid", "time")
    assert told.sort("vid", "time").equals(part.expected.tolls.select("vid", "time").sort("vid", "time"))
    assert not any(part.expected.gets(kind).any() for kind in (1, 2, 3))
    assert not part.expected.alerts.height


def test_reports_arrive_by_the_clock_that_a_file_begins(tmp_path: Path) -> None:
    part = part_of(5, 200)
    schedule = RoadSchedule.of(part, COUNT, 2.0, tmp_path)
    assert schedule.beginning() is None
    assert schedule.due(1e9, None) == part.warm
    schedule.begin(1_000.25)
    assert schedule.beginning() == 1_000.25
    assert schedule.due(1_000.25, 1_000.25) == part.warm + 1
    seconds = (part.one["time"][-1] - part.one["time"][part.warm]) / 2
    assert schedule.after[-1] == pytest.approx(seconds, abs=0.5)
    assert schedule.due(1_000.26 + schedule.after[-1], 1_000.25) == part.one.height
    before = part.one["time"].to_numpy()[part.warm :] < part.one["time"][part.warm] + 20
    assert schedule.due(1_010.25, 1_000.25) == pytest.approx(part.warm + np.count_nonzero(before), abs=5)


class KeptState:
    """What Spark keeps for a key between calls."""

    def __init__(self) -> None:
        self.exists, self.get = False, ()

    def update(self, state: tuple[Any, ...]) -> None:
        assert all(isinstance(packed, bytes) for packed in state)
        self.exists, self.get = True, state


@pytest.mark.parametrize("seed", range(4))
def test_tolls_in_structured_streaming_are_the_oracles_wherever_batches_are_cut(
    seed: int, dense: RoadTraffic, tmp_path: Path
) -> None:
    chance, part = random.Random(seed), dense
    roads = ManyExpressways.of(part.one, COUNT, tmp_path / "one.arrow")
    told = cloudpickle.loads(cloudpickle.dumps(TollsOfBucket()))
    state, answers = KeptState(), []
    cuts = sorted({0, roads.rows, *(chance.randrange(roads.rows) for _ in range(1 + 3 * seed))})

    def frames(low: int, high: int) -> Iterator[pd.DataFrame]:
        """A shuffle keeps no order."""
        mixed = roads.frame(low, high).with_columns(bucket=1).sample(fraction=1.0, shuffle=True, seed=seed)
        for at in range(0, mixed.height, 10_000):
            yield mixed[at : at + 10_000].to_pandas()

    for low, high in itertools.pairwise(cuts):
        answers += [pl.from_pandas(frame) for frame in told((1,), frames(low, high), state)]
    given = pl.concat(answers).with_columns(type=pl.lit(0, pl.Int8), qid=pl.lit(None, pl.Int32)).lazy()
    verdict = part.expected.compare(given, roads)
    assert verdict.right, verdict
    assert verdict.given["toll"] == COUNT * part.expected.tolls.height > 0


def checked(engine: str, opened: OpenPeer, part: RoadTraffic, place: Path) -> None:
    options = RoadOptions(compress=60.0, latency=1.0)
    figures = measure_peer(engine, opened, COUNT, part, options, place, patience=HOUR)
    assert figures.verdict is not None
    assert figures.verdict.right, figures.verdict
    assert figures.verdict.given["toll"] == COUNT * part.expected.tolls.height
    assert figures.latency.keys() == {"toll"}
    measured = COUNT * int(np.count_nonzero(part.expected.gets(0)[part.warm :]))
    assert figures.latency["toll"].answers == measured
    assert 0 < figures.latency["toll"].p50 <= figures.latency["toll"].most
    assert figures.epochs
    assert figures.to_json()["engine"] == engine


@pytest.mark.spark
@pytest.mark.long
def test_structured_streaming_gives_the_oracles_tolls(spark: SparkSession, dense: RoadTraffic, tmp_path: Path) -> None:
    checked("spark", spark_peer(spark), dense, tmp_path)


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.skipif(find_flink() is None, reason="Flink is not installed: `holdfast experiment queries` does it")
@pytest.mark.skipif(shutil.which("javac") is None, reason="there is no Java compiler")
def test_flink_gives_the_oracles_tolls(dense: RoadTraffic, tmp_path: Path) -> None:
    checked("flink", flink_peer, dense, tmp_path)


def test_the_rating_of_another_system_is_said_to_be_of_a_part() -> None:
    counts = {"toll": 4, "accident": 0}
    none = dict.fromkeys(counts, 0)
    latency = AnswerLatency(4, 0.5, 0.9, 1.0, 1.1, 0)
    run = RoadFigures(
        2, 3_400.0, 60.0, {"toll": latency}, latency, Verdict(counts, counts, none, none), 0, 9_000.0, 8.0, 60, None,
        MemoryUse(), 0, 0, engine="flink",
    )  # fmt: skip
    rating = RoadRating((run, replace(run, expressways=3, verdict=None)))
    assert "L = 2 (flink, toll notifications alone): all answers right and in time" in run.lines()[0]
    assert rating.lines()[0] == "L-rating: 2"
    assert "toll notifications alone" in rating.lines()[1]
    told = rating.to_json()
    assert (told["engine"], told["answers"], told["bars"]) == ("flink", "toll notifications alone", [])
