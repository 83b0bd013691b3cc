"""The experiments on the word count: following lost hosts, latencies of rows, and what is made of the figures."""

from __future__ import annotations

import json
import pickle
import random
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import holdfast as hf
from holdfast_lab.experiment.registry import experiment
from holdfast_lab.experiment.seep import (
    checkpoint_interval,
    interval_tradeoff,
    parallel_recovery,
    state_overhead,
    word_count_recovery,
)
from holdfast_lab.experiment.seep.row_latency import DueSource, DueTake, Latencies, LatencyFigures, measure, percentile
from holdfast_lab.experiment.seep.word_count_host import WordCountSettings
from holdfast_lab.experiment.seep.word_count_losses import (
    HostLoss,
    HostProgress,
    WordCountRun,
    keeps_up,
    loss_row,
    shares,
    wrong_rows,
)
from holdfast_lab.experiment.time_limit import TimeLimit
from holdfast_lab.workloads.words import Fragments, fragments, word_totals

PHASES = {"progress": 0.1, "upstream request": 0.0, "data": 0.2, "replay": 1.7}


def loss(recovery: float = 2.0, replayed: int = 3, kept_up: bool = True) -> HostLoss:
    return HostLoss(4.0, recovery, PHASES, replayed, 10, 2_000_000, 2.5, kept_up)


# following hosts


def test_a_run_keeps_up_when_its_window_is_full_and_nothing_but_the_newest_takes_waits() -> None:
    source, counter = HostProgress(), HostProgress()
    assert not keeps_up(source, counter, 1.0, 0.0)
    source.on_event({"event": "taken", "number": 40, "arrived": 100.0, "at": 100.0})
    for seen, expected in ((29_000, False), (36_000, False), (37_999, True), (39_999, True)):
        counter.on_event({"event": "commit", "seen": seen, "at": 100.0})
        assert keeps_up(source, counter, 1.0, 100.5) is expected
    assert not keeps_up(source, counter, 1.0, 104.0), "the source itself is behind"


def test_a_window_that_is_not_full_is_not_lost() -> None:
    source, counter = HostProgress(number=20, arrived=10.0), HostProgress(seen=20_000)
    assert not keeps_up(source, counter, 1.0, 10.0)


def test_a_restarted_host_has_yet_to_recover_but_has_seen_what_it_had() -> None:
    followed = HostProgress()
    for event in (
        {"event": "warm", "at": 1.0},
        {"event": "commit", "seen": 5_000, "at": 2.0},
        {"event": "checkpoint", "at": 3.0},
        {"event": "recovered", "at": 4.0},
    ):
        followed.on_event(event)
    assert (followed.commits, followed.checkpoint_at) == (1, 3.0)
    followed.restarted()
    assert (followed.warm_at, followed.checkpoint_at, followed.recovered, followed.commits) == (None, None, None, 0)
    assert followed.seen == 5_000


def test_what_would_not_end_in_time_is_not_begun_and_is_told() -> None:
    now = [0.0]
    limit = TimeLimit(95.0, lambda: now[0])
    begun = []
    for number, seconds in enumerate((10, 30, 30, 30, 30)):
        if limit.allows(f"case {number}"):
            begun.append(number)
            now[0] += seconds
    assert begun == [0, 1, 2]
    assert limit.allows("case 5", needed=True)
    assert limit.notes() == ["Left out, because the time was up: case 3, case 4."]


def test_hosts_are_lost_at_moments_spread_over_the_interval() -> None:
    found = shares(random.Random(1), 4)
    assert [int(moment * 4) for moment in found] == [0, 1, 2, 3]


def test_the_settings_of_a_host_reach_its_process_and_tell_its_role() -> None:
    asked = WordCountSettings.of(Path("home"), 2_000.0, "interval(5s)", pause=0.5).in_role("counts")
    assert WordCountSettings(**json.loads(asked.to_json())) == asked
    assert (asked.epoch_rows, asked.rate) == (1_000, 2_000.0)
    assert asked.options().least_rows == 20_000, "words, not fragments"
    splitter = asked.in_role("split")
    assert (splitter.policy, splitter.options().least_rows) == ("delta", 1_000)
    assert len({asked.events, splitter.events}) == 2
    assert asked.volatile != splitter.volatile


def test_several_losses_are_a_mean_and_the_slowest() -> None:
    row = loss_row([loss(2.0, 3), loss(4.0, 5, kept_up=False)])
    assert (row["recovery_s"], row["recovery_max_s"], row["replayed"], row["kept_up"]) == (3.0, 4.0, 4.0, False)
    assert row["since_checkpoint_s"] == 2.5


# what is made of the figures


def way(rate: float, name: str, recovery: float, wrong: int = 0) -> dict[str, Any]:
    return {"fragments_per_s": rate, "way": name, **loss_row([loss(recovery)]), "wrong_rows": wrong}


def test_recovery_with_state_management_is_compared_at_every_rate_and_by_four_at_the_highest() -> None:
    rows = [way(rate, name, seconds) for rate, ub in ((10.0, 3.0), (99.0, 7.0))
            for name, seconds in (("R+SM", 2.0), ("UB", ub), ("SR", 1.0))]  # fmt: skip
    told = {bar.name: (bar.value, bar.ok) for bar in word_count_recovery.bars(rows)}
    assert told["10/s: UB takes so many times as long as R+SM"] == (1.5, True)
    assert told["99/s: SR takes so many times as long as R+SM"] == (0.5, False)
    assert told["99/s, the highest rate: UB takes so many times as long as R+SM"] == (3.5, False)
    assert told["rows lost or too many, all runs"] == (0, True)


