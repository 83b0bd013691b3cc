"""The rate of input, as epochs tell it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.replica.rates import EpochIntake, RateMonitor


def test_nothing_is_known_before_two_epochs() -> None:
    monitor = RateMonitor(0.0)
    assert monitor.rates(0.0) is None
    monitor.took(EpochIntake(0.0, 5, 0))
    assert monitor.rates(1.0) is None


def test_a_source_that_gives_nothing_has_a_rate() -> None:
    monitor = RateMonitor(100.0)
    assert monitor.rates(103.0) is None
    assert monitor.rates(110.0) == (0.0, 0.0)
    monitor.took(EpochIntake(110.0, 5, 0))
    assert monitor.rates(120.0) == (0.25, 0.0)


@given(
    st.floats(0.05, 3.0), st.floats(1.0, 1e6), st.lists(st.floats(0.8, 1.2), min_size=40, max_size=40)
)  # fmt: skip
def test_a_steady_rate_is_seen_whatever_the_epochs_are(every: float, rate: float, jitter: list[float]) -> None:
    monitor, now = RateMonitor(0.0), 0.0
    monitor.took(EpochIntake(now, 0, 0))
    for part in jitter:
        now += every * part
        monitor.took(EpochIntake(now, 0, 0) if not rate else EpochIntake(now, round(rate * every * part * 1000), 7))
    seen = monitor.rates(now + every)
    assert seen is not None
    assert seen[0] == pytest.approx(1000 * rate, rel=0.02, abs=20)


def test_a_change_is_seen_within_the_window() -> None:
    monitor = RateMonitor(0.0, window=2.0)
    for tick in range(20):
        monitor.took(EpochIntake(0.5 * tick, 2, 0))
    for tick in range(20, 25):
        monitor.took(EpochIntake(0.5 * tick, 4, 0))
    seen = monitor.rates(12.2)
    assert seen is not None
    assert seen[0] == pytest.approx(8.0)


def test_silence_lets_the_rate_fall() -> None:
    monitor = RateMonitor(0.0, window=2.0)
    for tick in range(10):
        monitor.took(EpochIntake(float(tick), 10, 20))
    assert monitor.rates(10.0) == (10.0, 20.0)
    later = monitor.rates(30.0)
    assert later is not None
    assert later[0] < 1.5


def overloaded(offered: float, capacity: float, seconds: int, every: float = 1.0) -> RateMonitor:
    """Epochs that take no more than they can; the rest waits."""
    monitor, waiting, now = RateMonitor(0.0), 0.0, 0.0
    while now < seconds:
        now += every
        waiting += offered * every
        taken = min(waiting, capacity * every)
        waiting -= taken
        monitor.took(EpochIntake(now, round(taken * 1_000), 0))
        monitor.waits(now + 0.9 * every, round((waiting + 0.9 * offered * every) * 1_000))
    return monitor


@pytest.mark.parametrize("every", [0.25, 1.0])
def test_a_rate_that_is_more_than_can_be_taken_is_seen_by_what_waits(every: float) -> None:
    """At High a plan for Low takes hardly more than at Low, so nobody would ever know."""
    monitor = overloaded(8.0, 4.1, 8, every)
    assert monitor._taken(8.0) == (pytest.approx(4_100, rel=0.01), 0.0)
    assert monitor.rates(8.0) == (pytest.approx(8_000, rel=0.02), 0.0)


@given(st.lists(st.floats(0.8, 1.2), min_size=40, max_size=40))
def test_what_waits_for_the_next_epoch_is_no_overload(jitter: list[float]) -> None:
    monitor, now = RateMonitor(0.0), 0.0
    for part in jitter:
        now += part
        monitor.took(EpochIntake(now, round(1_000 * part), 0))
        monitor.waits(now, round(1_500 * part))
        rates, taken = monitor.rates(now), monitor._taken(now)
        assert rates == taken


def test_what_waited_before_an_input_fell_silent_is_no_rate() -> None:
    monitor = overloaded(8.0, 4.1, 8)
    seen = monitor.rates(60.0)
    assert seen is not None
    assert seen[0] < 1_000
