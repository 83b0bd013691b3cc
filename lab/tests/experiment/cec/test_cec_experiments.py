"""The experiments on continuous eventual checkpoints: their workload, what is made of reports, and tiny runs."""

from __future__ import annotations

import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from pyspark.sql import SparkSession

import holdfast as hf
from holdfast.durability.checkpoints import CheckpointReport
from holdfast.engine.options import RunOptions
from holdfast.epoch.report import EpochReport, FootprintWork
from holdfast_lab.experiment.cec import baseline, period, policy_comparison
from holdfast_lab.experiment.cec.eventual_runs import (
    EventualQuery,
    EventualRun,
    between,
    fault_free,
    figures,
    in_memory,
    percentile,
    response_times,
    volatile_of,
)
from holdfast_lab.experiment.cec.target_runs import case, load_bars, loads, stall_bar, wrong_bar
from holdfast_lab.experiment.registry import experiment
from holdfast_lab.workloads.items import ROW_BYTES, Items
from strategies import long_cases

SMALL = EventualQuery("small", 500, size=10, epoch_rows=1_000, seed=3)


class Paced(EventualQuery):
    """Its epochs do not follow one another at once."""

    def options(self, *given: Any) -> RunOptions:
        return replace(EventualQuery.options(self, *given), trigger="400ms")


PACED = Paced("small", 500, size=10, epoch_rows=1_000, seed=3)
PANES = EventualQuery("panes", 300, window="4s", epoch_rows=1_000, rate=1_000.0)


def left(**given: Any) -> FootprintWork:
    plain: dict[str, Any] = {"records": 50, "checked": 5, "bytes": 600, "seconds": 0.01, "busy": 0.01, "windows": 9,
                             "open_windows": 8, "extent": 100, "replay": 1_000, "predicted": None}  # fmt: skip
    return FootprintWork(**{**plain, **given})


def report(epoch: int, *, took: float = 0.5, footprints: FootprintWork | None = None, written: int = 40) -> EpochReport:
    """An epoch of 1,000 rows that was launched `took` seconds before its commit, one every second."""
    return EpochReport(
        fragment="items", epoch=epoch, rows=1_000, entered=1_000, started=100.0 + epoch - took, committed=100.0 + epoch,
        seconds=took, output_rows=100, late_rows=0, bad_rows=0, state_rows=1, state_bytes=1, written_bytes=written,
        streamed_rows=0, streamed_bytes=0, greatest={}, watermark=None, lag=None, cpu={"0-0": 0.1, "0-1": 0.3},
        footprints={"average": footprints} if footprints else {},
    )  # fmt: skip


# the workload


def test_items_are_the_same_however_they_are_cut() -> None:
    made = Items(1_000, rate=1_000, seed=5)
    whole = made(0, 5_000)
    assert pl.concat([made(0, 1_234), made(1_234, 5_000)]).equals(whole)
    assert whole["item_time"][1_000] == 1_000
    assert whole["item_id"].is_between(0, 999).all()
    assert whole["item_id"].n_unique() > 950
    assert sum(dtype.is_integer() * 8 for dtype in whole.dtypes) == ROW_BYTES
    assert not Items(1_000, seed=6)(0, 100)["item_id"].equals(whole["item_id"][:100])
    assert pickle.loads(pickle.dumps(made)) == made


def test_every_second_item_is_one_of_the_hot_ones() -> None:
    ids = Items(10_000, hot=10)(0, 10_000)["item_id"]
    assert ids.gather_every(2).max() == 9
    assert ids.gather_every(2, 1).n_unique() > 3_000


# what is made of reports


def test_figures_are_of_the_epochs_after_the_first() -> None:
    reports = [report(1, took=9.0), *(report(epoch, footprints=left()) for epoch in range(2, 12))]
    own, seconds = between(reports, 1)
    assert [report.epoch for report in own] == list(range(2, 12))
    assert seconds == 10.0
    found = figures(reports, 1)
    assert found["tuples_per_s"] == 1_000
    assert found["results_per_s"] == 100
    assert found["real_per_s"] == 150
    assert found["records_per_epoch"] == 50
    assert found["epoch_p95_ms"] == pytest.approx(500)
    assert found["cpu_us_per_tuple"] == pytest.approx(400)
    assert percentile([], 0.95) == 0.0


def test_a_response_is_from_the_commit_of_the_first_row_to_that_of_the_last() -> None:
    query = EventualQuery("one id", 1, size=30, epoch_rows=10)
    reports = [report(epoch) for epoch in range(1, 10)]
    assert response_times(query, reports, 1, 9) == [2.0, 2.0, 2.0]
    assert response_times(query, reports, 2, 4) == [2.0]
    assert response_times(replace(query, size=100), reports, 1, 9) == []