def test_a_way_that_was_left_out_fails_its_bars() -> None:
    bars = word_count_recovery.bars([way(10.0, "R+SM", 2.0, wrong=1)])
    assert not any(bar.ok for bar in bars)


def test_the_longest_interval_is_compared_with_the_shortest() -> None:
    rows = [{**way(10.0, "", seconds), "interval_s": interval} for interval, seconds in ((1, 1.0), (5, 0.9), (10, 3.0))]
    first, last = checkpoint_interval.bars(rows)
    assert (first.value, first.ok, last.ok) == (3.0, True, True)


def test_parallel_recovery_is_judged_at_the_longest_interval() -> None:
    rows = [{**way(10.0, name, seconds), "interval_s": interval}
            for interval, name, seconds in ((2, "serial", 1.0), (2, "parallel", 2.0),
                                            (30, "serial", 6.0), (30, "parallel", 4.0))]  # fmt: skip
    assert parallel_recovery.bars(rows)[0].value == 1.5


def overhead(policy: str, number: int, p95: float, entries: int = 1_000_000) -> dict[str, Any]:
    return {"entries": entries, "fragments_per_s": 500.0, "policy": policy, "round": number, "p50": p95 / 2,
            "p95": p95, "epochs": 9, "checkpoints": 1, "checkpoint_bytes": 5, "state_rows": 7, "state_bytes": 9,
            "kept_up": True}  # fmt: skip


def test_policies_are_compared_within_a_round() -> None:
    told = [overhead(policy, number, noise * p95)
            for number, noise in enumerate((1.0, 5.0, 2.0))
            for policy, p95 in (("none", 0.2), ("interval", 0.21), ("delta", 0.3))]  # fmt: skip
    rows = {row["policy"]: row for row in state_overhead.summed(told)}
    assert rows["interval"]["against_none"] == pytest.approx(1.05)
    assert rows["delta"]["against_none"] == pytest.approx(1.5)
    assert rows["none"]["latency_p95_ms"] == pytest.approx(400.0)
    [bar] = state_overhead.bars(list(rows.values()))
    assert bar.ok


def test_a_trade_off_has_a_row_for_each_interval() -> None:
    measured = LatencyFigures(0.1, 0.2, 9, 2, 3_000_000, 1, 1, kept_up=True)
    rows = interval_tradeoff.merged({5: [measured], 1: [measured]}, {1: loss(1.0), 5: loss(2.0)}, {1: 0, 5: 0})
    assert [row["interval_s"] for row in rows] == [1, 5]
    assert [bar.ok for bar in interval_tradeoff.bars(rows)] == [True, True]


@pytest.mark.parametrize(
    "name", ["word-count-recovery", "checkpoint-interval", "parallel-recovery", "state-overhead", "interval-tradeoff"]
)
def test_the_experiments_are_known(name: str) -> None:
    assert experiment(name).figure.startswith("SEEP, Fig. 1")


# latency


def test_rows_are_due_at_the_rate_behind_those_that_are_there_at_once() -> None:
    now, taken = [100.0], list[DueTake]()
    source = DueSource(fragments(Fragments(10, 4.0)), 4.0, 6, taken.append, lambda: now[0])
    first = source.take(source.start(), 1, 2)
    assert sum(piece.rows for piece in first.slices) == 6
    assert source.take(first.position, 100, 1).slices == ()
    now[0] = 102.0
    second = source.take(first.position, 5, 1)
    third = source.take(second.position, 100, 1)
    assert [sum(piece.rows for piece in take.slices) for take in (second, third)] == [5, 3]
    assert taken == [DueTake(6, 100.0), DueTake(5, 100.0), DueTake(3, 101.25)]
    copy = pickle.loads(pickle.dumps(source))
    assert sum(chunk.frame.height for chunk in copy.read(third.slices[0])) == 3


def test_latency_is_over_rows_and_not_over_epochs() -> None:
    found = Latencies(10.0, [DueTake(90, 10.0), DueTake(10, 19.0)], [19.5, 20.5])
    ends, counts = found.of_rows(10.0, 20.0)
    assert ends == pytest.approx([9.5, 0.6, 1.5, 0.6])
    assert counts == [90, 10]
    assert percentile(ends, counts, 0.95) == pytest.approx(9.0, abs=0.2)
    assert percentile(ends, counts, 0.02) == pytest.approx(0.7, abs=0.1)
    assert percentile([], [], 0.5) is None
    assert found.of_rows(19.0, 20.0)[1] == [10]


@pytest.mark.spark
def test_latency_is_measured_under_a_policy(spark: SparkSession, tmp_path: Path) -> None:
    made = Fragments(400, 200.0, listed=True)
    measured = measure(
        spark, lambda source: word_totals(source, hf.sink.parquet(tmp_path / "out")), fragments(made), rate=200.0,
        ahead=made.listing, policy="interval(0.5s)", seconds=2.0, warm=0.2, home=tmp_path,
    )  # fmt: skip
    assert 0 < measured.p50 <= measured.p95
    assert measured.checkpoints > 0
    assert measured.checkpoint_bytes > 0


@pytest.mark.long  # tests/durability/test_checkpoints.py has its core
@pytest.mark.spark
def test_a_lost_host_comes_back_with_what_its_window_was_made_of(spark: SparkSession, tmp_path: Path) -> None:
    asked = WordCountSettings.of(tmp_path / "host", 20.0, "none", pause=3.0, words=50)
    with WordCountRun(asked, tmp_path / "t", cut=False) as hosts:
        found = hosts.lose(0.1)
        hosts.go_on(1)
    assert found.replayed >= 10, "30 s in epochs of 3 s"
    assert found.recovery >= found.phases["replay"] > 0
    assert wrong_rows(spark, [hosts.settings], tmp_path) == {hosts.settings.home: 0}
