"""The six schemes and the wheel: what each has, in which order it recovers, and which steps there are."""

from __future__ import annotations

import itertools
from dataclasses import fields

import pytest

from holdfast.errors import InvalidTransitionError
from holdfast.replica.schemes import Change, Equipment, Scheme, Step, changes, direct, path

ORDER = list(Scheme)
PAIRS = list(itertools.permutations(Scheme, 2))


def _abilities(scheme: Scheme) -> list[bool]:
    return [getattr(scheme.equipment, each.name) for each in fields(Equipment)]


def test_the_order_is_that_of_recovery_time() -> None:
    assert [each.value for each in Scheme] == [
        "active replication",
        "active standby",
        "passive standby hot",
        "passive standby cold",
        "deployed",
        "passive replication",
    ]


def test_a_faster_scheme_has_all_that_a_slower_one_has_and_more() -> None:
    for fast, slow in itertools.pairwise(Scheme):
        pairs = list(zip(_abilities(fast), _abilities(slow), strict=True))
        assert all(mine or not other for mine, other in pairs)
        assert any(mine and not other for mine, other in pairs)


def test_what_the_secondary_does_in_each_scheme() -> None:
    assert Scheme.ACTIVE_REPLICATION.equipment.publishes
    assert Scheme.ACTIVE_STANDBY.equipment == Equipment(True, True, True, True, True, True, False)
    assert Scheme.PASSIVE_STANDBY_HOT.equipment == Equipment(True, True, True, True, True, False, False)
    assert Scheme.PASSIVE_STANDBY_COLD.equipment == Equipment(True, True, True, True, False, False, False)
    assert Scheme.DEPLOYED.equipment == Equipment(process=True, session=True)
    assert Scheme.PASSIVE_REPLICATION.equipment == Equipment()


def test_recovery_steps_are_those_of_the_paper() -> None:
    assert Scheme.ACTIVE_REPLICATION.recovery == ()
    assert Scheme.ACTIVE_STANDBY.recovery == (Step.CONNECT_DOWNSTREAM, Step.PUBLISH)
    assert Scheme.PASSIVE_STANDBY_HOT.recovery == (Step.CONNECT_DOWNSTREAM, Step.REPLAY_QUEUE)
    assert Scheme.PASSIVE_STANDBY_COLD.recovery[-1] is Step.REPLAY_UPSTREAM
    assert Step.LOAD_STATE not in Scheme.PASSIVE_STANDBY_COLD.recovery
    assert Step.LOAD_STATE in Scheme.DEPLOYED.recovery
    assert Scheme.PASSIVE_REPLICATION.recovery[:2] == (Step.DEPLOY, Step.SESSION)
    assert Scheme.PASSIVE_REPLICATION.recovery[2:] == Scheme.DEPLOYED.recovery


@pytest.mark.parametrize(("scheme", "to"), PAIRS)
def test_every_scheme_is_reached_by_direct_steps(scheme: Scheme, to: Scheme) -> None:
    steps = (scheme, *path(scheme, to))
    assert steps[-1] is to
    assert len(set(steps)) == len(steps)
    assert all(direct(*each) and changes(*each) for each in itertools.pairwise(steps))


@pytest.mark.parametrize(("scheme", "to"), [each for each in PAIRS if not direct(*each)])
def test_an_impossible_step_names_both_schemes_and_the_way(scheme: Scheme, to: Scheme) -> None:
    with pytest.raises(InvalidTransitionError) as raised:
        changes(scheme, to)
    assert f"from {scheme.value} to {to.value}" in raised.value.problem
    assert raised.value.cure == "go " + " → ".join(each.value for each in (scheme, *path(scheme, to)))


def test_a_scheme_does_not_turn_into_itself() -> None:
    assert path(Scheme.DEPLOYED, Scheme.DEPLOYED) == ()
    with pytest.raises(InvalidTransitionError, match="it is deployed already"):
        changes(Scheme.DEPLOYED, Scheme.DEPLOYED)


def test_there_is_always_a_state_between_following_and_processing() -> None:
    up = changes(Scheme.PASSIVE_STANDBY_HOT, Scheme.ACTIVE_STANDBY)
    assert up.index(Change.START_PROCESSING) < up.index(Change.STOP_SYNC)
    down = changes(Scheme.ACTIVE_STANDBY, Scheme.PASSIVE_STANDBY_HOT)
    assert down.index(Change.START_SYNC) < down.index(Change.STOP_PROCESSING)
