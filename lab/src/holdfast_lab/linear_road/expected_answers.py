"""What any number of expressways with the traffic of one must be answered, derived from the oracle's word on that one;
and whether that is what was answered.

The answers to the same row on all expressways are the same but for the numbers of vehicles and requests. So answers
are counted without these numbers: each must have come as often as there are expressways, once from each.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import polars as pl

from holdfast_lab.linear_road.many_expressways import ManyExpressways
from holdfast_lab.linear_road.road_oracle import PositionReport, Rules, road_answers

__all__ = ["ANSWER_KINDS", "ExpectedAnswers", "Verdict", "past_tolls"]

ANSWER_KINDS = {0: "toll", 1: "accident", 2: "balance", 3: "expenditure"}
_REPORT = ["time", "vid", "spd", "xway", "lane", "dir", "seg", "pos"]
_TWINS = (pl.col("twins").sum(), pl.col("sum").sum(), pl.col("strange").any())
_SAME = ["type", "time", "vid", "dir", "seg", "lav", "qid", "amount"]


def past_tolls(one: pl.DataFrame) -> pl.DataFrame:
    """The tolls of the past on one expressway: of every second vehicle that asks, and of days beside the one that it
    asks about."""
    asked = one.filter(pl.col("type") == 3, pl.col("vid") % 2 == 0).select("vid", "day", "xway")
    around = pl.concat([asked, asked.with_columns((pl.col("day") % 69 + 1).cast(pl.Int8))])
    toll = (pl.col("vid") % 97 * 10 + pl.col("day")).cast(pl.Int32)
    return around.unique(maintain_order=True).with_columns(toll=toll)


@dataclass(frozen=True, slots=True)
class Verdict:
    """Of all answers, by kind: how many were expected, how many came, and how many of either have no partner. A wrong
    one counts as missing and as extra."""

    expected: dict[str, int]
    given: dict[str, int]
    missing: dict[str, int]
    extra: dict[str, int]

    @property
    def right(self) -> bool:
        return not any((*self.missing.values(), *self.extra.values()))


@dataclass(frozen=True, slots=True)
class ExpectedAnswers:
    """Of one expressway: tolls, alerts, balances that are allowed, and expenditures. `kinds` says for each row of the
    input which kinds of answers it gets, one bit each."""

    tolls: pl.DataFrame
    alerts: pl.DataFrame
    balances: pl.DataFrame
    expenditures: pl.DataFrame
    kinds: npt.NDArray[np.int8]

    @staticmethod
    def of(one: pl.DataFrame, history: pl.DataFrame, rules: Rules = "paper") -> ExpectedAnswers:
        kind = pl.col("type")
        right = road_answers(
            [PositionReport(*row) for row in one.filter(kind == 0).select(_REPORT).iter_rows()],
            one.filter(kind == 2).select("time", "vid", "qid").iter_rows(),
            one.filter(kind == 3).select("vid", "day", "xway", "qid").iter_rows(),
            {(vid, day, xway): toll for vid, day, xway, toll in history.iter_rows()},
            rules,
        )
        moment = {"vid": pl.Int32, "time": pl.Int32}
        tolls = pl.DataFrame(
            [(*key, *value) for key, value in right.tolls.items()],
            schema={**moment, "lav": pl.Int16, "amount": pl.Int64}, orient="row",
        )  # fmt: skip
        alerts = pl.DataFrame(
            [(*key, *value[1:]) for key, value in right.alerts.items()],
            schema={**moment, "dir": pl.Int8, "seg": pl.Int8}, orient="row",
        )  # fmt: skip
        balances = pl.DataFrame(
            [(qid, amount) for qid, allowed in right.balances.items() for amount in sorted(allowed)],
            schema={"qid": pl.Int32, "amount": pl.Int64}, orient="row",
        )  # fmt: skip
        expenditures = pl.DataFrame(
            list(right.expenditures.items()), schema={"qid": pl.Int32, "amount": pl.Int64}, orient="row"
        )
        return ExpectedAnswers(tolls, alerts, balances, expenditures, _kinds(one, tolls, alerts))

    def tolls_alone(self, rows: npt.NDArray[np.int64]) -> ExpectedAnswers:
        """Of these rows of the input, and without the other kinds of answers."""
        alerts, balances, expenditures = (frame.clear() for frame in (self.alerts, self.balances, self.expenditures))
        return ExpectedAnswers(self.tolls, alerts, balances, expenditures, self.kinds[rows] & np.int8(1))

    def answers(self) -> npt.NDArray[np.int64]:
        """How many answers the rows up to each one get, from none on."""
        bits = sum(((self.kinds >> kind) & 1).astype(np.int64) for kind in ANSWER_KINDS)
        return np.concatenate([[0], np.cumsum(bits)])

    def gets(self, kind: int) -> npt.NDArray[np.bool_]:
        """Which rows get an answer of a kind."""
        return ((self.kinds >> kind) & 1).astype(bool)

    def compare(self, given: pl.LazyFrame, roads: ManyExpressways) -> Verdict:
        """All answers to all expressways with what they must be."""
        counted = _by_twins(given, roads).collect(engine="streaming")
        from_each_once = (
            (pl.col("twins") == roads.count)
            & (pl.col("sum") == roads.count * (roads.count - 1) // 2)
            & ~pl.col("strange")
        )
        verdict = Verdict({}, {}, {}, {})
        for kind, (frame, columns, key) in self._by_kind().items():
            name, came = ANSWER_KINDS[kind], counted.filter(pl.col("type") == kind)
            right = came.join(frame, on=columns, how="semi").group_by(key).agg(_TWINS)
            hits = roads.count * right.filter(from_each_once).height
            verdict.expected[name] = roads.count * frame.select(key).n_unique()
            verdict.given[name] = int(came["twins"].sum())
            verdict.missing[name] = verdict.expected[name] - hits
            verdict.extra[name] = verdict.given[name] - hits
        return verdict

    def _by_kind(self) -> dict[int, tuple[pl.DataFrame, list[str], list[str]]]:
        """What is expected of each kind, the columns that must agree, and those that say what is answered."""
        request, moment = ["qid"], ["vid", "time"]
        return {
            0: (self.tolls, [*moment, "lav", "amount"], moment),
            1: (self.alerts, [*moment, "dir", "seg"], moment),
            2: (self.balances, [*request, "amount"], request),
            3: (self.expenditures, [*request, "amount"], request),
        }


def _kinds(one: pl.DataFrame, tolls: pl.DataFrame, alerts: pl.DataFrame) -> npt.NDArray[np.int8]:
    keys = ["vid", "time"]
    told = tolls.select(*keys, toll=pl.lit(True))
    warned = alerts.select(*keys, alert=pl.lit(True))
    rows = one.select("type", *keys).join(told, on=keys, how="left", maintain_order="left")
    rows = rows.join(warned, on=keys, how="left", maintain_order="left")
    report = pl.col("type") == 0
    bits = (
        (report & pl.col("toll").fill_null(False)).cast(pl.Int8)
        + (report & pl.col("alert").fill_null(False)).cast(pl.Int8) * 2
        + (pl.col("type") == 2).cast(pl.Int8) * 4
        + (pl.col("type") == 3).cast(pl.Int8) * 8
    )
    return rows.select(bits.alias("kinds")).to_series().to_numpy()


def _by_twins(given: pl.LazyFrame, roads: ManyExpressways) -> pl.LazyFrame:
    """Answers without what differs between expressways: how many there are of each, the sum of the expressways they are
    from, and whether a number of an expressway, a vehicle and a request do not fit together."""
    number = (pl.col("vid") // roads.vehicles).cast(pl.Int64)
    strange = (pl.col("xway").is_not_null() & (pl.col("xway") != number)) | (
        pl.col("qid").is_not_null() & (pl.col("qid") // roads.requests != number)
    )
    return (
        given.with_columns(
            road=number,
            strange=strange.fill_null(False),
            vid=pl.col("vid") % roads.vehicles,
            qid=pl.col("qid") % roads.requests,
        )
        .group_by(_SAME)
        .agg(twins=pl.len().cast(pl.Int64), sum=pl.col("road").sum(), strange=pl.col("strange").any())
    )
