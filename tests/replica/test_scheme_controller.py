"""The controller: the cheapest scheme that keeps the guarantee, with as few moves as that takes, and told why."""

from __future__ import annotations

import itertools
import time
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import DeclarationError
from holdfast.graph.guarantee import Delivery, Guarantee
from holdfast.replica.fragment_metrics import FragmentMetrics
from holdfast.replica.margins import ControllerMargins
from holdfast.replica.prediction import RecoveryCalibration, costs, transition_seconds
from holdfast.replica.scheme_controller import (
    ControllerEvent,
    Diverged,
    GuaranteeChanged,
    HostJoined,
    HostLost,
    Measurement,
    Notice,
    Reached,
    RecoveryObserved,
    SchemeController,
    SchemeStep,
    decide,
    forecast_of,
)
from holdfast.replica.schemes import Scheme, wheel
from holdfast.replica.schemes.active_replication import ACTIVE_REPLICATION
from holdfast.replica.schemes.active_standby import ACTIVE_STANDBY
from holdfast.replica.schemes.cold_standby import COLD_STANDBY
from holdfast.replica.schemes.deployed import DEPLOYED
from holdfast.replica.schemes.hot_standby import HOT_STANDBY
from holdfast.replica.schemes.passive_replication import PASSIVE_REPLICATION
from holdfast_lab.simulate.loads import DAY, Load, limited, trace
from holdfast_lab.simulate.simulated_load import Broken, LoadRun, measured_at, run_load
from strategies import FUZZ, examples, long_cases

CALM = FragmentMetrics(
    state_bytes=1e7,
    rows_per_second=1e4,
    replay_rows_per_second=2e6,
    load_bytes_per_second=2e8,
    utilisation=0.02,
    changed_bytes_per_second=1e4,
)
BUSY = replace(CALM, state_bytes=4e9, rows_per_second=1e6, utilisation=0.9, changed_bytes_per_second=1e6)


def _run(
    state: SchemeController, *events: ControllerEvent, settle: bool = True
) -> tuple[SchemeController, list[SchemeStep | Notice]]:
    """After the events, and after every step that was asked for was reached."""
    told: list[SchemeStep | Notice] = []
    waiting = list(events)
    while waiting:
        event = waiting.pop(0)
        state, actions = decide(state, event)
        told += actions
        moves = [action for action in actions if isinstance(action, SchemeStep)]
        if settle:
            waiting = [Reached(event.at, move.to) for move in moves] + waiting
    return state, told


def _started(guarantee: Guarantee, seen: FragmentMetrics = CALM) -> tuple[SchemeController, list[SchemeStep | Notice]]:
    return _run(SchemeController(guarantee), HostJoined(0, "a"), HostJoined(0, "b"), Measurement(0, seen))


@pytest.mark.parametrize(
    ("recovery", "scheme"),
    [
        (60.0, PASSIVE_REPLICATION),
        (3.5, DEPLOYED),
        (1.8, COLD_STANDBY),
        (1.62, ACTIVE_STANDBY),
        (1.5, ACTIVE_REPLICATION),  # a failure is noticed after a second, and an epoch takes half of one
        (0.6, ACTIVE_REPLICATION),
    ],
)
def test_the_cheapest_scheme_that_keeps_the_guarantee(recovery: float, scheme: Scheme) -> None:
    state, told = _started(Guarantee(recovery=recovery))
    assert state.scheme is state.target is scheme
    assert all(isinstance(action, SchemeStep) for action in told)


def test_without_a_guarantee_nothing_is_kept_ready() -> None:
    state, told = _started(Guarantee())
    assert state.scheme is PASSIVE_REPLICATION
    assert told == []


def test_moves_go_step_by_step_and_wait_for_each() -> None:
    state, told = _run(
        SchemeController(Guarantee(recovery=1.8)),
        HostJoined(0, "a"),
        HostJoined(0, "b"),
        Measurement(0, CALM),
        settle=False,
    )
    assert [action.to for action in told if isinstance(action, SchemeStep)] == [DEPLOYED]
    state, told = _run(state, Measurement(10, CALM), Measurement(20, CALM), settle=False)
    assert told == []
    state, told = _run(state, Reached(21, DEPLOYED), settle=False)
    assert [action.to for action in told if isinstance(action, SchemeStep)] == [COLD_STANDBY]


