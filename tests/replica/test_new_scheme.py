"""A scheme that only these tests have: one value and one place on the wheel are all it takes.

Its secondary keeps the state like a cold standby, but copies it only every few seconds.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from holdfast.cli.group import main
from holdfast.engine.roles import Role
from holdfast.errors import InvalidTransitionError
from holdfast.graph.guarantee import Guarantee
from holdfast.meta import MetaStore
from holdfast.replica.fragment_metrics import FragmentMetrics
from holdfast.replica.keeper import Keeper, Timing
from holdfast.replica.membership import FragmentPlace
from holdfast.replica.prediction import Prices, RecoveryCalibration, recovery_cost, recovery_seconds, transition_seconds
from holdfast.replica.scheme_change import is_reached, named, turn_to
from holdfast.replica.scheme_controller import (
    HostJoined,
    Measurement,
    Reached,
    SchemeController,
    SchemeStep,
    decide,
)
from holdfast.replica.scheme_report import explained
from holdfast.replica.schemes import Scheme, wheel
from holdfast.replica.schemes.abilities import HAS_PROGRAM, HAS_SESSION, HAS_STATE, Ability, Usage
from holdfast.replica.schemes.cold_standby import COLD_STANDBY
from holdfast.replica.schemes.deployed import DEPLOYED
from holdfast.replica.schemes.passive_replication import PASSIVE_REPLICATION
from holdfast.replica.schemes.phases import Replay, connect_downstream, connect_upstream, replay_seconds
from holdfast.replica.seat_store import Agreement
from holdfast.replica.seats import Beat, Enlist, Seize
from holdfast.replica.supervisor import described

EVERY = 5.0


def replay_since_copy(metrics: FragmentMetrics, replay: Replay) -> float:
    return replay_seconds(metrics, replay, EVERY)


COPIES_STATE = Ability(
    "the primary's state, copied every five seconds",
    lambda metrics: Usage(network=metrics.written_bytes_per_second(EVERY)),
)

LAZY_STANDBY = Scheme(
    name="passive standby lazy",
    summary="the secondary copies the state every five seconds",
    role=Role.COLD,
    abilities=(HAS_SESSION, HAS_PROGRAM, HAS_STATE, COPIES_STATE),
    recovery=(connect_downstream, connect_upstream, replay_since_copy),
)

METRICS = FragmentMetrics(
    state_bytes=2e7,
    rows_per_second=1e5,
    replay_rows_per_second=2e6,
    load_bytes_per_second=2e8,
    utilisation=0.2,
    checkpoint_seconds=30.0,
    sync_seconds=1.0,
)


@pytest.fixture(autouse=True)
def _on_the_wheel(monkeypatch: pytest.MonkeyPatch) -> None:
    at = wheel.rank(DEPLOYED)
    monkeypatch.setattr(wheel, "SCHEMES", (*wheel.SCHEMES[:at], LAZY_STANDBY, *wheel.SCHEMES[at:]))


def test_its_neighbours_are_those_beside_it_on_the_wheel() -> None:
    assert [scheme for scheme in wheel.SCHEMES if wheel.is_step(LAZY_STANDBY, scheme)] == [COLD_STANDBY, DEPLOYED]
    assert wheel.path(COLD_STANDBY, DEPLOYED) == (LAZY_STANDBY, DEPLOYED)
    with pytest.raises(InvalidTransitionError) as raised:
        wheel.check_step(DEPLOYED, COLD_STANDBY)
    assert raised.value.cure == "go deployed → passive standby lazy → passive standby cold"


def test_it_is_predicted_between_its_neighbours() -> None:
    cold, lazy, deployed = (recovery_seconds(scheme, METRICS) for scheme in (COLD_STANDBY, LAZY_STANDBY, DEPLOYED))
    assert cold < lazy < deployed
    prices = Prices()
    dear, cheap = (recovery_cost(scheme, METRICS, prices).network for scheme in (COLD_STANDBY, LAZY_STANDBY))
    assert dear == pytest.approx(EVERY / METRICS.sync_seconds * cheap)
    learned = RecoveryCalibration().observed(LAZY_STANDBY, 1.0, 2.0)
    assert RecoveryCalibration.from_json(learned.to_json()) == learned
    assert learned.seconds(METRICS)[LAZY_STANDBY].at(1.0) == pytest.approx(2 * lazy)


def test_a_step_takes_what_its_new_abilities_take() -> None:
    loads = METRICS.program_seconds + METRICS.state_bytes / METRICS.load_bytes_per_second
    assert transition_seconds(DEPLOYED, LAZY_STANDBY, METRICS) == pytest.approx(METRICS.connect_seconds + loads)
    assert transition_seconds(LAZY_STANDBY, COLD_STANDBY, METRICS) == METRICS.connect_seconds
    assert transition_seconds(LAZY_STANDBY, DEPLOYED, METRICS) == 0


def test_the_controller_takes_it_where_it_is_the_cheapest_that_keeps_the_guarantee() -> None:
    bound = 1.3 * recovery_seconds(LAZY_STANDBY, METRICS)
    assert recovery_seconds(DEPLOYED, METRICS) > bound
    state = SchemeController(Guarantee(recovery=bound))
    passed = []
    events = [HostJoined(0, "a"), HostJoined(0, "b"), Measurement(0, METRICS)]
    while events:
        state, actions = decide(state, events.pop(0))
        steps = [action for action in actions if isinstance(action, SchemeStep)]
        passed += [step.to for step in steps]
        events += [Reached(0, step.to) for step in steps]
    assert passed == [DEPLOYED, LAZY_STANDBY]
    assert state.target is state.scheme is LAZY_STANDBY
    grown = replace(METRICS, rows_per_second=3 * METRICS.rows_per_second)
    state, [step] = decide(state, Measurement(10, grown))
    assert isinstance(step, SchemeStep)
    assert step.to is COLD_STANDBY
    assert "passive standby lazy may reach" in step.reason


def test_hosts_agree_on_it_and_run_its_role(tmp_path: Path) -> None:
    with closing(MetaStore(tmp_path)) as meta:
        agreement = Agreement(meta, "host:1:0.00", lambda: 1_000.0)
        agreement.open("f", PASSIVE_REPLICATION)
        assert turn_to(agreement, "f", named("Passive-Standby_lazy")) == [DEPLOYED, LAZY_STANDBY]
        sits = [Beat("a", 1, 0, None), Beat("b", 1, 0, None), Seize("a", 1, None, None), Enlist("b", 1, None, None)]
        agreed = agreement.ask({"f": sits})["f"]
        assert described(agreed) == "passive standby lazy: a is the primary, b is the secondary, getting ready"
        place = FragmentPlace(Keeper("b", 1, Timing()), agreed)
        place.keeper.sit(agreed.seats)
        assert place.role is Role.COLD
        assert not is_reached(agreement, ["f"], LAZY_STANDBY)
        agreement.ask({"f": [Beat("b", 1, 0, LAZY_STANDBY)]})
        assert is_reached(agreement, ["f"], LAZY_STANDBY)


def test_explain_and_help_show_it() -> None:
    lines = explained(Guarantee(recovery=1.3 * recovery_seconds(LAZY_STANDBY, METRICS)), METRICS)
    [line] = [line for line in lines if line.startswith("  passive standby lazy ")]
    assert line.endswith("chosen")
    help_text = CliRunner().invoke(main, ["scheme", "--help"]).output
    assert "the secondary copies the state every five seconds" in help_text
