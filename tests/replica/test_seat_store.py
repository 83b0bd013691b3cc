"""Seats in the meta store: the rules of `Seats`, the lease that goes with the first one, and who is fenced off."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from holdfast.engine.roles import Role
from holdfast.errors import AlreadyRunningError, DeclarationError, InvalidTransitionError, LeaseLostError
from holdfast.meta import Lease, MetaStore
from holdfast.meta.lease_holder import this_process
from holdfast.replica.fragment_notes import Divergence, StoredNotes
from holdfast.replica.keeper import Timing
from holdfast.replica.membership import Membership
from holdfast.replica.scheme_change import named, turn, turn_to
from holdfast.replica.schemes.active_replication import ACTIVE_REPLICATION
from holdfast.replica.schemes.active_standby import ACTIVE_STANDBY
from holdfast.replica.schemes.cold_standby import COLD_STANDBY
from holdfast.replica.schemes.deployed import DEPLOYED
from holdfast.replica.schemes.hot_standby import HOT_STANDBY
from holdfast.replica.seat_store import Agreed, Agreement
from holdfast.replica.seats import Beat, Enlist, Resign, SeatsRequest, Seize
from postgres import where
from stored_texts import commit_epoch, plan_epoch, plan_text, text

__all__ = ["where"]

PLAN = {"slices": {}, "positions": {}, "done": {}}


@pytest.fixture
def meta(where: Path | str) -> Iterator[MetaStore]:
    made = MetaStore(where, sync=False)
    yield made
    made.close()


@pytest.fixture
def agreement(meta: MetaStore) -> Agreement:
    made = Agreement(meta, this_process(), time.time)
    made.open("f", ACTIVE_STANDBY)
    return made


def ask(agreement: Agreement, *requests: SeatsRequest) -> Agreed:
    return agreement.ask({"f": requests})["f"]


def seated(agreement: Agreement) -> Agreed:
    """`a` is the primary, `b` the secondary."""
    ask(agreement, Beat("a", 1, 0, None), Beat("b", 1, 0, None))
    return ask(agreement, Seize("a", 1, None, None), Enlist("b", 1, None, None))


def fenced(meta: MetaStore, lease: Lease) -> bool:
    try:
        with meta.writing() as connection:
            meta.fence(connection, lease)
    except LeaseLostError:
        return True
    return False


def test_who_takes_the_first_seat_has_the_lease(meta: MetaStore, agreement: Agreement) -> None:
    primary = seated(agreement).seats.primary
    assert primary is not None
    assert not fenced(meta, agreement.lease("f", primary.token, shared=False))
    assert plan_epoch(meta, agreement.lease("f", primary.token, shared=False), 1, plan_text(PLAN), 0.0) == text(PLAN)


def test_a_host_that_was_silent_cannot_commit_when_it_wakes_up(meta: MetaStore, agreement: Agreement) -> None:
    before = seated(agreement).seats
    assert before.primary is not None
    late = agreement.lease("f", before.primary.token, shared=False)
    plan_epoch(meta, late, 1, plan_text(PLAN), 0.0)
    taken = ask(agreement, Seize("b", 1, before.primary, before.members["a"]))
    assert taken.done == (True,)
    with pytest.raises(LeaseLostError):
        commit_epoch(meta, late, 1, text({"positions": {}}), 0.0)
    assert meta.last_epoch("f") == 0
    assert taken.seats.secondary is None


def test_a_seat_is_not_taken_from_who_has_beaten_since(agreement: Agreement) -> None:
    before = seated(agreement).seats
    ask(agreement, Beat("a", 1, 0, None))
    assert ask(agreement, Seize("b", 1, before.primary, before.members["a"])).done == (False,)


def test_a_secondary_commits_only_with_active_replication(meta: MetaStore, agreement: Agreement) -> None:
    secondary = seated(agreement).seats.secondary
    assert secondary is not None
    shared = agreement.lease("f", secondary.token, shared=True)
    assert fenced(meta, shared)
    turn(agreement, "f", ACTIVE_REPLICATION)
    assert not fenced(meta, shared)
    turn(agreement, "f", ACTIVE_STANDBY)
    assert fenced(meta, shared)


def test_a_run_alone_and_hosts_keep_each_other_out(meta: MetaStore, agreement: Agreement) -> None:
    meta.acquire("f", "elsewhere:1:0.00", time.time(), 60.0)
    ask(agreement, Beat("a", 1, 0, None))
    assert ask(agreement, Seize("a", 1, None, None)).done == (False,), "somebody runs it alone"
    meta.acquire("f", "elsewhere:1:0.00", time.time() + 100, -100.0)  # expired
    assert ask(agreement, Seize("a", 1, None, None)).done == (True,)
    with pytest.raises(AlreadyRunningError):
        meta.acquire("f", "elsewhere:1:0.00", time.time(), 60.0)


def test_a_run_alone_that_takes_the_lease_empties_the_seat(meta: MetaStore, agreement: Agreement) -> None:
    before = seated(agreement).seats
    assert before.primary is not None
    assert before.secondary is not None
    turn(agreement, "f", ACTIVE_REPLICATION)
    held = meta.lease_holder("f")
    assert held is not None
    meta.acquire("f", "elsewhere:1:0.00", time.time(), 60.0, dead_owner=held.owner)
    assert fenced(meta, agreement.lease("f", before.primary.token, shared=False))
    assert fenced(meta, agreement.lease("f", before.secondary.token, shared=True))
    assert ask(agreement, Beat("a", 1, 0, None)).seats.primary is None


def test_who_resigns_sets_the_lease_free(meta: MetaStore, agreement: Agreement) -> None:
    primary = seated(agreement).seats.primary
    assert primary is not None
    assert ask(agreement, Resign(primary.token)).seats.primary is None
    assert meta.acquire("f", "elsewhere:1:0.00", time.time(), 60.0).token > primary.token


def test_a_host_that_leaves_gives_its_seat_back_whichever_it_is(agreement: Agreement) -> None:
    one, two = (member(agreement, name) for name in ("one", "two"))
    for host in (one, two):
        host.beat()
    assert (one.serve("f").role, two.serve("f").role) == (Role.LEAD, Role.FOLLOW)
    two.close()
    assert agreement.look(["f"])["f"].seats.secondary is None
    one.close()
    assert agreement.look(["f"])["f"].seats.primary is None


def test_the_wheel_has_steps_and_a_way(agreement: Agreement) -> None:
    with pytest.raises(InvalidTransitionError, match="active standby → passive standby hot → passive standby cold"):
        turn(agreement, "f", COLD_STANDBY)
    assert turn_to(agreement, "f", DEPLOYED)[-1] is DEPLOYED
    assert agreement.look(["f"])["f"].seats.turns == 3
    with pytest.raises(DeclarationError, match="active replication"):
        named("hot")
    assert named("Passive-Standby_hot") is HOT_STANDBY


def member(
    agreement: Agreement, host: str, incarnation: int = 1, *, beat: float = 0.01, detection: float = 0.05
) -> Membership:
    made = Membership(host, incarnation, agreement, Timing(beat=beat, detection=detection), lambda why: None)
    made.sessions = True
    made.serve("f")
    return made


def test_a_silent_host_is_replaced_within_the_detection_time(agreement: Agreement) -> None:
    """And not before; the time is the watcher's own, and a look may come up to two beats after it is over."""
    now = 100.0
    one, two = (member(agreement, name, beat=0.25, detection=1.0) for name in ("one", "two"))
    timing = two.timing
    for host in (one, two):
        host.clock = lambda: now
        host.beat()
    assert (one.serve("f").role, two.serve("f").role) == (Role.LEAD, Role.FOLLOW)
    silent_since = now
    while two.serve("f").role is not Role.LEAD and now - silent_since < 10 * timing.detection:
        now += timing.beat
        two.beat()
    assert timing.detection <= now - silent_since <= timing.detection + 2 * timing.beat
    one.beat()
    assert one.serve("f").role is not Role.LEAD, "it finds that it has lost its seat"


