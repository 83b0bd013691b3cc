"""The Linear Road application against an oracle that is worked out row by row, however the input is cut; and, where the
whole data set is at hand, against what others expect of it."""

from __future__ import annotations

import importlib
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import holdfast as hf
from harness import Cut, run
from holdfast_lab.linear_road.expected_answers import ExpectedAnswers, past_tolls
from holdfast_lab.linear_road.expressway import Expressway
from holdfast_lab.linear_road.many_expressways import ManyExpressways
from holdfast_lab.linear_road.road_oracle import PositionReport, RoadAnswers, Rules, road_answers
from holdfast_lab.linear_road.small_traffic import SmallTraffic
from strategies import FUZZ, long_cases

ROAD = Path(__file__).parents[2] / "examples" / "linear_road"
SHARED = Path(__file__).parents[3] / "shared" / "data" / "linear-road"
GENERATED_SEED = 1
"""Of generated traffic with an accident soon."""
REPORT = ["time", "vid", "spd", "xway", "lane", "dir", "seg", "pos"]


@pytest.fixture(scope="module", name="example")
def _example() -> Iterator[Callable[[str], Any]]:
    """Imports a module of the application, which imports those beside it."""
    sys.path.insert(0, str(ROAD))
    try:
        yield importlib.import_module
    finally:
        sys.path.remove(str(ROAD))
        for module in ROAD.glob("*.py"):
            sys.modules.pop(module.stem, None)


@pytest.fixture(scope="module")
def road(example: Callable[[str], Any]) -> Any:
    return example("road")


def history(rows: pl.DataFrame) -> pl.DataFrame:
    """A toll for every second vehicle, on every day and expressway."""
    asked = rows.filter(pl.col("type") == 3, pl.col("vid") % 2 == 0)
    return asked.select("vid", "day", "xway", toll=(pl.col("vid") * 10 + pl.col("day")).cast(pl.Int32)).unique()


def expected(rows: pl.DataFrame, rules: Rules) -> RoadAnswers:
    kind = pl.col("type")
    return road_answers(
        [PositionReport(*row) for row in rows.filter(kind == 0).select(REPORT).iter_rows()],
        rows.filter(kind == 2).select("time", "vid", "qid").iter_rows(),
        rows.filter(kind == 3).select("vid", "day", "xway", "qid").iter_rows(),
        {(vid, day, xway): toll for vid, day, xway, toll in history(rows).iter_rows()},
        rules,
    )


def answered(road: Any, rows: pl.DataFrame, rules: Rules, cut: Cut) -> pl.DataFrame:
    pipeline = road.linear_road(hf.source.memory(rows), history(rows), hf.sink.collect(), rules)
    return run(pipeline, cut).sinks["answers"]


def check(answers: pl.DataFrame, right: RoadAnswers) -> None:
    by_kind = {kind: answers.filter(pl.col("type") == kind) for kind in range(4)}
    tolls = {
        (vid, time): (lav, toll)
        for vid, time, lav, toll in by_kind[0].select("vid", "time", "lav", "amount").iter_rows()
    }
    alerts = {
        (vid, time): segment
        for vid, time, *segment in by_kind[1].select("vid", "time", "xway", "dir", "seg").iter_rows()
    }
    balances = dict(by_kind[2].select("qid", "amount").iter_rows())
    assert len(tolls) == by_kind[0].height, "nothing comes twice"
    assert tolls == right.tolls
    assert {key: tuple(segment) for key, segment in alerts.items()} == right.alerts
    assert by_kind[1].height == len(right.alerts)
    assert balances.keys() == right.balances.keys()
    assert by_kind[2].height == len(right.balances)
    assert all(balances[request] in allowed for request, allowed in right.balances.items())
    assert dict(by_kind[3].select("qid", "amount").iter_rows()) == right.expenditures


