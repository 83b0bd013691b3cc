"""Which checkpoint policy costs least."""

from __future__ import annotations

import pytest

from holdfast.durability.policy_choice import choose
from holdfast.errors import DeclarationError
from holdfast.graph.policies import (
    DELTA,
    NONE,
    EventualPolicy,
    IntervalPolicy,
    PolicyFigures,
    as_policy,
    eventual_within,
    strictest,
)

FIVE = IntervalPolicy(5.0)


def measured(written: float, fresh: float, read: float = 0.0, history: float | None = None) -> PolicyFigures:
    return PolicyFigures(5.0, written, fresh, read, history)


def test_state_that_changes_all_the_time_is_written_at_intervals():
    found = choose(measured(written=50e6, fresh=2e6, read=10e6), DELTA, failures_per_hour=1)
    assert found.policy == FIVE
    assert "interval(5 s) costs least" in found.why
    assert "delta 50 MB/s" in found.why


def test_state_that_hardly_changes_is_written_as_it_changes():
    assert choose(measured(written=1e3, fresh=1e3, read=100e6), DELTA, 1).policy == DELTA
    assert choose(measured(written=1e3, fresh=1e3, read=100e6), FIVE, 1).policy == DELTA


def test_what_was_read_a_moment_ago_need_not_be_written():
    assert choose(measured(written=50e6, fresh=20e6, read=10e6, history=30), DELTA, 1).policy == NONE


def test_an_endless_history_is_never_replayed():
    found = choose(measured(written=50e6, fresh=20e6, read=1, history=None), DELTA, 1)
    assert found.policy == FIVE
    assert "none" not in found.costs


def test_hosts_that_fail_often_are_prepared_for():
    figures = measured(written=10e6, fresh=1e6, read=500e6, history=600)
    assert choose(figures, DELTA, failures_per_hour=0.01).policy == NONE
    assert choose(figures, DELTA, failures_per_hour=60).policy == DELTA


def test_a_small_gain_is_not_worth_a_change():
    assert choose(measured(written=1.2e6, fresh=1e6), DELTA, 1).policy == DELTA
    assert choose(measured(written=1.2e6, fresh=1e6), FIVE, 1).policy == FIVE


def test_the_operator_that_asks_for_most_decides():
    assert strictest([NONE, FIVE, IntervalPolicy(2.0)]) == IntervalPolicy(2.0)
    assert strictest([NONE, DELTA]) == DELTA
    assert strictest([]) is None


@pytest.mark.parametrize(
    ("text", "policy"),
    [
        ("delta", DELTA),
        ("none", NONE),
        ("auto", None),
        ("interval(5s)", FIVE),
        ("interval(500 ms)", IntervalPolicy(0.5)),
    ],
)
def test_policies_have_names(text, policy):
    assert as_policy(text) == policy


@pytest.mark.parametrize("text", ["often", "interval", "interval(soon)", "interval(0s)", "interval(-1s)"])
def test_other_names_are_refused(text):
    with pytest.raises(DeclarationError) as caught:
        as_policy(text)
    assert caught.value.cure


def test_a_recovery_time_rules_out_what_takes_longer():
    figures = PolicyFigures(5.0, 50e6, 2e6, 10e6, 30.0, busy=0.5, footprints=20e6, gathering=0.8)
    assert choose(figures, DELTA, 1).policy == NONE
    found = choose(figures, DELTA, 1, recovery=1.0)
    assert found.policy == IntervalPolicy(2.0), "two seconds of input are replayed in one"
    assert "rules out none (15 s)" in found.why
    assert choose(figures, DELTA, 1, recovery=0.1).policy == DELTA, "half a second is the shortest interval"


def test_what_windows_leave_is_chosen_where_it_is_least():
    figures = PolicyFigures(5.0, 50e6, 40e6, 10e6, None, busy=0.9, footprints=5e6, gathering=0.8)
    found = choose(figures, DELTA, 1, recovery=1.0)
    assert found.policy == eventual_within(1.0)
    assert choose(figures, found.policy, 1, recovery=1.0).policy == found.policy
    slow = choose(figures, DELTA, 1, recovery=0.5).policy
    assert not isinstance(slow, EventualPolicy), "it would take 0.8 s"


def test_an_interval_that_keeps_the_time_stays():
    figures = PolicyFigures(5.0, 50e6, 2e6, 10e6, None, busy=0.5)
    assert choose(figures, IntervalPolicy(1.5), 1, recovery=1.0).policy == IntervalPolicy(1.5)
    assert choose(figures, IntervalPolicy(3.0), 1, recovery=1.0).policy == IntervalPolicy(2.0)