def test_up_at_once_and_down_after_a_calm_time() -> None:
    state, _ = _started(Guarantee(recovery=3.5))
    state, told = _run(state, Measurement(10, BUSY))
    up = state.scheme
    assert wheel.rank(up) < wheel.rank(DEPLOYED)
    calm = state.margins.calm
    for at in range(20, int(20 + calm), 10):
        state, told = _run(state, Measurement(at, CALM))
        assert state.scheme is up
        assert told == []
    state, told = _run(state, Measurement(20 + calm, CALM))
    assert state.scheme is DEPLOYED
    assert "safe for 15 min" in told[0].reason


def test_every_decision_has_its_figures() -> None:
    _, told = _started(Guarantee(recovery=3.5), BUSY)
    reason = told[0].reason
    assert "4000.0 MB of state and 1000000 rows/s" in reason
    assert "3.50 s are required" in reason
    assert "passive replication may reach" in reason


def test_with_one_host_nothing_can_be_kept_ready() -> None:
    state, told = _run(SchemeController(Guarantee(recovery=2.5)), HostJoined(0, "a"), Measurement(0, CALM))
    assert state.scheme is PASSIVE_REPLICATION
    assert "breaks the guarantee" in told[0].reason
    assert "there is 1 host" in told[0].reason
    state, told = _run(state, Measurement(10, CALM))
    assert told == []  # said once
    state, told = _run(state, HostJoined(20, "b"))
    assert state.scheme is DEPLOYED


def test_a_host_that_is_lost_leaves_its_scheme_to_who_comes() -> None:
    """There is nobody to take a step, and who joins is made what the scheme says."""
    state, _ = _started(Guarantee(recovery=1.8))
    state, told = _run(state, HostLost(10, "b"))
    assert state.scheme is COLD_STANDBY
    assert state.possible == (PASSIVE_REPLICATION,)
    [said] = told
    assert isinstance(said, Notice)
    assert "passive replication recovers in" in said.reason
    assert "breaks the guarantee; there is 1 host" in said.reason
    state, told = _run(state, Measurement(20, BUSY), Measurement(30, CALM))
    assert told == []
    state, told = _run(state, HostJoined(40, "c"), Measurement(50, CALM))
    assert state.scheme is COLD_STANDBY
    state, told = _run(state, Measurement(60, BUSY))
    assert wheel.rank(state.scheme) < wheel.rank(COLD_STANDBY)


def test_a_step_is_not_waited_for_when_its_host_is_lost() -> None:
    state, _ = _started(Guarantee(recovery=1.8))
    state, _ = _run(state, Measurement(10, BUSY), settle=False)
    assert state.stepping is HOT_STANDBY
    state, told = _run(state, HostLost(20, "b"), settle=False)
    assert not any(isinstance(action, SchemeStep) for action in told)
    state, told = _run(state, HostJoined(30, "b"), settle=False)
    assert [(move.scheme, move.to) for move in told if isinstance(move, SchemeStep)] == [(HOT_STANDBY, ACTIVE_STANDBY)]


def test_a_host_of_three_that_is_lost_changes_nothing() -> None:
    state, _ = _started(Guarantee(recovery=1.8))
    state, told = _run(state, HostJoined(10, "c"), HostLost(20, "b"))
    assert (state.scheme, state.hosts, told) == (COLD_STANDBY, ("a", "c"), [])


def test_over_the_budget_the_fastest_that_can_be_paid_and_it_is_said() -> None:
    state, told = _started(Guarantee(recovery=1.8, budget=0.01), BUSY)
    assert state.scheme is PASSIVE_REPLICATION
    assert "which breaks the guarantee; no faster one is within the budget of 0.010/h" in told[-1].reason
    state, told = _run(state, GuaranteeChanged(10, Guarantee(recovery=1.8, budget=4.0)))
    assert state.scheme is ACTIVE_STANDBY


def test_gap_recovery_needs_less() -> None:
    precise, _ = _started(Guarantee(recovery=2.5), replace(CALM, rows_per_second=1e6))
    gap, _ = _started(Guarantee(recovery=2.5, delivery=Delivery.GAP), replace(CALM, rows_per_second=1e6))
    assert wheel.rank(gap.scheme) > wheel.rank(precise.scheme)


def test_recoveries_that_take_longer_lead_to_a_faster_scheme() -> None:
    state, _ = _started(Guarantee(recovery=3.5))
    state, told = _run(state, RecoveryObserved(10, DEPLOYED, 4.0))
    assert wheel.rank(state.scheme) < wheel.rank(DEPLOYED)
    assert isinstance(told[0], SchemeStep)