def test_small_traffic_has_all_that_can_happen(road: Any) -> None:
    right = expected(SmallTraffic(1).rows(), "paper")
    assert any(toll for _, toll in right.tolls.values())
    assert right.alerts
    assert any(max(allowed) for allowed in right.balances.values())
    assert any(right.expenditures.values())
    assert expected(SmallTraffic(1).rows(), "walmart") != right


@settings(max_examples=6 if FUZZ else 2)
@given(seed=st.integers(0, 10**6), rows=st.integers(150, 4_000), tasks=st.integers(1, 3), partitions=st.integers(1, 3),
       rules=st.sampled_from(["paper", "walmart"]))  # fmt: skip
def test_answers_are_the_oracles_however_the_input_is_cut(
    road: Any, seed: int, rows: int, tasks: int, partitions: int, rules: Rules
) -> None:
    traffic = SmallTraffic(seed, xways=1 + seed % 2).rows()
    check(answered(road, traffic, rules, Cut(rows, tasks, partitions)), expected(traffic, rules))


@pytest.mark.parametrize("rules", ["walmart", *long_cases("paper")])
def test_generated_traffic_on_several_expressways_is_answered_as_derived_from_one(
    road: Any, rules: Rules, tmp_path: Path
) -> None:
    one = Expressway.peak(GENERATED_SEED, 5).rows()
    tolls = past_tolls(one)
    right = ExpectedAnswers.of(one, tolls, rules)
    assert right.alerts.height
    assert right.tolls.filter(pl.col("amount") > 0).height
    roads = ManyExpressways.of(one, 2, tmp_path / "one.arrow")
    rows = roads.frame(0, one.height)
    pipeline = road.linear_road(hf.source.memory(rows), roads.table(tolls), hf.sink.collect(), rules)
    verdict = right.compare(run(pipeline, Cut(90_000, 2, 2)).sinks["answers"].lazy(), roads)
    assert verdict.right, verdict


@pytest.mark.spark
@pytest.mark.slow
def test_files_are_answered_on_spark_in_the_format_of_the_checkers(road: Any, tmp_path: Path) -> None:
    """As a user runs it, in a process of its own."""
    rows = SmallTraffic(2).rows()
    rows.write_csv(tmp_path / "in.csv", include_header=False)
    history(rows).write_csv(tmp_path / "history.csv", include_header=False)
    subprocess.run(
        [sys.executable, ROAD / "run.py", "in.csv", "history.csv", "out.csv"], cwd=tmp_path, check=True, timeout=300
    )
    right = expected(rows, "paper")
    lines = [line.split(",") for line in (tmp_path / "out.csv").read_text().splitlines()]
    tolls = {(int(line[1]), int(line[2])): (int(line[4]), int(line[5])) for line in lines if line[0] == "0"}
    assert tolls == right.tolls
    assert {int(line[4]) for line in lines if line[0] == "2"} == right.balances.keys()
    assert len(lines) == sum(map(len, (right.tolls, right.alerts, right.balances, right.expenditures)))


@pytest.mark.skipif(not SHARED.exists(), reason="needs the whole data set beside the project")
@pytest.mark.parametrize("rules", ["paper", *long_cases("walmart")])
def test_the_whole_data_set_is_answered_as_expected(
    example: Callable[[str], Any], rules: Rules, tmp_path: Path
) -> None:
    road, files = example("road"), example("run")
    rows = pl.read_csv(files.unpacked(SHARED / "data.csv.xz", tmp_path), has_header=False, schema=road.INPUT)
    tolls = pl.read_csv(files.unpacked(SHARED / "history.csv.xz", tmp_path), has_header=False, schema=road.HISTORY)
    pipeline = road.linear_road(hf.source.memory(rows), tolls, hf.sink.collect(), rules)
    files.write_answers(run(pipeline, Cut(60_000, 2, 2)).sinks["answers"], tmp_path / "out.csv")
    checked = subprocess.run(
        [sys.executable, SHARED / "check.py", SHARED / f"expected.{rules}.csv.xz", tmp_path / "out.csv"],
        capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert checked.returncode == 0, checked.stdout
