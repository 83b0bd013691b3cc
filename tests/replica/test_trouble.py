"""When a replica that fails is tried again, and when its fragment is given up."""

from __future__ import annotations

import json
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import polars as pl
import pytest
from sqlalchemy.exc import OperationalError

from holdfast.errors import (
    DeadlineError,
    EpochFailedError,
    HoldfastError,
    LeaseLostError,
    StoreFullError,
    StoreUnreachableError,
)
from holdfast.meta import Lease, MetaStore
from holdfast.replica.fragment_notes import FragmentNotes, StoredNotes
from holdfast.replica.keeper import Timing
from holdfast.replica.membership import Membership
from holdfast.replica.replica import FragmentReplica
from holdfast.replica.scheme_change import turn
from holdfast.replica.schemes.active_standby import ACTIVE_STANDBY
from holdfast.replica.schemes.deployed import DEPLOYED
from holdfast.replica.schemes.passive_replication import PASSIVE_REPLICATION
from holdfast.replica.seat_store import Agreement
from holdfast.replica.seats import SeatHolder
from holdfast.threads import SYSTEM


class Said:
    """Remembers what was said of the fragment."""

    def __init__(self) -> None:
        self.notes: dict[str, Any] = {}
        self.ended = False

    def note(self, name: str, notes: StoredNotes) -> None:
        self.notes |= json.loads(notes.encode())

    def end(self, lease: Lease) -> None:
        assert lease.token == 7
        self.ended = True

    def lease(self, name: str, token: int, *, shared: bool) -> Lease:
        return Lease(name, "x", token, shared)


class Seated:
    """Has the first seat, until it gives it away."""

    def __init__(self) -> None:
        self.agreement = Said()
        self.host = "a"
        seats = SimpleNamespace(secondary=None)
        keeper = SimpleNamespace(is_primary=True, seat=SeatHolder("a", 1, 7))
        self.place = SimpleNamespace(keeper=keeper, agreed=SimpleNamespace(seats=seats, notes=FragmentNotes()))
        self.places = {"f": self.place}
        self.resigned = 0

    def beat(self) -> None:
        pass

    def resign(self, name: str) -> None:
        self.resigned += 1


class Run:
    """Commits some epochs and fails."""

    def __init__(self, fresh: int, error: BaseException) -> None:
        self.fresh, self.error = fresh, error

    def live(self) -> bool:
        raise self.error


def fail(
    times: int,
    error: BaseException,
    fresh: int = 0,
    second: SeatHolder | None = None,
    failing: dict[str, str] | None = None,
    *,
    first_fresh: int = 0,
) -> Seated:
    """`fresh` is what every run commits, `first_fresh` the first one."""
    member: Any = Seated()
    member.place.agreed.seats.secondary = second
    if failing:
        member.agreement.note("f", StoredNotes(failing=failing))
        member.place.agreed.notes = FragmentNotes(json.dumps(member.agreement.notes))
    runs = iter([Run(first_fresh or fresh, error)])
    build: Any = lambda authority: next(runs, Run(fresh, error))  # noqa: E731
    replica = FragmentReplica("f", member, build, True, lambda text: None)
    for _ in range(times):
        replica._live(member.place)
        if member.agreement.ended:
            break
    return member


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(type(SYSTEM), "sleep", lambda self, seconds: None)


def test_what_fails_again_and_again_is_given_up() -> None:
    member = fail(10, EpochFailedError("cannot", cure="mend it"))
    assert member.agreement.ended
    assert "cannot" in member.agreement.notes["failed"]


def test_the_other_host_is_tried_before_a_fragment_is_given_up() -> None:
    error = EpochFailedError("cannot", cure="mend it")
    member = fail(10, error, second=SeatHolder("b", 1, 8))
    assert not member.agreement.ended
    assert member.resigned >= 1
    assert list(member.agreement.notes["failing"]) == ["a"]
    both = fail(10, error, second=SeatHolder("b", 1, 8), failing={"b": "cannot"})
    assert both.agreement.ended
    assert "cannot" in both.agreement.notes["failed"]


def test_failures_with_commits_between_them_do_not_add_up() -> None:
    assert not fail(20, EpochFailedError("cannot", cure="mend it"), fresh=1).agreement.ended


def test_full_disks_with_commits_between_them_do_not_add_up() -> None:
    assert fail(20, StoreFullError("full", cure="free some"), fresh=1).resigned == 0


def test_who_failed_before_the_other_went_on_is_tried_again() -> None:
    """`b` has failed long ago, and `a` has committed since."""
    error = EpochFailedError("cannot", cure="mend it")
    member = fail(6, error, second=SeatHolder("b", 1, 8), failing={"b": "long ago"}, first_fresh=3)
    assert not member.agreement.ended
    assert member.resigned == 1
    assert list(member.agreement.notes["failing"]) == ["a"]