def test_baseline_compares_within_a_round() -> None:
    def one(config: str, number: int, speed: float, cpu: float) -> dict[str, Any]:
        rest = {"results_per_s": 10.0, "real_per_s": 20.0, "records_per_epoch": 5.0, "epoch_p50_ms": 1.0}
        return {"workload": "100,000 ids, windows of 10, x", "config": config, "round": number,
                "tuples_per_s": speed, "cpu_us_per_tuple": cpu, **rest}  # fmt: skip

    disk = "open records, disk"
    told = [one("native", 0, 100, 1.0), one(disk, 0, 96, 1.0), one("native", 1, 50, 1.0), one(disk, 1, 49, 1.25),
            one("native", 2, 200, 1.0), one(disk, 2, 180, 2.0)]  # fmt: skip
    rows = baseline.summed(told)
    assert [row["config"] for row in rows] == ["native", disk]
    assert rows[1]["against_native"] == pytest.approx(0.96)
    assert rows[1]["cpu_against_native"] == pytest.approx(0.8)
    assert rows[1]["against_native_least"] == pytest.approx(0.9)
    assert rows[1]["real_over_results"] == 2.0
    assert [bar.ok for bar in baseline.bars(rows)] == [True, False]
    assert baseline.spans(100_000, 1_000_000) == (2, 10)
    assert baseline.spans(1_000_000, 1_000_000) == (1, 2)


def test_bars_on_loads_name_what_was_loaded_and_fail_where_nothing_was() -> None:
    bars = load_bars([{"asked": 180_000, "extent": 185_123, "ec_load_s": 0.2}])
    assert [(bar.value, bar.ok) for bar in bars] == [(0.2, True), (None, False)]
    assert "185,123" in bars[0].name
    rows = [{"longest_stall_ms": 3.0, "wrong_rows": 0}, {"longest_stall_ms": 21.0, "wrong_rows": 2}]
    assert not stall_bar(rows, 20.0).ok
    assert wrong_bar(rows).value == 2


def test_the_period_follows_from_the_share() -> None:
    policy = period.policy_of(40, 0.1, 450)
    assert policy is not None
    assert policy.footprints is not None
    assert (policy.footprints.spend, policy.footprints.period) == (0.1, pytest.approx(0.25))
    assert period.policy_of(0, 0.1, 450) is None


def test_response_times_are_compared_within_a_round() -> None:
    def one(percent: int, number: int, response: float, extent: int | None) -> dict[str, Any]:
        return {"ci_over_cp_percent": percent, "round": number, "response_s": response, "extent": extent,
                "longest_stall_ms": 30.0 if percent else 0.0, "cpu_us_per_tuple": 1.0 + percent / 100}  # fmt: skip

    told = [one(0, 0, 10.0, None), one(4, 0, 10.5, 400), one(40, 0, 20.0, 200),
            one(0, 1, 20.0, None), one(4, 1, 21.0, 500), one(40, 1, 30.0, 100)]  # fmt: skip
    rows = period.summed(told)
    assert [row["ci_over_cp_percent"] for row in rows] == [0, 4, 40]
    assert [row["against_none"] for row in rows] == [1.0, 1.05, 1.75]
    assert [row["cpu_against_none"] for row in rows] == [1.0, 1.04, 1.4]
    assert [(bar.value, bar.ok) for bar in period.bars(rows, 25.0)] == [
        (1.05, True), (pytest.approx(1 / 3), True), (30.0, False),
    ]  # fmt: skip


def test_what_is_written_until_a_loss_goes_by_the_policy() -> None:
    plain = EventualRun([report(epoch) for epoch in range(1, 6)])
    assert policy_comparison.written(plain, hf.checkpoint.delta(), 4) == 4 * 40
    assert policy_comparison.written(plain, hf.checkpoint.none(), 4) == 0
    copied = replace(plain, checkpoints=[CheckpointReport("items", epoch, 1_000, 0, 0.1) for epoch in (2, 5)])
    assert policy_comparison.written(copied, hf.checkpoint.interval("5s"), 4) == 1_000
    traced = EventualRun([report(epoch, footprints=left()) for epoch in range(1, 6)])
    assert policy_comparison.written(traced, hf.checkpoint.eventual("2s"), 4) == 4 * 600


