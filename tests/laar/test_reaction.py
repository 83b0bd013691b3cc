"""What comes before a controller has seen a change of rates: its share of all tuples, and the room that plans keep."""

from __future__ import annotations

import dataclasses
from fractions import Fraction

from samples import figure_1

from holdfast.laar import HOSTS, Model, RateTrace, reaction_share, read_descriptor
from holdfast.laar.host_strategy import solved_with_room
from holdfast.laar.reaction import expected_trace

SAID = read_descriptor(figure_1())
MODEL = Model(SAID)


def test_what_comes_before_a_change_is_seen_is_a_share_of_all_tuples() -> None:
    """4 and 8 tuples a second; seen after a second, by hosts after 3.5 s upwards and 14 s downwards."""
    trace = RateTrace(((0, 100.0), (1, 50.0)) * 2)
    everything = 200 * 4 + 100 * 8
    assert reaction_share(MODEL, trace) == Fraction(2 * 8 + 4, everything)
    assert reaction_share(MODEL, trace, HOSTS) == (2 * 8 * Fraction(HOSTS.up) + 4 * Fraction(HOSTS.down)) / everything
    assert (HOSTS.up, HOSTS.down) == (3.5, 14.0)


def test_rates_that_do_not_change_are_all_seen() -> None:
    assert reaction_share(MODEL, RateTrace(((0, 10.0), (0, 10.0)))) == 0


def test_the_expected_trace_has_each_configuration_for_its_probability() -> None:
    assert expected_trace(MODEL) == RateTrace(((0, 120.0), (1, 30.0)) * 2)


def test_a_target_that_leaves_no_room_is_kept_without() -> None:
    said = dataclasses.replace(SAID, ic_target=Fraction(13, 20))
    assert solved_with_room(said, 10.0)[0].ic_target == Fraction(13, 20)
    less = dataclasses.replace(SAID, ic_target=Fraction(3, 10))
    assert solved_with_room(less, 10.0)[0].ic_target > Fraction(3, 10)