def test_replicas_that_differ_do_not_process_twice() -> None:
    state, _ = _started(Guarantee(recovery=1.62))
    assert state.scheme is ACTIVE_STANDBY
    state, told = _run(state, Diverged(10, "b", 7))
    assert state.scheme is HOT_STANDBY
    assert "b differed in epoch 7" in told[0].reason
    assert "not deterministic" in told[0].reason


@pytest.mark.parametrize("recovery", [0.12, 0.03])
def test_a_step_that_differing_replicas_cannot_take_is_turned_around(recovery: float) -> None:
    """Nobody enlists for a scheme in which both process after a divergence: it is never reported to be reached."""
    state, _ = _started(Guarantee(recovery=3.5))
    state, told = _run(state, GuaranteeChanged(10, Guarantee(recovery=recovery)), settle=False)
    while state.stepping is not ACTIVE_STANDBY:
        assert state.stepping is not None
        state, _ = _run(state, Reached(10, state.stepping), settle=False)
    state, told = _run(state, Diverged(11, "b", 7), settle=False)
    assert [(move.scheme, move.to) for move in told if isinstance(move, SchemeStep)] == [(ACTIVE_STANDBY, HOT_STANDBY)]
    assert "b differed in epoch 7" in told[0].reason


def test_a_step_that_differing_replicas_can_take_is_waited_for() -> None:
    state, _ = _started(Guarantee(recovery=1.8))
    state, _ = _run(state, GuaranteeChanged(10, Guarantee(recovery=0.6)), settle=False)
    assert state.stepping is HOT_STANDBY
    state, told = _run(state, Diverged(11, "b", 7), settle=False)
    assert (state.stepping, told) == (HOT_STANDBY, [])


@pytest.mark.parametrize("wrong", [{"recovery": 0.0}, {"recovery": -1.0}, {"budget": -0.1}])
def test_a_guarantee_that_cannot_be_meant(wrong: dict[str, float]) -> None:
    with pytest.raises(DeclarationError):
        Guarantee(**wrong)  # type: ignore[arg-type]


EVERY = 30.0
MOMENT = 10.0
MARGINS = ControllerMargins(report=EVERY)


def _avoidable(run: LoadRun, guarantee: Guarantee, factor: float) -> list[Broken]:
    """When the guarantee was not kept though a scheme was to be had that keeps it: it had kept it, within the budget
    and with what measurements are off by, ever since a report that leaves time to reach it. For `calm` seconds after a
    scheme was left because it cost too much, that is one that keeps it with what the controller looks ahead by."""
    found = []
    for broken in run.broken:
        here = next(number for number, sample in enumerate(run.samples) if sample.load.at == broken.at)
        state = run.samples[here].state
        truth = measured_at(run.samples[here].load)
        retreated = broken.at - state.retreated_at < MARGINS.calm + EVERY
        outlook = forecast_of(state, truth)
        for scheme in wheel.SCHEMES:
            margin = (1 + MARGINS.noise) ** 2 * (outlook.growth[scheme] * MARGINS.slack if retreated else 1)
            since = broken.at - EVERY - transition_seconds(broken.scheme, scheme, truth)
            window = itertools.takewhile(lambda sample, since=since: sample.load.at >= since, run.samples[here::-1])
            if all(_keeps(scheme, sample.load, guarantee, factor, margin) for sample in window):
                found.append(replace(broken, better=scheme))
    return found


def _keeps(scheme: Scheme, load: Load, guarantee: Guarantee, factor: float, margin: float) -> bool:
    truth, bound, budget = measured_at(load), guarantee.recovery_seconds, guarantee.budget
    seconds = (
        RecoveryCalibration(dict.fromkeys(wheel.SCHEMES, factor))
        .seconds(truth, precise=guarantee.precise)[scheme]
        .at(margin)
    )
    money = costs(truth, MARGINS.prices)[scheme].at(margin)
    return (bound is None or seconds <= bound) and (budget is None or money <= budget)


@examples(8)
@given(
    st.integers(0, 10**6),
    st.sampled_from([0.8, 1.7, 2.0, 2.5, 3.5, 6.5, 20.0]),
    st.booleans(),
    st.sampled_from([None, 0.1, 0.5, 5.0]),
    st.sampled_from([0.7, 1.0, 1.5]),
)
def test_the_guarantee_is_never_broken_while_a_scheme_keeps_it(
    seed: int, recovery: float, gap: bool, budget: float | None, factor: float
) -> None:
    """By how much recoveries take longer than predicted is known to begin with: nobody can know before one happens."""
    delivery = Delivery.GAP if gap else Delivery.EXACTLY_ONCE
    guarantee = Guarantee(recovery=recovery, delivery=delivery, budget=budget)
    learnt = RecoveryCalibration(dict.fromkeys(wheel.SCHEMES, factor))
    loads = limited(trace(seed, every=MOMENT), MARGINS.growth)
    run = run_load(loads, guarantee, MARGINS, seed=seed, factor=factor, learnt=learnt)
    assert _avoidable(run, guarantee, factor) == []
    if budget is None:
        assert run.broken == []
        assert run.hopeless == 0
    assert len(run.said) <= 4 * DAY / MARGINS.calm
    assert run.turns <= 2 * DAY / MARGINS.calm
    assert run.money <= run.dearest