def test_the_best_policy_writes_least_among_those_that_are_soon_enough() -> None:
    rows = [
        {"workload": "w", "policy": "none", "bytes_per_row": 0.0, "recovery_s": 9.0},
        {"workload": "w", "policy": "delta", "bytes_per_row": 20.0, "recovery_s": 0.5},
        {"workload": "w", "policy": "eventual", "bytes_per_row": 5.0, "recovery_s": 1.5},
    ]
    [found] = policy_comparison.best(rows, (0.1, 1.0, 2.0, 10.0))
    assert found["best"] == {"0.1": None, "1": "delta", "2": "eventual", "10": "none"}
    assert "was the best choice for" in policy_comparison.where_eventual([found])
    assert "within 2 s" in policy_comparison.where_eventual([found])
    assert policy_comparison.where_eventual([]) == "`eventual` was the best choice nowhere."
    assert "0.1 s: nobody did; 1 s: delta (20.00 bytes/row)" in found["text"]


@pytest.mark.parametrize("name", ["cec-baseline", "cec-q", "cec-u", "cec-period", "cec-policies"])
def test_experiments_are_in_the_list(name: str) -> None:
    assert experiment(name).figure


# tiny runs


@pytest.mark.spark
@pytest.mark.parametrize("config", ["open records, memory", *long_cases("native")])
def test_a_run_of_the_baseline(config: str, spark: SparkSession, tmp_path: Path) -> None:
    found = baseline.run_one(spark, SMALL, config, tmp_path / "home", warm=1, measured=3)
    assert found["tuples_per_s"] > 0
    assert (found["records_per_epoch"] > 0) == (config != "native")
    assert not (tmp_path / "home").exists()
    assert not in_memory("store-home").exists()
    assert not volatile_of(tmp_path / "home").exists()


@pytest.mark.spark
def test_a_loss_under_a_target(spark: SparkSession, tmp_path: Path) -> None:
    expected = fault_free(spark, SMALL, tmp_path / "plain", 12)
    # A period is one epoch, and long enough for all footprints of one, however slow the machine is.
    policy = hf.checkpoint.eventual(U=2_000, CI="300ms", CP="300ms")
    found = case(spark, PACED, policy, tmp_path / "home", 10, 12, expected)
    assert found["wrong_rows"] == 0
    assert found["g_checks"] > 0
    assert found["extent"] >= found["windows"] >= found["open_windows"] > 0
    assert found["ec_load_s"] >= found["gather_s"] > 0
    assert found["replay_rows"] <= 4_000
    assert found["replay_mb"] == found["replay_rows"] * ROW_BYTES / 1e6


@pytest.mark.spark
def test_logs_of_a_size_are_loaded_without_harm(spark: SparkSession, tmp_path: Path) -> None:
    found = loads(spark, replace(SMALL, epoch_rows=500), tmp_path / "home", (700, 1_200), 2)
    assert [load["asked"] for load in found] == [700, 1_200]
    for load in found:
        assert load["asked"] <= load["extent"] < load["asked"] + 500
        assert load["ec_load_s"] > 0


@pytest.mark.spark
@pytest.mark.long
def test_a_period(spark: SparkSession, tmp_path: Path) -> None:
    policy = period.policy_of(40, 0.1, 450)
    found = period.run_one(spark, SMALL, policy, tmp_path / "home", 2, 12)
    assert found["response_s"] > 0
    assert found["windows_measured"] > 0
    assert found["extent"] > 0
    assert found["ec_load_s"] > 0
    plain = period.run_one(spark, SMALL, None, tmp_path / "plain", 2, 12)
    assert plain["extent"] is None
    assert plain["response_s"] > 0


@pytest.mark.spark
@pytest.mark.parametrize(
    ("query", "policy"),
    [
        (PANES, "eventual(1s)"),
        *long_cases((SMALL, "none"), (SMALL, "eventual(1s)"), (PANES, "delta"), (PANES, "interval(1s)")),
    ],
    ids=lambda value: value.name if isinstance(value, EventualQuery) else value,
)
def test_policies_come_back_with_the_same_output(
    query: EventualQuery, policy: str, spark: SparkSession, tmp_path: Path
) -> None:
    expected = fault_free(spark, query, tmp_path / "plain", 10)
    found = policy_comparison.run_one(spark, query, policy, tmp_path / "home", [7], 10, expected)
    assert found["wrong_rows"] == 0
    assert found["recovery_s"] > 0
    assert (found["bytes"] > 0) == (policy != "none" and (policy != "interval(1s)" or found["checkpoints"] > 0))
