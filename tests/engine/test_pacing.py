"""The pacer: epochs near the target, always within their bounds."""

from __future__ import annotations

import random

import pytest

from holdfast.engine.pacing import Pacer


@pytest.mark.parametrize("seed", range(30))
def test_rows_stay_within_bounds_whatever_is_measured(seed):
    chance = random.Random(seed)
    least, most = chance.choice([(1, 1), (20_000, 1_000_000_000), (10, 5_000)])
    pacer = Pacer(chance.choice([0.05, 1.0, 30.0]), least, most)
    for _ in range(100):
        before = pacer.rows
        pacer.measured(
            int(chance.choice([0, -1, 1, before, before / 3, 10**10])), chance.choice([0.0, -1.0, 1e-9, 0.5, 1e6])
        )
        assert least <= pacer.rows <= most
        assert isinstance(pacer.rows, int)
        assert pacer.rows <= max(least, before * 4), "no epoch is many times larger than the one before"


@pytest.mark.parametrize("speed", [1_000, 500_000, 80_000_000])
def test_a_steady_speed_brings_epochs_of_the_target(speed):
    pacer = Pacer(0.5, 100, 10**9)
    for _ in range(40):
        pacer.measured(pacer.rows, pacer.rows / speed)
    assert pacer.rows == pytest.approx(0.5 * speed, rel=0.01)


def test_a_slow_epoch_makes_the_next_ones_smaller():
    pacer = Pacer(1.0, 100, 10**9, rows=1_000_000)
    pacer.measured(1_000_000, 10.0)
    assert pacer.rows == 100_000


def test_a_source_with_little_to_give_does_not_shrink_the_epochs():
    pacer = Pacer(1.0, 100, 10**9, rows=1_000_000)
    pacer.measured(10, 1.0)
    assert pacer.rows == 1_000_000