@pytest.mark.parametrize(("seed", "recovery"), [(1, 1.7), *long_cases((1, 2.5), (4, 1.7))])
def test_a_recovery_that_was_fast_by_chance_takes_no_margin_away(seed: int, recovery: float) -> None:
    """With the load of the experiment `controller`; the guarantee was broken by some milliseconds, when the load rose
    after a recovery that was measured as 4 % shorter than predicted."""
    margins = ControllerMargins(report=MOMENT)
    loads = [each for each in limited(trace(seed, every=MOMENT), margins.growth) if each.at < 52_000]
    assert run_load(loads, Guarantee(recovery=recovery), margins, seed=seed).broken == []


@pytest.mark.parametrize("recovery", [1.7, *long_cases(2.0, 2.5)])
def test_the_guarantee_is_kept_where_noticing_and_the_rhythm_are_measured_as_too_short(recovery: float) -> None:
    loads = [each for each in limited(trace(4, every=EVERY), MARGINS.growth) if each.at > 30_000]
    run = run_load(loads, Guarantee(recovery=recovery), MARGINS, seed=4, varying=0.05, warm=30_120)
    assert run.broken == []
    assert run.money <= run.dearest


@pytest.mark.parametrize("part", ["rhythm_seconds", "detection_seconds", "commit_seconds", "connect_seconds"])
def test_a_part_of_the_gap_that_varies_leads_to_a_faster_scheme(part: str) -> None:
    calm, _ = _started(Guarantee(recovery=1.8))
    assert calm.target is COLD_STANDBY
    varying, told = _started(Guarantee(recovery=1.8), replace(CALM, spreads={part: 0.1}))
    assert wheel.rank(varying.target) < wheel.rank(COLD_STANDBY)
    assert any("recovers in" in each.reason for each in told)


def test_noticing_may_vary_where_nothing_has_to_be_noticed() -> None:
    state, _ = _started(Guarantee(recovery=0.7), replace(CALM, spreads={"detection_seconds": 5.0}))
    assert state.target is ACTIVE_REPLICATION
    forecast = forecast_of(state, replace(CALM, spreads={"detection_seconds": 5.0}))
    assert forecast.cautious[ACTIVE_REPLICATION] == forecast.seconds[ACTIVE_REPLICATION]


def test_a_load_that_jumps_is_followed_as_fast_as_the_wheel_turns() -> None:
    jump = 6 * 3600.0
    loads = [Load(at * EVERY, 1e4 if at * EVERY < jump else 1e6, 1e7) for at in range(int(DAY / EVERY))]
    run = run_load(loads, Guarantee(recovery=2.0), MARGINS, failures_per_day=0)
    assert all(jump <= violation.at <= jump + EVERY for violation in run.broken)
    assert run.turns <= 1


@pytest.mark.parametrize("noise", [0.0, 0.05])
def test_a_load_that_stays_is_left_alone(noise: float) -> None:
    for rows in (1e4, 2e5, 1e6):
        loads = [Load(at * EVERY, rows, 1e8) for at in range(int(DAY / 4 / EVERY))]
        run = run_load(loads, Guarantee(recovery=2.5), replace(MARGINS, noise=noise), failures_per_day=0)
        assert run.turns <= 1
        assert all(at < 2 * MARGINS.calm for at, _ in run.moves)


def test_it_saves_money_where_the_guarantee_allows() -> None:
    run = run_load(limited(trace(3, every=EVERY), MARGINS.growth), Guarantee(recovery=20.0), MARGINS)
    assert run.money < 0.9 * run.dearest


def test_a_day_takes_seconds() -> None:
    """Of this process, whatever else the machine does; it takes about half of one."""
    days = 2 * max(1, FUZZ)
    began = time.process_time()
    run = run_load(limited(trace(7, days=days, every=EVERY), MARGINS.growth), Guarantee(recovery=2.5), MARGINS)
    took = time.process_time() - began
    assert sum(run.seconds.values()) > 0.95 * days * DAY
    assert took / days < 10.0
