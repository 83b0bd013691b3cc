"""The HA controller: which configuration it keeps to, and what it commands."""

from __future__ import annotations

import random
import time

from hypothesis import given
from hypothesis import strategies as st
from samples import figure_1

from holdfast.laar import ActivationCommand, ConfigIndex, Hysteresis, RateController, Strategy, read_descriptor
from holdfast.laar.rate_controller import ON_HOSTS

SAID = read_descriptor(figure_1())
STRATEGY = Strategy((((1, 1), (1, 1)), ((1, 0), (0, 1))), ((0, 1), (0, 1)))
LOW, HIGH = 0, 1


def many(count: int, sources: int) -> ConfigIndex:
    rng = random.Random(count)
    names = [f"s{i}" for i in range(sources)]
    configs = [
        {"name": f"c{c}", "prob": f"1/{count}", "rates": [rng.randint(1, 50) for _ in names]} for c in range(count)
    ]
    edge = {"from": "s0", "to": "pe1", "selectivity": 1, "cost": 1}
    return ConfigIndex(
        read_descriptor(figure_1(sources=names, pes=["pe1"], configs=configs, edges=[edge], placement=[[0, 1]]))
    )


def test_the_smallest_configuration_that_dominates_is_chosen() -> None:
    index = ConfigIndex(SAID)
    assert [index.smallest([rate]) for rate in (0, 4, 4.001, 8)] == [LOW, LOW, HIGH, HIGH]


def test_beyond_all_configurations_it_is_the_greatest() -> None:
    assert ConfigIndex(SAID).smallest([9]) == HIGH


def test_the_index_agrees_with_looking_at_all_configurations() -> None:
    index, rng = many(300, 3), random.Random(1)
    rates = index._rates.tolist()
    for _ in range(200):
        measured = [rng.uniform(0, 60) for _ in range(3)]
        above = [c for c, row in enumerate(rates) if all(r >= m for r, m in zip(row, measured, strict=True))]
        found = index.smallest(measured)
        if above:
            distances = {c: sum((r - m) ** 2 for r, m in zip(rates[c], measured, strict=True)) for c in above}
            assert distances[found] <= min(distances.values()) * (1 + 1e-12)
        else:
            assert sum(rates[found]) == max(sum(row) for row in rates)


def test_hundreds_of_configurations_are_answered_in_less_than_a_millisecond() -> None:
    index = many(900, 5)
    best = float("inf")
    for _ in range(20):
        started = time.perf_counter()
        index.smallest([10.0] * 5)
        best = min(best, time.perf_counter() - started)
    assert best < 0.001


def test_it_starts_with_the_greatest_configuration_and_activates_first() -> None:
    controller = RateController(SAID, STRATEGY)
    assert controller.config == HIGH
    assert [command.active for command in controller.start()] == [True, True, False, False]


def test_down_after_several_calm_measurements_and_up_at_once() -> None:
    controller = RateController(SAID, STRATEGY, Hysteresis(measurements=3))
    assert controller.measured([4]) == []
    assert controller.measured([3]) == []
    assert controller.measured([4]) == [ActivationCommand(0, 1, True), ActivationCommand(1, 0, True)]
    assert controller.config == LOW
    assert controller.measured([8]) == [ActivationCommand(0, 1, False), ActivationCommand(1, 0, False)]
    assert controller.config == HIGH


def test_one_high_measurement_ends_the_calm() -> None:
    controller = RateController(SAID, STRATEGY, Hysteresis(measurements=2))
    assert [controller.measured([rate]) for rate in (4, 5, 4, 5, 4)] == [[]] * 5
    assert controller.config == HIGH


def test_noise_within_the_tolerance_does_not_move_it() -> None:
    controller = RateController(SAID, STRATEGY, Hysteresis(tolerance=0.05, measurements=1))
    controller.measured([4])
    assert controller.measured([4.1]) == []
    assert controller.config == LOW
    assert controller.measured([4.3])
    assert controller.config == HIGH


def test_rates_beyond_all_configurations_command_nothing_new() -> None:
    controller = RateController(SAID, STRATEGY)
    assert controller.measured([100]) == []
    assert controller.config == HIGH


def test_rates_that_waver_around_those_of_a_configuration_lead_to_it() -> None:
    """As measured on a busy machine, where 4 tuples/s came and epochs began early and late: one in two measurements is
    above what is taken for noise, and their mean is not."""
    controller = RateController(SAID, STRATEGY, ON_HOSTS)
    moves = [bool(controller.measured([rate])) for rate in (3.72, 4.43, 4.48, 3.93, 3.54)]
    assert moves == [False] * 4 + [True]
    assert controller.config == LOW


@given(st.lists(st.floats(4.5, 8.0), min_size=1, max_size=30))
def test_rates_that_a_configuration_does_not_do_for_never_lead_to_it(rates: list[float]) -> None:
    controller = RateController(SAID, STRATEGY, ON_HOSTS)
    for rate in rates:
        assert not controller.measured([rate])


@given(st.lists(st.floats(0.0, 8.0), max_size=20), st.integers(0, 20))
def test_a_controller_that_goes_on_for_another_decides_what_that_would_have(rates: list[float], at: int) -> None:
    alone = RateController(SAID, STRATEGY, ON_HOSTS)
    first = RateController(SAID, STRATEGY, ON_HOSTS)
    for number, rate in enumerate(rates):
        if number == at:
            first = RateController(SAID, STRATEGY, ON_HOSTS, first.config, first.recent, first.above)
        alone.measured([rate])
        first.measured([rate])
        assert first.config == alone.config
