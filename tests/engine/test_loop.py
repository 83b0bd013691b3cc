"""The loop with parts that do what the test says: what it does between two looks at the machine."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

from holdfast.engine.chores import Chores
from holdfast.engine.events import Began, EpochFinished, EpochLaunched, EpochPlanned, LookedBack, LookedUp, Reported
from holdfast.engine.instructions import (
    AwaitCommit,
    CommitEpoch,
    How,
    LaunchEpoch,
    Lead,
    LookBack,
    LookUp,
    PlanEpoch,
    Recovered,
    StandBy,
    TookOver,
    Wait,
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
    given: dict[str, Any] = {
        "executor": None, "start": None, "standby": None, "planner": None, "committer": SimpleNamespace(), **parts,
    }  # fmt: skip
    given["committer"].chores = getattr(given["committer"], "chores", Chores())
    return Loop(
        "a", Machine(authority.seat), authority, observer=Observer(), deadlines=nothing, sleep=slept.append,  # type: ignore[arg-type]
        rest=slept.append, limit_reached=lambda: False, pause=0.01, patience=0.01, **given,
    )  # fmt: skip


def test_a_standby_is_ready_for_the_role_that_it_was_asked_for() -> None:
    """Another role may be asked for while it fetches."""
    authority = FakeAuthority(replica(Role.COLD))

    def follow(*, hot: bool) -> bool:
        assert not hot
        authority.seat = replica(Role.FOLLOW)
        return True

    loop = loop_of(authority, [], standby=SimpleNamespace(follow=follow), start=SimpleNamespace(opened=False))
    assert loop.step() == StandBy(Role.COLD)
    assert authority.told == [Role.COLD]


def standing(role: Role, opened: bool = False) -> tuple[Loop, list[str]]:
    """A loop that stands by, and what its parts were asked for."""
    done: list[str] = []
    start = SimpleNamespace(opened=opened)

    def open_executor() -> None:
        start.opened = True
        done.append("open")

    start.open_executor = open_executor
    executor = SimpleNamespace(wait=lambda *_, **__: done.append("hear"), look_after=lambda *_, **__: None)
    standby = SimpleNamespace(follow=lambda *, hot: True, drop=lambda: done.append("drop"))
    return loop_of(FakeAuthority(replica(role)), [], start=start, executor=executor, standby=standby), done


def test_a_hot_standby_has_its_tasks_stand_before_it_is_ready() -> None:
    loop, done = standing(Role.HOT)
    authority = cast("FakeAuthority", loop.authority)
    assert loop.step() == StandBy(Role.HOT)
    assert done == ["open", "hear"]
    assert authority.told == [Role.HOT]


def test_a_hot_standby_without_the_state_opens_nothing() -> None:
    loop, done = standing(Role.HOT)
    loop.standby.follow = lambda *, hot: False  # type: ignore[method-assign]
    loop.step()
    assert done == []
    assert cast("FakeAuthority", loop.authority).told == [None]


def test_a_cold_standby_has_no_tasks() -> None:
    loop, done = standing(Role.COLD)
    assert loop.step() == StandBy(Role.COLD)
    assert done == []


def test_a_hot_standby_that_is_to_be_cold_lets_go_of_its_tasks() -> None:
    """Another run begins, without any."""
    loop, done = standing(Role.COLD, opened=True)
    assert loop.step() is None
    assert done == ["drop"]


def with_epoch_run(loop: Loop) -> None:
    """State is back, and an epoch was run that is not committed."""
    machine = loop.machine
    machine.on(Began(0, 0, 0))
    while isinstance(news := machine.next(), Recovered | TookOver):
        machine.on(Reported(news))
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


def leading(plan: Any, done: list[str]) -> Loop:
    """A loop that leads, with chores of its last commit left; `plan` is its planner's."""
    committer = SimpleNamespace(
        chores=Chores(), publish_due=lambda: None, hand_over=lambda epoch: None, idle=lambda: done.append("idle")
    )
    executor = SimpleNamespace(wait=lambda newest, **given: done.append("wait"), look_after=lambda epoch, **given: None)
    planner = SimpleNamespace(
        plan=plan, launch=lambda epoch, silent: done.append("launch"), overlaps=False, pause=lambda: 0.01
    )
    authority = FakeAuthority(Seat(Role.LEAD))
    loop = loop_of(authority, [], committer=committer, executor=executor, planner=planner)
    loop.rest = lambda seconds: done.append("rest")
    loop.machine.on(Began(0, 0, 0))
    while isinstance(news := loop.machine.next(), Recovered | TookOver):
        loop.machine.on(Reported(news))
    committer.chores.put_off(lambda: done.append("chores"))
    return loop


def test_chores_of_a_commit_are_done_once_while_the_next_epoch_runs() -> None:
    done: list[str] = []
    loop = leading(lambda instruction: EpochPlanned(instruction.epoch), done)
    steps = [loop.step() for _ in range(4)]
    assert [type(step) for step in steps] == [PlanEpoch, LaunchEpoch, Wait, Wait]
    assert done == ["launch", "chores", "wait", "wait"]


def test_chores_of_a_commit_do_not_wait_for_input() -> None:
    done: list[str] = []
    loop = leading(lambda instruction: None, done)
    loop.step()
    assert done == ["chores", "idle", "rest"]
