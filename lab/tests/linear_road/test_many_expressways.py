"""Many expressways with the traffic of one: numbers of their own, rows that arrive by the clock, and expectations that
notice every answer that is wrong."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest

from holdfast.connect.base import Take
from holdfast.connect.source_need import SourceNeed
from holdfast_lab.linear_road.expected_answers import ANSWER_KINDS, ExpectedAnswers, past_tolls
from holdfast_lab.linear_road.expressway import Expressway
from holdfast_lab.linear_road.many_expressways import ArrivingRoads, ManyExpressways, arrivals

COUNT = 3


@pytest.fixture(scope="module", name="one")
def _one() -> pl.DataFrame:
    return Expressway(3, first=150, minutes=4, density=0.02).rows()


@pytest.fixture(scope="module", name="roads")
def _roads(one: pl.DataFrame, tmp_path_factory: pytest.TempPathFactory) -> ManyExpressways:
    return ManyExpressways.of(one, COUNT, tmp_path_factory.mktemp("roads") / "one.arrow")


def test_each_expressway_has_the_same_traffic_with_vehicles_and_requests_of_its_own(
    one: pl.DataFrame, roads: ManyExpressways
) -> None:
    frame = roads.frame(0, one.height)
    assert frame.schema == one.schema
    assert frame["time"].is_sorted()
    for number in range(COUNT):
        own = frame.filter(pl.col("vid") // roads.vehicles == number)
        back = own.with_columns(
            (pl.col("vid") - number * roads.vehicles).cast(pl.Int32),
            pl.when(pl.col("qid") >= 0).then(pl.col("qid") - number * roads.requests).otherwise(-1).cast(pl.Int32),
            pl.when(pl.col("xway") >= 0).then(pl.col("xway") - number).otherwise(-1).cast(pl.Int16),
        )
        assert back.equals(one)
    requests = frame.filter(pl.col("type") > 0)
    assert requests["qid"].n_unique() == requests.height


def test_rows_arrive_by_the_clock_whether_they_are_taken_or_not(one: pl.DataFrame, roads: ManyExpressways) -> None:
    now = [1_000.0]
    warm = int(one["time"].search_sorted(120))
    source = ArrivingRoads(roads, arrivals(one), warm, 2.0, lambda: now[0])
    took = source.take(source.start(), 10**9, 2)
    assert took.position == {"row": warm}
    assert source.take(took.position, 10**9, 2) == Take((), took.position), "the clock has not begun"
    source.begin()
    now[0] += 30.0
    behind = int(np.searchsorted(one["time"].to_numpy(), 180))
    assert source.lag(took.position) == pytest.approx((behind - warm) * COUNT, abs=60)
    later = source.take(took.position, 10**9, 2)
    rows = pl.concat(chunk.frame for piece in later.slices for chunk in source.read(piece))
    assert rows.equals(roads.frame(warm, later.position["row"]))
    assert sum(piece.rows for piece in later.slices) == rows.height
    now[0] += 10_000.0
    assert source.take(later.position, 10**9, 2).position == {"row": one.height}


def test_a_source_of_few_columns_arrives_with_the_others(one: pl.DataFrame, roads: ManyExpressways) -> None:
    source = ArrivingRoads(roads, arrivals(one), 0, 1.0, lambda: 50.0)
    narrow = source.narrowed(SourceNeed(["vid", "time"]))
    assert narrow.schema.names() == ["time", "vid"]
    source.begin()
    assert isinstance(narrow, ArrivingRoads)
    assert narrow.end == source.end is not None


def test_every_answer_that_is_missing_double_or_wrong_is_noticed(one: pl.DataFrame, roads: ManyExpressways) -> None:
    expected = ExpectedAnswers.of(one, past_tolls(one))
    answers = _answers(expected, roads)
    assert expected.compare(answers.lazy(), roads).right
    assert expected.answers()[-1] * COUNT == answers.height
    for kind in answers["type"].unique().to_list():
        name = ANSWER_KINDS[kind]
        at = int(answers["type"].index_of(kind) or 0)
        without = expected.compare(pl.concat([answers[:at], answers[at + 1 :]]).lazy(), roads)
        assert without.missing[name], f"{name} is missing"
        double = expected.compare(pl.concat([answers, answers[at : at + 1]]).lazy(), roads)
        assert double.extra[name], f"{name} comes twice"
        column = "seg" if kind == 1 else "amount"
        changed = answers.with_columns(
            pl.when(pl.int_range(pl.len()) == at).then(pl.col(column) + 10_000_019 % 90).otherwise(pl.col(column))
        )
        assert not expected.compare(changed.cast(answers.schema).lazy(), roads).right, f"{name} is wrong"
    strange = answers.with_columns(xway=(pl.col("xway") + 1) % COUNT)
    assert not expected.compare(strange.cast(answers.schema).lazy(), roads).right


def _answers(expected: ExpectedAnswers, roads: ManyExpressways) -> pl.DataFrame:
    """What a system that is right would say."""
    schema = {"type": pl.Int8, "time": pl.Int32, "vid": pl.Int32, "xway": pl.Int16, "dir": pl.Int8, "seg": pl.Int8,
              "lav": pl.Int16, "qid": pl.Int32, "amount": pl.Int64}  # fmt: skip
    balances = expected.balances.group_by("qid", maintain_order=True).first().with_columns(vid=0, time=0)
    frames = [
        expected.tolls.with_columns(type=0, xway=0),
        expected.alerts.with_columns(type=1, xway=0),
        balances.with_columns(type=2),
        expected.expenditures.with_columns(type=3, vid=0, time=0),
    ]
    one = pl.concat(
        frame.select((pl.col(n) if n in frame.columns else pl.lit(None, t).alias(n)).cast(t) for n, t in schema.items())
        for frame in frames
    )
    twins = [
        one.with_columns(
            pl.col("vid") + number * roads.vehicles, pl.col("qid") + number * roads.requests, pl.col("xway") + number
        )
        for number in range(COUNT)
    ]
    return pl.concat(twins).cast(schema)
