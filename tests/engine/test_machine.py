"""The machine under random events, in every role: order, at most two in flight, and no impossible step."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.engine.events import (
    Began,
    EpochCommitted,
    EpochLaunched,
    EpochPlanned,
    Event,
    Leads,
    LookedBack,
    LookedUp,
    Overlap,
    Reported,
    Seated,
    Stopped,
)
from holdfast.engine.instructions import (
    AwaitCommit,
    Begin,
    CommitEpoch,
    Finish,
    GiveUp,
    How,
    LaunchEpoch,
    Lead,
    LetGo,
    LookBack,
    LookUp,
    PlanEpoch,
    Recovered,
    StandBy,
    TookOver,
    Wait,
)
from holdfast.engine.machine import Machine
from holdfast.engine.roles import Role, Seat
from holdfast.epoch.execution import EpochFinished, EpochRead
from holdfast.errors import InvalidTransitionError

ALONE = Seat()


def seat(role: Role, *, shared: bool = False, precise: bool = True) -> Seat:
    return Seat(role, shared=shared, precise=precise, replica=True)


def begun(
    after: int, planned: int, *, lost: tuple[int, ...] = (), given: Seat = ALONE, overlap: bool = False
) -> Machine:
    """A machine whose state is back, with its news told."""
    machine = Machine(given, overlap)
    machine.on(Began(after, max([after, *lost]), planned, lost))
    tell(machine)
    return machine


def tell(machine: Machine) -> list[Recovered | TookOver]:
    told: list[Recovered | TookOver] = []
    while isinstance(news := machine.next(), Recovered | TookOver):
        told.append(news)
        machine.on(Reported(news))
    return told


def run_epoch(machine: Machine, epoch: int) -> None:
    machine.on(EpochLaunched(epoch))
    machine.on(EpochFinished(epoch))
    machine.on(EpochCommitted(epoch))


@given(st.integers(0, 2**32), st.booleans())
def test_random_runs_keep_the_order(seed: int, overlap: bool) -> None:
    """A loop that does what it is told, and a world where tasks read and finish when they like."""
    chance = random.Random(seed)
    committed = chance.randrange(5)
    left_over = chance.randrange(3)
    machine = Machine(overlap=overlap)
    assert machine.next() == Begin(lead=True, gap=False)
    machine.on(Began(committed, committed, committed + left_over))
    total = committed + left_over + chance.randrange(12)
    reading: set[int] = set()
    running: set[int] = set()
    commits: list[int] = []
    told: list[Recovered] = []
    for _ in range(2_000):
        instruction = machine.next()
        assert instruction == machine.next(), "asking changes nothing"
        match instruction:
            case Wait():
                assert running, "nobody is told to do anything, and nothing is under way"
                epoch = chance.choice(sorted(running))
                if epoch in reading and chance.random() < 0.6:
                    reading.discard(epoch)
                    machine.on(EpochRead(epoch))
                else:
                    running.discard(epoch)
                    reading.discard(epoch)
                    machine.on(EpochFinished(epoch))
            case PlanEpoch(epoch, look, make):
                assert (look, make) == (False, True)
                machine.on(Stopped() if machine.planned == total else EpochPlanned(epoch))
            case LaunchEpoch(epoch, silent):
                assert epoch <= machine.planned
                assert not silent
                assert overlap or not running
                assert not reading, "an epoch is launched when the one before has read its input"
                machine.on(EpochLaunched(epoch))
                running.add(epoch)
                reading.add(epoch)
                assert machine.launched - machine.committed <= 2
            case CommitEpoch(epoch, how):
                assert how is How.OWN
                commits.append(epoch)
                machine.on(EpochCommitted(epoch))
            case Recovered() as news:
                told.append(news)
                machine.on(Reported(news))
            case Finish():
                break
            case _:
                raise AssertionError(f"nobody asked for {instruction}")
    else:
        raise AssertionError("the machine does not end")
    assert commits == list(range(committed + 1, total + 1))
    assert told == [Recovered(committed, left_over)]
    assert not running


def test_epochs_overlap_once_the_first_has_read() -> None:
    machine = begun(0, 2, overlap=True)
    assert machine.next() == LaunchEpoch(1, silent=False)
    machine.on(EpochLaunched(1))
    assert machine.next() == Wait()
    machine.on(EpochRead(1))
    assert machine.next() == LaunchEpoch(2, silent=False)
    machine.on(EpochLaunched(2))
    machine.on(EpochRead(2))
    assert machine.next() == Wait(), "at most two are in flight"
    machine.on(EpochFinished(2))
    assert machine.next() == Wait(), "epoch 2 waits for epoch 1"
    machine.on(EpochFinished(1))
    assert machine.next() == CommitEpoch(1, How.OWN)
    machine.on(EpochCommitted(1))
    assert machine.next() == CommitEpoch(2, How.OWN)


def test_without_overlap_an_epoch_waits_for_the_commit_before() -> None:
    machine = begun(0, 2)
    machine.on(EpochLaunched(1))
    machine.on(EpochRead(1))
    assert machine.next() == Wait()
    machine.on(EpochFinished(1))
    machine.on(EpochCommitted(1))
    assert machine.next() == LaunchEpoch(2, silent=False)


def test_epochs_overlap_while_that_pays() -> None:
    machine = begun(0, 3)
    machine.on(EpochLaunched(1))
    machine.on(EpochRead(1))
    machine.on(Overlap(True))
    assert machine.next() == LaunchEpoch(2, silent=False)
    machine.on(Overlap(False))
    assert machine.next() == Wait()


def test_after_the_end_what_is_planned_is_still_run() -> None:
    machine = begun(3, 4)
    machine.on(Stopped())
    assert machine.next() == LaunchEpoch(4, silent=False)
    run_epoch(machine, 4)
    assert tell(machine) == [Recovered(3, 1)]
    assert machine.next() == Finish()


def test_lost_epochs_are_made_again_in_silence() -> None:
    machine = begun(2, 5, lost=(3, 4))
    for epoch, how in ((3, How.AGAIN), (4, How.AGAIN), (5, How.OWN)):
        assert machine.next() == LaunchEpoch(epoch, silent=how is How.AGAIN)
        machine.on(EpochLaunched(epoch))
        machine.on(EpochFinished(epoch))
        assert machine.next() == CommitEpoch(epoch, how)
        machine.on(EpochCommitted(epoch))
    assert tell(machine) == [Recovered(2, 3)]


@pytest.mark.parametrize(
    "events",
    [
        [EpochPlanned(1)],
        [EpochPlanned(4)],
        [EpochLaunched(1)],
        [EpochLaunched(3)],
        [EpochRead(2)],
        [EpochFinished(0)],
        [EpochFinished(2)],
        [EpochCommitted(1)],
        [EpochCommitted(2)],
        [EpochFinished(1), EpochFinished(1)],
        [EpochFinished(1), EpochCommitted(1), EpochCommitted(1)],
        [EpochFinished(1), EpochCommitted(1), EpochFinished(1)],
        [Began(0, 0, 0)],
        [Leads()],
        [LookedUp(1, committed=True)],
        [EpochFinished(1), LookedUp(2, committed=True)],
        [Reported(TookOver(0))],
    ],
    ids=str,
)
def test_impossible_events_raise(events: list[Event]) -> None:
    machine = begun(0, 2)
    machine.on(EpochLaunched(1))
    for event in events[:-1]:
        machine.on(event)
    with pytest.raises(InvalidTransitionError) as caught:
        machine.on(events[-1])
    assert caught.value.cure


# replicas


def test_a_standby_keeps_what_its_role_says_until_it_leads() -> None:
    machine = Machine(seat(Role.COLD))
    assert machine.next() == StandBy(Role.COLD)
    machine.on(Seated(seat(Role.HOT)))
    assert machine.next() == StandBy(Role.HOT)
    machine.on(Seated(seat(Role.LEAD)))
    assert machine.next() == Begin(lead=True, gap=False)
    machine.on(Began(4, 4, 6))
    for epoch in (5, 6):
        run_epoch(machine, epoch)
    assert tell(machine) == [Recovered(4, 2), TookOver(2)]
    assert machine.next() == PlanEpoch(7, look=False, make=True)


def test_who_need_not_be_precise_leaves_a_gap() -> None:
    machine = Machine(seat(Role.LEAD, precise=False))
    assert machine.next() == Begin(lead=True, gap=True)
    assert Machine(seat(Role.FOLLOW, precise=False)).next() == Begin(lead=False, gap=False)


@pytest.mark.parametrize("role", [Role.NONE, Role.COLD])
def test_who_has_begun_lets_go_when_less_is_wanted(role: Role) -> None:
    machine = begun(0, 0, given=seat(Role.FOLLOW))
    machine.on(Seated(seat(role)))
    assert machine.next() == LetGo()


def test_a_follower_that_is_stopped_lets_go_and_a_leader_finishes() -> None:
    follower, leader = begun(0, 0, given=seat(Role.FOLLOW)), begun(0, 0, given=seat(Role.LEAD))
    for machine in (follower, leader):
        machine.on(Stopped())
    assert follower.next() == LetGo()
    assert leader.next() == Finish()


def test_a_leader_whose_seat_is_gone_gives_up() -> None:
    machine = begun(0, 0, given=seat(Role.LEAD))
    machine.on(Seated(seat(Role.FOLLOW)))
    assert machine.next() == GiveUp()


def test_a_follower_plans_nothing_and_commits_what_another_has_committed() -> None:
    machine = begun(0, 0, given=seat(Role.FOLLOW))
    assert machine.next() == PlanEpoch(1, look=True, make=False)
    machine.on(EpochPlanned(1))
    machine.on(EpochLaunched(1))
    machine.on(EpochFinished(1))
    assert machine.next() == LookUp(1)
    machine.on(LookedUp(1, committed=False))
    assert machine.next() == AwaitCommit(1)
    machine.on(LookedUp(1, committed=True))
    assert machine.next() == CommitEpoch(1, How.ADOPTED)
    machine.on(EpochCommitted(1))
    machine.on(EpochPlanned(2, committed=True))
    assert machine.next() == LaunchEpoch(2, silent=True), "its output is out already"


def test_who_shares_looks_first_and_then_plans_and_commits() -> None:
    machine = begun(0, 0, given=seat(Role.SHARE, shared=True))
    assert machine.next() == PlanEpoch(1, look=True, make=True)
    machine.on(EpochPlanned(1))
    machine.on(EpochLaunched(1))
    machine.on(EpochFinished(1))
    assert machine.next() == LookUp(1)
    machine.on(LookedUp(1, committed=False))
    assert machine.next() == CommitEpoch(1, How.SHARED)
    machine.on(LookedUp(1, committed=True))
    assert machine.next() == CommitEpoch(1, How.ADOPTED), "the primary was first"
    machine.on(EpochCommitted(1))
    machine.on(EpochPlanned(2))
    machine.on(EpochLaunched(2))
    machine.on(EpochFinished(2))
    assert machine.next() == LookUp(2), "what was found was found of another epoch"
    leader = begun(0, 0, given=seat(Role.LEAD, shared=True))
    assert leader.next() == PlanEpoch(1, look=True, make=True)


def test_a_takeover_adopts_what_was_committed_and_then_leads() -> None:
    machine = begun(0, 2, given=seat(Role.FOLLOW), overlap=True)
    machine.on(EpochLaunched(1))
    machine.on(Seated(seat(Role.LEAD)))
    assert machine.next() == LookBack()
    machine.on(LookedBack(committed=1, planned=2))
    assert machine.next() == Wait(), "epoch 1 is in flight, and another has committed it"
    machine.on(EpochFinished(1))
    machine.on(LookedUp(1, committed=True))
    assert machine.next() == CommitEpoch(1, How.ADOPTED)
    machine.on(EpochCommitted(1))
    assert machine.next() == Lead()
    machine.on(Leads())
    assert machine.leading
    assert machine.next() == LaunchEpoch(2, silent=False)
    machine.on(EpochLaunched(2))
    machine.on(EpochFinished(2))
    assert machine.next() == CommitEpoch(2, How.OWN)
    machine.on(EpochCommitted(2))
    assert tell(machine) == [Recovered(0, 2), TookOver(0)], "output goes on with what was planned before"
    assert machine.next() == PlanEpoch(3, look=False, make=True)


def test_where_both_have_put_out_a_takeover_is_no_break() -> None:
    machine = begun(3, 3, given=seat(Role.SHARE, shared=True))
    machine.on(Seated(seat(Role.LEAD, shared=True)))
    assert machine.next() == LookBack()
    machine.on(LookedBack(committed=3, planned=4))
    assert tell(machine) == [TookOver(0)]
    assert machine.next() == Lead()
    machine.on(LookedBack(committed=3, planned=4))
    assert tell(machine) == [], "it is told once, however often it looks back"
    machine.on(Leads())
    machine.on(EpochPlanned(4))
    run_epoch(machine, 4)
    assert tell(machine) == []


@given(st.integers(0, 2**32))
def test_random_changes_of_role_never_skip_or_repeat_an_epoch(seed: int) -> None:
    """Two machines and one store. Whoever leads plans; who follows adopts. Seats change at random, and a replica whose
    run has ended begins another one."""
    chance = random.Random(seed)
    plans, commits = 0, 0
    machines = [Machine(seat(Role.LEAD)), Machine(seat(Role.FOLLOW))]
    in_flight: list[set[int]] = [set(), set()]
    leader = 0

    def renewed(which: int) -> None:
        machines[which], in_flight[which] = Machine(seat(Role.LEAD if which == leader else Role.FOLLOW)), set()

    for _ in range(400):
        if chance.random() < 0.02:  # the leader is gone, and comes back as the secondary
            leader = 1 - leader
            renewed(1 - leader)
            machines[leader].on(Seated(seat(Role.LEAD)))
        which = chance.randrange(2)
        machine, flying = machines[which], in_flight[which]
        if flying and chance.random() < 0.5:
            epoch = min(flying)
            flying.discard(epoch)
            machine.on(EpochFinished(epoch))
            continue
        match machine.next():
            case Begin(lead):
                assert lead == (which == leader)
                machine.on(Began(commits, commits, plans))
            case LookBack():
                machine.on(LookedBack(commits, plans))
            case Lead():
                assert machine.committed == commits
                machine.on(Leads())
            case PlanEpoch(epoch, look, make):
                assert make == machine.leading
                if look and epoch <= plans:
                    machine.on(EpochPlanned(epoch, committed=epoch <= commits))
                elif make:
                    assert epoch == plans + 1, "what is planned is never planned anew"
                    plans = epoch
                    machine.on(EpochPlanned(epoch))
            case LaunchEpoch(epoch):
                machine.on(EpochLaunched(epoch))
                flying.add(epoch)
            case CommitEpoch(epoch, How.OWN):
                assert epoch == commits + 1, "each epoch is committed once and in its order"
                commits = epoch
                machine.on(EpochCommitted(epoch))
            case LookUp(epoch) | AwaitCommit(epoch):
                machine.on(LookedUp(epoch, committed=epoch <= commits))
            case CommitEpoch(epoch, How.ADOPTED):
                assert epoch <= commits, "only what was committed is adopted"
                machine.on(EpochCommitted(epoch))
            case Recovered() | TookOver() as news:
                machine.on(Reported(news))
            case Wait():
                pass
            case other:
                raise AssertionError(f"{other} in {machine}")
    assert commits > 0
