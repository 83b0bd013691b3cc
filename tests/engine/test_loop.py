"""The loop with parts that do what the test says: what it does between two looks at the machine."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from holdfast.engine.events import Began, EpochFinished, EpochLaunched, EpochPlanned, LookedBack, LookedUp, Told
from holdfast.engine.instructions import (
    AwaitCommit,
    CommitEpoch,
    How,
    Lead,
    LookBack,
    LookUp,
    Recovered,
    StandBy,
    TookOver,
)
from holdfast.engine.loop import Loop
from holdfast.engine.machine import Machine
from holdfast.engine.observer import Observer
from holdfast.engine.roles import Role, Seat


@dataclass
class FakeAuthority:
    seat: Seat
    told: list[Role | None] = field(default_factory=list)

    def renew(self) -> None:
        pass

    def ready(self, role: Role | None) -> None:
        self.told.append(role)


def replica(role: Role, *, shared: bool = False) -> Seat:
    return Seat(role, shared=shared, replica=True)


def loop_of(authority: FakeAuthority, slept: list[float], **parts: Any) -> Loop:
    nothing = SimpleNamespace(step=lambda: None)
    given = {
        "executor": None, "start": None, "standby": None, "planner": None, "committer": None, **parts,
    }  # fmt: skip
    return Loop(
        "a", Machine(authority.seat), authority, observer=Observer(), deadlines=nothing, sleep=slept.append,  # type: ignore[arg-type]
        limit_reached=lambda: False, pause=0.01, patience=0.01, **given,
    )  # fmt: skip


def test_a_standby_is_ready_for_the_role_that_it_was_asked_for() -> None:
    """Another role may be asked for while it fetches."""
    authority = FakeAuthority(replica(Role.COLD))

    def follow(*, hot: bool) -> bool:
        assert not hot
        authority.seat = replica(Role.FOLLOW)
        return True

    loop = loop_of(authority, [], standby=SimpleNamespace(follow=follow))
    assert loop.step() == StandBy(Role.COLD)
    assert authority.told == [Role.COLD]


def with_epoch_run(loop: Loop) -> None:
    """State is back, and an epoch was run that is not committed."""
    machine = loop.machine
    machine.on(Began(0, 0, 0))
    while isinstance(news := machine.next(), Recovered | TookOver):
        machine.on(Told(news))
    for event in (EpochPlanned(1), EpochLaunched(1), EpochFinished(1)):
        machine.on(event)


def test_who_shares_and_may_not_commit_waits_a_little() -> None:
    authority, slept = FakeAuthority(replica(Role.SHARE, shared=True)), list[float]()
    found = [False, False, True]
    committer = SimpleNamespace(
        look_up=lambda epoch: LookedUp(epoch, found.pop(0)), commit=lambda epoch, how: how is not How.SHARED
    )
    loop = loop_of(authority, slept, committer=committer)
    with_epoch_run(loop)
    assert loop.step() == LookUp(1)
    assert loop.step() == CommitEpoch(1, How.SHARED)
    assert slept == [0.01], "nobody has committed, and this one may not"
    assert loop.step() == CommitEpoch(1, How.SHARED)
    assert slept == [0.01], "the other one was first: that is adopted at once"
    assert loop.step() == CommitEpoch(1, How.ADOPTED)


def test_a_follower_looks_again_until_the_primary_has_committed() -> None:
    authority, slept = FakeAuthority(replica(Role.FOLLOW)), list[float]()
    found = [False, False, True]
    committer = SimpleNamespace(look_up=lambda epoch: LookedUp(epoch, found.pop(0)), commit=lambda epoch, how: True)
    loop = loop_of(authority, slept, committer=committer)
    with_epoch_run(loop)
    steps = [loop.step() for _ in range(4)]
    assert steps == [LookUp(1), AwaitCommit(1), AwaitCommit(1), CommitEpoch(1, How.ADOPTED)]
    assert slept == [0.01, 0.01]
    assert authority.told == [Role.FOLLOW, Role.FOLLOW], "it has run all that there is"


def test_what_was_committed_before_the_store_was_taken_over_is_adopted_first() -> None:
    authority = FakeAuthority(replica(Role.LEAD, shared=True))
    start = SimpleNamespace(look_back=lambda: LookedBack(0, 1), lead=lambda: LookedBack(1, 1))
    loop = loop_of(authority, [], start=start)
    loop.machine.seat = replica(Role.SHARE, shared=True)
    with_epoch_run(loop)
    steps = [loop.step() for _ in range(3)]
    assert (steps[0], steps[2]) == (LookBack(), Lead())
    assert loop.machine.next() == LookUp(1)
    assert not loop.machine.leading
