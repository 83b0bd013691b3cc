"""The transactions: who may do what, and that the first one wins."""

from __future__ import annotations

from holdfast.replica.ledger import (
    Beat,
    CommitEpoch,
    Enlist,
    Ledger,
    MarkCheckpoint,
    PlanEpoch,
    Resign,
    Seat,
    Seize,
    Skip,
    StopReplica,
    Turn,
)
from holdfast.replica.schemes import Scheme


def _two_hosts(scheme: Scheme = Scheme.ACTIVE_STANDBY, *, precise: bool = True) -> Ledger:
    """`a` is the primary with token 1, `b` the secondary with token 2."""
    ledger = Ledger(upstreams=1, scheme=scheme, precise=precise)
    for host, number in (("a", 1), ("b", 2)):
        assert ledger.apply(Beat(host, number, 0, None)).done
    assert ledger.apply(Seize("a", 1, None, None)).done
    assert ledger.apply(Enlist("b", 2, None, None)).done
    return ledger


def _seize(ledger: Ledger) -> bool:
    """By `b`, with what it has seen last."""
    return ledger.apply(Seize("b", 2, ledger.primary, ledger.members["a"])).done


def test_a_seat_is_not_taken_from_who_has_beaten_since() -> None:
    ledger = _two_hosts()
    seen = ledger.members["a"]
    ledger.apply(Beat("a", 1, 0, None))
    assert not ledger.apply(Seize("b", 2, ledger.primary, seen)).done
    assert _seize(ledger)
    assert ledger.primary == Seat("b", 2, 3)
    assert ledger.secondary is None


def test_a_process_that_was_replaced_loses_its_seat_at_once() -> None:
    ledger = _two_hosts()
    seen = ledger.members["a"]
    ledger.apply(Beat("a", 3, 0, None))
    assert not ledger.apply(Beat("a", 1, 0, None)).done
    assert ledger.apply(Seize("b", 2, ledger.primary, seen)).done


def test_who_lost_the_seat_can_do_nothing() -> None:
    ledger = _two_hosts()
    ledger.apply(PlanEpoch(1, 1, ((0, 5),)))
    assert _seize(ledger)
    for request in (
        PlanEpoch(1, 2, ((5, 6),)),
        CommitEpoch(1, 1, 7),
        MarkCheckpoint(1, 0),
        Resign(1),
        Skip(1, 1, 0, 0),
        StopReplica(1, Seat("b", 2, 3), 1),
    ):
        assert not ledger.apply(request).done
    assert ledger.apply(CommitEpoch(3, 1, 7)).done


def test_the_first_plan_and_the_first_commit_win() -> None:
    ledger = _two_hosts(Scheme.ACTIVE_REPLICATION)
    assert ledger.apply(PlanEpoch(2, 1, ((0, 5),))).done
    late = ledger.apply(PlanEpoch(1, 1, ((0, 9),)))
    assert not late.done
    assert late.view.plans[1] == ((0, 5),)
    assert ledger.apply(CommitEpoch(1, 1, 7)).done
    late = ledger.apply(CommitEpoch(2, 1, 8))
    assert not late.done
    assert late.view.records[1].value == 7


def test_a_secondary_commits_only_with_active_replication() -> None:
    ledger = _two_hosts(Scheme.ACTIVE_REPLICATION)
    ledger.apply(PlanEpoch(1, 1, ((0, 5),)))
    assert ledger.apply(Turn(0, Scheme.ACTIVE_STANDBY)).done
    assert not ledger.apply(CommitEpoch(2, 1, 7)).done
    assert ledger.apply(Turn(1, Scheme.ACTIVE_REPLICATION)).done
    assert ledger.apply(CommitEpoch(2, 1, 7)).done


def test_the_wheel_turns_one_step_at_a_time_and_once() -> None:
    ledger = _two_hosts(Scheme.DEPLOYED)
    assert not ledger.apply(Turn(0, Scheme.ACTIVE_REPLICATION)).done
    assert ledger.apply(Turn(0, Scheme.PASSIVE_STANDBY_COLD)).done
    assert not ledger.apply(Turn(0, Scheme.PASSIVE_STANDBY_HOT)).done  # decided before it had turned


def test_inputs_are_planned_without_gap_and_overlap() -> None:
    ledger = _two_hosts()
    assert not ledger.apply(PlanEpoch(1, 1, ((1, 5),))).done
    assert ledger.apply(PlanEpoch(1, 1, ((0, 5),))).done
    assert not ledger.apply(PlanEpoch(1, 2, ((4, 6),))).done
    assert not ledger.apply(PlanEpoch(1, 2, ((6, 7),))).done
    assert ledger.apply(PlanEpoch(1, 2, ((5, 7),))).done


def test_plans_and_records_are_kept_for_replay_and_delivery() -> None:
    ledger = _two_hosts()
    for epoch in range(1, 9):
        assert ledger.apply(PlanEpoch(1, epoch, ((epoch - 1, epoch),))).done
        assert ledger.apply(CommitEpoch(1, epoch, epoch)).done
    assert ledger.apply(MarkCheckpoint(1, 4)).done
    assert ledger.apply(MarkCheckpoint(1, 7)).done
    assert set(ledger.plans) == set(range(1, 9))  # nothing is delivered
    ledger.apply(Beat("a", 1, 8, None))
    assert set(ledger.plans) == set(ledger.records) == {5, 6, 7, 8}  # from the checkpoint before the last


def test_a_gap_is_left_only_when_it_is_allowed() -> None:
    for precise in (True, False):
        ledger = _two_hosts(precise=precise)
        ledger.apply(PlanEpoch(1, 1, ((0, 5),)))
        assert ledger.apply(Skip(1, 1, 0, 0)).done is not precise
        assert ledger.lineage == (0 if precise else 1)
        assert ledger.apply(PlanEpoch(1, 2, ((9, 12),))).done is not precise


def test_a_replica_that_differs_is_named_and_has_no_seat() -> None:
    ledger = _two_hosts()
    assert not ledger.apply(StopReplica(1, Seat("a", 1, 1), 4)).done  # never the primary
    assert ledger.apply(StopReplica(2, Seat("b", 2, 2), 4)).done
    assert ledger.stopped == (("b", 2, 4),)
    assert not ledger.apply(Enlist("b", 2, None, None)).done
    assert not _seize(ledger)
