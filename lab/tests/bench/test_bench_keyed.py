"""What the benchmarks of keyed state make of the epochs they saw."""

from __future__ import annotations

import numpy as np
import pytest
from test_bench_figures import report

from holdfast_lab.bench.bench_figures import Meter
from holdfast_lab.bench.keyed_scale import ScatteredKeys, keyed_bars
from holdfast_lab.bench.memory_watch import memory_now, processor_seconds
from holdfast_lab.bench.repartition import EpochMark, measure_changes


def marks() -> list[EpochMark]:
    """Epochs of 100 rows and a second; the first one with four partitions takes 0.4 s longer, then merges slow down."""
    at, found = 0.0, []
    for number in range(40):
        at += 1.4 if number == 20 else 1.25 if 22 <= number < 30 else 1.0
        found.append(EpochMark(100, at, 2 if number < 20 else 4, 22 <= number < 30, 0 if number < 30 else 3))
    return found


def test_a_pause_is_what_the_longest_gap_around_a_change_is_beyond_the_usual() -> None:
    [change] = measure_changes(marks())
    assert change.partitions == (2, 4)
    assert change.pause == pytest.approx(0.4)
    assert change.before == pytest.approx(100)
    assert change.compacting is not None
    assert 80 <= change.compacting < 90
    assert change.after == pytest.approx(100)
    assert change.merges == 3


def test_the_first_rows_bring_every_key_once_and_the_rest_any() -> None:
    rows = ScatteredKeys(1_000)
    first = rows(0, 1_000)["key"].to_list()
    assert sorted(first) == list(range(1_000))
    later = rows(1_000, 101_000)["key"].to_numpy()
    assert 0 <= later.min() <= later.max() < 1_000
    assert np.bincount(later, minlength=1_000).min() > 40
    assert rows(500, 1_500).equals(rows(0, 2_000).slice(500, 1_000)), "a function of the row's number alone"


def test_the_warm_up_lasts_until_the_state_has_its_size() -> None:
    meter = Meter(1.0, warm_epochs=2, warm_rows=250, patience=1_000.0)
    for number in range(1, 8):
        meter.epoch_committed(report(number, 100, number - 1.0, float(number)))
    assert meter.warm == 5, "three epochs bring 250 rows, and two more count"


def test_a_million_and_ten_million_keys_have_a_bar_to_reach() -> None:
    [reached] = keyed_bars(1_000_000, 2_000_000.0)
    assert reached["ok"]
    assert reached["value"] == reached["bar"]
    [missed] = keyed_bars(10_000_000, 1_199_000.0)
    assert not missed["ok"]
    assert keyed_bars(1_000, 1.0) == []


def test_memory_and_processor_time_are_those_of_this_process_and_below() -> None:
    assert memory_now().driver > 10_000_000
    assert 0 < processor_seconds() < 1e6