def test_a_watcher_that_was_stopped_takes_nobody_for_dead(agreement: Agreement) -> None:
    now = 100.0
    one, two = (member(agreement, name, detection=1.0) for name in ("one", "two"))
    for host in (one, two):
        host.clock = lambda: now
        host.beat()
    now += 3600.0
    two.beat()
    assert two.serve("f").role is Role.FOLLOW


def test_a_process_that_was_replaced_loses_its_seat(agreement: Agreement) -> None:
    gone: list[str] = []
    old = Membership("one", 1, agreement, Timing(), lambda why: gone.append(why))
    old.sessions = True
    old.serve("f")
    old.beat()
    assert old.serve("f").role is Role.LEAD
    new = member(agreement, "one", incarnation=2)
    new.beat()
    assert new.serve("f").role is Role.LEAD
    old.beat()
    assert old.serve("f").role is Role.NONE
    assert gone


def test_a_process_that_was_named_by_the_primary_ends_and_the_next_one_may_sit(agreement: Agreement) -> None:
    gone: list[str] = []
    one, two = (member(agreement, name, detection=60.0) for name in ("one", "two"))
    two.on_exit = gone.append
    one.beat(), two.beat(), one.beat()
    assert two.serve("f").role is Role.FOLLOW
    one.stop_replica("f", 3, "rows")
    two.beat()
    assert two.serve("f").role is Role.NONE
    two.beat()
    assert len(gone) == 1
    assert "epoch 3 of 'f'" in gone[0]
    turn(agreement, "f", HOT_STANDBY)
    after = member(agreement, "two", incarnation=2, detection=60.0)
    after.beat()
    assert after.serve("f").role is Role.HOT