def test_who_goes_on_does_not_count_as_failing_any_more() -> None:
    error = LeaseLostError("gone", cure="none")
    member = fail(1, error, fresh=3, failing={"a": "long ago", "b": "too"})
    assert list(member.agreement.notes["failing"]) == ["b"]


@pytest.mark.parametrize(
    "error",
    [
        StoreUnreachableError("away", cure="wait"),
        OperationalError("x", None, Exception("locked")),
        OSError(5, "I/O error"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_a_store_that_is_away_is_waited_for(error: Exception) -> None:
    assert not fail(20, error).agreement.ended


def test_a_primary_that_cannot_write_gives_its_seat_away() -> None:
    error: HoldfastError = StoreFullError("full", cure="free some")
    assert fail(2, error).resigned == 0
    assert fail(3, error).resigned == 1
    assert not fail(20, error).agreement.ended


def test_a_primary_past_a_deadline_gives_its_seat_away_at_once() -> None:
    error = DeadlineError("no answer", cure="wait")
    assert fail(1, error).resigned == 1
    assert not fail(20, error).agreement.ended


@pytest.mark.parametrize("error", [SystemExit(3), pl.exceptions.PanicException("broken"), KeyboardInterrupt()])
def test_what_is_no_exception_does_not_end_the_thread_of_a_replica(error: BaseException) -> None:
    member = fail(10, error, second=SeatHolder("b", 1, 8))
    assert member.resigned >= 1
    assert type(error).__name__ in member.agreement.notes["failing"]["a"]
    assert fail(10, error).agreement.ended


def test_a_host_where_nothing_goes_on_loses_its_seat_though_it_could_beat(tmp_path: Path) -> None:
    store = MetaStore(tmp_path, sync=False)
    Agreement(store, "x", time.time).open("f", ACTIVE_STANDBY)
    now = [0.0]

    def member(name: str) -> Membership:
        made = Membership(
            name, 1, Agreement(store, name, time.time), Timing(beat=0.25, detection=1.0), lambda why: None,
            clock=lambda: now[0],
        )  # fmt: skip
        made.sessions = True
        made.serve("f")
        made.beat()
        return made

    first, second = member("a"), member("b")

    def beats(times: int) -> None:
        for _ in range(times):
            now[0] += 0.25
            first.beat(), second.beat()

    beats(10)
    assert first.places["f"].keeper.is_primary
    problem = ["the run has been stuck for 60 s"]
    first.places["f"].stuck = lambda: problem[0] if problem else None
    beats(10)
    assert second.places["f"].keeper.is_primary
    assert first.places["f"].keeper.seat is not None  # it has not looked
    problem.clear()
    beats(2)
    assert not first.places["f"].keeper.is_primary
    assert second.places["f"].keeper.is_primary
    store.close()


def test_who_gave_the_first_seat_away_leaves_it_to_the_other(tmp_path: Path) -> None:
    store = MetaStore(tmp_path, sync=False)
    Agreement(store, "x", time.time).open("f", ACTIVE_STANDBY)

    def member(name: str) -> Membership:
        made = Membership(name, 1, Agreement(store, name, time.time), Timing(detection=60.0), lambda why: None)
        made.sessions = True
        made.serve("f")
        made.beat()
        return made

    first, second = member("a"), member("b")
    assert first.places["f"].keeper.is_primary
    first.resign("f")
    for _ in range(3):
        first.beat()
    assert not first.places["f"].keeper.is_primary
    second.beat()
    assert second.places["f"].keeper.is_primary
    store.close()


def test_a_secondary_leaves_when_nobody_needs_it_any_more(tmp_path: Path) -> None:
    """As on the step down to passive replication, where it still has the second seat."""
    store = MetaStore(tmp_path, sync=False)
    agreement = Agreement(store, "x", time.time)
    for each in ("f", "g"):
        agreement.open(each, DEPLOYED)
    left: list[str] = []

    def member(name: str) -> Membership:
        made = Membership(name, 1, Agreement(store, name, time.time), Timing(detection=60.0), left.append)
        made.sessions = True
        made.serve("f"), made.serve("g")
        made.beat()
        return made

    first, second = member("a"), member("b")
    assert second.places["f"].keeper.seat is not None
    turn(agreement, "f", PASSIVE_REPLICATION)
    for _ in range(3):
        first.beat(), second.beat()
    assert not left, "another fragment needs it"
    turn(agreement, "g", PASSIVE_REPLICATION)
    for _ in range(3):
        first.beat(), second.beat()
    assert left
    assert set(left) == {"the primary runs, and passive replication needs no other host"}
    store.close()
