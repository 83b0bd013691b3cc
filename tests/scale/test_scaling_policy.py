"""The detector and the policy under simulated loads: what scales, how far, and that it does not go back and forth."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from simulated import END, Simulation, even_profile

from holdfast.engine.scaling_rules import Scaling
from holdfast.errors import DeclarationError
from holdfast.scale.detector import Streaks, Utilisation, observed
from holdfast.scale.policy import OperatorKind
from holdfast.state.key_load import HeavyKey

HOUR = 3600.0
SCALING = Scaling()


def test_one_report_above_the_threshold_is_no_bottleneck() -> None:
    streaks = Streaks()
    for share, bottlenecks in [(0.8, ()), (0.6, ()), (0.8, ()), (0.71, (1,)), (0.9, (1,)), (0.2, ())]:
        streaks = observed(streaks, Utilisation((0.5, 5 * share), 5.0), SCALING)
        assert streaks.bottlenecks(SCALING) == bottlenecks


def test_another_number_of_partitions_begins_anew() -> None:
    streaks = observed(Streaks((1, 1)), Utilisation((4.0, 4.0, 4.0), 5.0), SCALING)
    assert streaks.above == (1, 1, 1)


def test_reports_just_at_the_threshold_are_not_above_it() -> None:
    assert observed(Streaks(), Utilisation((3.5,), 5.0), SCALING).above == (0,)


@pytest.mark.parametrize(("demand", "partitions"), [(0.6, 1), (0.8, 2), (1.3, 2), (2.0, 3), (5.0, 8)])
def test_an_operator_is_split_until_it_is_under_the_threshold(demand: float, partitions: int) -> None:
    sim = Simulation(lambda at: demand).run(600)
    assert sim.partitions == partitions
    assert demand / sim.partitions <= SCALING.threshold
    assert [change.before < change.partitions for _, change in sim.changes] == [True] * len(sim.changes)


@settings(deadline=None, max_examples=50)
@given(st.floats(0.05, 6), st.floats(0, 0.3), st.integers(0, 1_000), st.integers(1, 9))
def test_a_noisy_constant_load_settles(demand: float, noise: float, seed: int, begin: int) -> None:
    bounds = tuple(n * END // begin for n in range(begin))
    sim = Simulation(lambda at: demand, noise=noise, seed=seed, bounds=bounds, most=12).run(2 * HOUR)
    assert len(sim.changes) <= 8
    assert all(at < HOUR for at, _ in sim.changes[5:])


def test_a_rising_load_is_followed_and_so_is_its_end() -> None:
    def day(at: float) -> float:
        return 0.2 + 5 * max(0.0, math.sin(math.pi * at / (4 * HOUR))) if at < 4 * HOUR else 0.2

    sim = Simulation(day, noise=0.1).run(6 * HOUR)
    counts = [change.partitions for _, change in sim.changes]
    peak = counts.index(max(counts))
    assert max(counts) * SCALING.threshold >= 5.2
    assert counts[: peak + 1] == sorted(counts[: peak + 1])
    assert counts[peak:] == sorted(counts[peak:], reverse=True)
    assert sim.partitions == 1
    assert len(counts) <= 24


def test_a_load_that_swings_is_not_followed_back_and_forth() -> None:
    sim = Simulation(lambda at: 1.0 if at % 40 < 20 else 0.1).run(2 * HOUR)
    assert [change.partitions for _, change in sim.changes] == [2]


def test_nothing_is_decided_right_after_a_change() -> None:
    sim = Simulation(lambda at: 8.0, scaling=Scaling(cooldown=60.0)).run(600)
    times = [at for at, _ in sim.changes]
    assert len(times) > 2
    assert all(later - earlier >= 60 for earlier, later in itertools.pairwise(times))


def test_bounds_on_partitions_hold_and_are_told_once() -> None:
    sim = Simulation(lambda at: 9.0, most=4).run(HOUR)
    assert sim.partitions == 4
    assert ["no more are allowed" in stuck.reason for stuck in sim.stuck] == [True]
    idle = Simulation(lambda at: 0.01, scaling=Scaling(least=2), bounds=tuple(n * END // 6 for n in range(6))).run(HOUR)
    assert idle.partitions == 2


def test_a_hot_key_is_isolated_once_and_named() -> None:
    heavy = (HeavyKey(END // 3, 1_500.0, "user='ann'"),)
    sim = Simulation(lambda at: 1.9, profile=even_profile(1_000.0, heavy)).run(HOUR)
    assert END // 3 in sim.bounds
    assert END // 3 + 1 in sim.bounds
    named = [change for _, change in sim.changes if "user='ann' (60% of the rows)" in change.reason]
    assert len(named) == 1
    assert "cannot be split further" in named[0].reason
    assert ["user='ann', which cannot be split further" in stuck.reason for stuck in sim.stuck] == [True]
    assert len(sim.changes) <= 3


def test_a_skewed_operator_with_all_its_partitions_has_load_moved() -> None:
    bounds = (0, 3 * END // 4, 7 * END // 8)
    sim = Simulation(lambda at: 1.2, bounds=bounds, most=3).run(HOUR)
    [(_, change)] = sim.changes
    assert change.partitions == 3
    assert "moved" in change.reason
    assert sim.bounds[1] == pytest.approx(END / 3, rel=0.05)


def test_tasks_that_read_scale_by_their_number() -> None:
    sim = Simulation(lambda at: 2.5 if at < HOUR else 0.2, kind=OperatorKind.READING).run(2 * HOUR)
    assert [change.partitions for _, change in sim.changes][-1] == 1
    assert max(change.partitions for _, change in sim.changes) == 4
    assert all(change.bounds is None for _, change in sim.changes)


def test_an_operator_without_a_key_is_left_alone_and_told_once() -> None:
    sim = Simulation(lambda at: 2.0, kind=OperatorKind.SINGLE).run(HOUR)
    assert not sim.changes
    assert ["without a key" in stuck.reason for stuck in sim.stuck] == [True]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"report": 0}, "report = 0"),
        ({"threshold": 1.5}, "threshold = 1.5"),
        ({"low": 0.65}, "low = 0.65"),
        ({"reports": 0}, "reports = 0"),
        ({"calm": 0}, "calm = 0"),
        ({"least": 0}, "least = 0"),
        ({"cooldown": -1}, "cooldown = -1"),
        ({"least": 4, "most": 3}, "most = 3"),
    ],
)
def test_settings_that_make_no_sense_are_refused(wrong: dict[str, float], message: str) -> None:
    with pytest.raises(DeclarationError, match=message) as caught:
        Scaling(**wrong)  # type: ignore[arg-type]
    assert caught.value.cure