def test_a_secondary_that_finds_the_difference_itself_says_what_it_is(agreement: Agreement) -> None:
    gone: list[str] = []
    one, two = (member(agreement, name, detection=60.0) for name in ("one", "two"))
    two.on_exit = gone.append
    one.beat(), two.beat()
    two.stop_replica("f", 3, "the rows")
    two.beat()
    assert len(gone) == 1
    assert "the rows" in gone[0]


def test_a_store_that_is_away_is_asked_again(agreement: Agreement, monkeypatch: pytest.MonkeyPatch) -> None:
    one = member(agreement, "one")
    one.beat()

    def away(requests: object) -> dict[str, Agreed]:
        raise OSError("away")

    with monkeypatch.context() as patched:
        patched.setattr(agreement, "ask", away)
        one.beat()
        assert one.away_since is not None
        assert one.serve("f").role is Role.LEAD, "it goes on, and the next commit tells"
    one.beat()
    assert one.away_since is None


def test_a_second_start_goes_on_with_what_is_known_but_for_what_went_wrong(agreement: Agreement) -> None:
    seated(agreement)
    wrong = StoredNotes(diverged=Divergence("b", 1, "rows"), failed="why", failing={})
    agreement.note("f", msgspec.structs.replace(wrong, calibration={"active standby": 1.0}))
    agreement.open("f", DEPLOYED)
    found = agreement.look(["f"])["f"]
    assert json.loads(found.notes.text) == {"calibration": {"active standby": 1.0}}
    assert found.seats.primary is not None
    assert found.seats.scheme is ACTIVE_STANDBY


def test_only_the_primary_ends_a_fragment(agreement: Agreement) -> None:
    before = seated(agreement).seats
    assert before.primary is not None
    late = agreement.lease("f", before.primary.token, shared=False)
    taken = ask(agreement, Seize("b", 1, before.primary, before.members["a"])).seats
    with pytest.raises(LeaseLostError):
        agreement.end(late)
    assert not agreement.look(["f"])["f"].ended
    assert taken.primary is not None
    agreement.end(agreement.lease("f", taken.primary.token, shared=False))
    assert agreement.look(["f"])["f"].ended


def test_replicas_that_differ_do_not_process_side_by_side_again(agreement: Agreement) -> None:
    one, two = (member(agreement, name, detection=60.0) for name in ("one", "two"))
    one.beat()
    agreement.note("f", StoredNotes(diverged=Divergence("two", 3, "rows")))
    two.beat()
    two.beat()
    assert two.serve("f").keeper.seat is None
    turn(agreement, "f", HOT_STANDBY)
    two.beat()
    two.beat()
    assert two.serve("f").role is Role.HOT
