"""The schemes and the wheel: what each has, in which order they recover, and which steps there are."""

from __future__ import annotations

import itertools

import pytest

from holdfast.engine.roles import Role
from holdfast.errors import InvalidTransitionError
from holdfast.replica.schemes import Scheme, wheel
from holdfast.replica.schemes.abilities import (
    FOLLOWS_STATE,
    HAS_PROGRAM,
    HAS_SESSION,
    HAS_STATE,
    PROCESSES,
    PUBLISHES,
    QUEUES_INPUT,
    RECEIVES_INPUT,
)
from holdfast.replica.schemes.active_replication import ACTIVE_REPLICATION
from holdfast.replica.schemes.active_standby import ACTIVE_STANDBY
from holdfast.replica.schemes.cold_standby import COLD_STANDBY
from holdfast.replica.schemes.deployed import DEPLOYED
from holdfast.replica.schemes.hot_standby import HOT_STANDBY
from holdfast.replica.schemes.passive_replication import PASSIVE_REPLICATION
from holdfast.replica.schemes.phases import (
    connect_downstream,
    connect_upstream,
    load_state,
    open_spark,
    publish_withheld,
    replay_queue,
    replay_since_checkpoint,
    replay_since_sync,
    start_process,
)

PAIRS = list(itertools.permutations(wheel.SCHEMES, 2))
FOLLOWING = {FOLLOWS_STATE, QUEUES_INPUT}
"""What a secondary that processes needs no more."""


def test_the_order_is_that_of_recovery_time() -> None:
    assert [scheme.name for scheme in wheel.SCHEMES] == [
        "active replication",
        "active standby",
        "passive standby hot",
        "passive standby cold",
        "deployed",
        "passive replication",
    ]


def test_a_faster_scheme_has_all_that_a_slower_one_has_and_more() -> None:
    for fast, slow in itertools.pairwise(wheel.SCHEMES):
        replaced = FOLLOWING if fast.processes else set()
        assert set(slow.abilities) - replaced < set(fast.abilities)


def test_what_the_secondary_has_in_each_scheme() -> None:
    loaded = {HAS_SESSION, HAS_PROGRAM, HAS_STATE}
    assert set(ACTIVE_REPLICATION.abilities) == {*loaded, RECEIVES_INPUT, PROCESSES, PUBLISHES}
    assert set(ACTIVE_STANDBY.abilities) == {*loaded, RECEIVES_INPUT, PROCESSES}
    assert set(HOT_STANDBY.abilities) == {*loaded, FOLLOWS_STATE, RECEIVES_INPUT, QUEUES_INPUT}
    assert set(COLD_STANDBY.abilities) == {*loaded, FOLLOWS_STATE}
    assert set(DEPLOYED.abilities) == {HAS_SESSION}
    assert not PASSIVE_REPLICATION.abilities


def test_what_a_scheme_pays_for_is_what_its_role_does() -> None:
    for scheme in wheel.SCHEMES:
        assert scheme.processes == (PROCESSES in scheme.abilities)
        assert scheme.both_commit == (PUBLISHES in scheme.abilities)
        assert (scheme.role is not Role.NONE) == (HAS_PROGRAM in scheme.abilities)
        assert scheme.role is not Role.LEAD


def test_recovery_phases_are_those_of_the_paper() -> None:
    assert ACTIVE_REPLICATION.recovery == ()
    assert ACTIVE_STANDBY.recovery == (connect_downstream, publish_withheld)
    assert HOT_STANDBY.recovery == (connect_downstream, replay_queue)
    assert COLD_STANDBY.recovery == (connect_downstream, connect_upstream, replay_since_sync)
    assert load_state in DEPLOYED.recovery
    assert DEPLOYED.recovery[-1] is replay_since_checkpoint
    assert PASSIVE_REPLICATION.recovery == (start_process, open_spark, *DEPLOYED.recovery)


@pytest.mark.parametrize(("scheme", "to"), PAIRS)
def test_every_scheme_is_reached_by_direct_steps(scheme: Scheme, to: Scheme) -> None:
    steps = (scheme, *wheel.path(scheme, to))
    assert steps[-1] is to
    assert len(set(steps)) == len(steps)
    for step in itertools.pairwise(steps):
        assert wheel.is_step(*step)
        wheel.check_step(*step)


@pytest.mark.parametrize(("scheme", "to"), [pair for pair in PAIRS if not wheel.is_step(*pair)])
def test_an_impossible_step_names_both_schemes_and_the_way(scheme: Scheme, to: Scheme) -> None:
    with pytest.raises(InvalidTransitionError) as raised:
        wheel.check_step(scheme, to)
    assert f"from {scheme} to {to}" in raised.value.problem
    assert raised.value.cure == "go " + " → ".join(step.name for step in (scheme, *wheel.path(scheme, to)))


def test_a_scheme_does_not_turn_into_itself() -> None:
    assert wheel.path(DEPLOYED, DEPLOYED) == ()
    with pytest.raises(InvalidTransitionError, match="it is already deployed"):
        wheel.check_step(DEPLOYED, DEPLOYED)


def test_a_stored_name_that_no_scheme_has_is_refused() -> None:
    assert [wheel.scheme_of(scheme.name) for scheme in wheel.SCHEMES] == list(wheel.SCHEMES)
    with pytest.raises(ValueError, match="no scheme 'lukewarm'"):
        wheel.scheme_of("lukewarm")
