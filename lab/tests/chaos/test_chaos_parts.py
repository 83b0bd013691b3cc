"""The plan of faults, when a fault is over, and how outputs are compared."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

from holdfast.errors import EmptyOutputError
from holdfast_lab.chaos import campaign
from holdfast_lab.chaos.campaign import Campaign
from holdfast_lab.chaos.fault_plan import CommitSeen, PlannedFault, Strike, plan_faults
from holdfast_lab.chaos.output_difference import compare
from holdfast_lab.chaos.victim_process import VictimProcess

ROWS = pl.DataFrame({"key": [1, 1, 2], "words": [["a"], ["a"], ["b", "c"]], "mean": [0.1, 0.1, 0.3]})


def test_the_seed_fixes_the_plan() -> None:
    plan = plan_faults(20, ["driver", "worker"], seed=4)
    assert plan == plan_faults(20, ["driver", "worker"], seed=4)
    assert plan != plan_faults(20, ["driver", "worker"], seed=5)
    assert sum(fault.kind == "driver" for fault in plan) == 10
    assert any(fault.during_start for fault in plan)


def test_a_fault_waits_for_a_commit_unless_it_is_for_a_start() -> None:
    usual = PlannedFault("worker", moment=0.5, during_start=False, pick=0.0)
    assert usual.due(started=10.0, struck=9.0, committed=None) is None
    assert usual.due(started=10.0, struck=9.0, committed=20.0) == 21.5
    early = PlannedFault("driver", moment=0.5, during_start=True, pick=0.0)
    assert early.due(started=10.0, struck=9.0, committed=None) == 14.0
    assert early.due(started=10.0, struck=12.0, committed=None) is None  # no start since the last fault
    assert early.due(started=10.0, struck=12.0, committed=20.0) == 21.5


def test_a_lost_driver_is_recovered_by_the_next_driver_s_commit() -> None:
    strike = Strike("driver", at=10.0, driver=100)
    strike.on_commit(CommitSeen(100, 5, started=9.0, committed=10.001))  # its last words
    assert strike.seconds is None
    strike.on_session(101, 16.0)
    strike.on_commit(CommitSeen(101, 6, started=17.0, committed=18.0))
    assert strike.seconds == 8.0
    assert strike.session == 16.0


def test_a_lost_worker_is_recovered_when_the_epochs_in_flight_are_committed() -> None:
    strike = Strike("worker", at=10.0, driver=100)
    strike.on_commit(CommitSeen(100, 5, started=9.0, committed=10.5))
    strike.on_commit(CommitSeen(100, 6, started=9.9, committed=11.5))
    strike.on_commit(CommitSeen(100, 7, started=10.6, committed=12.5))
    assert strike.seconds == 1.5


def test_a_worker_lost_between_epochs_is_recovered_by_the_next_commit() -> None:
    strike = Strike("worker", at=10.0, driver=100)
    strike.on_commit(CommitSeen(100, 7, started=10.6, committed=11.0))
    assert strike.seconds == 1.0


def test_the_end_of_the_run_ends_a_fault() -> None:
    strike = Strike("worker", at=10.0, driver=100)
    strike.on_end(13.0)
    assert strike.seconds == 3.0


def test_equal_outputs_may_have_any_order() -> None:
    assert compare(ROWS.reverse(), ROWS).equal


def test_missing_and_surplus_rows_are_counted() -> None:
    difference = compare(pl.concat([ROWS.slice(1, 1), ROWS.slice(2), ROWS.slice(2)]), ROWS)
    assert (difference.lost, difference.duplicated) == (1, 1)
    assert not difference.equal


def test_no_output_at_all_is_all_lost() -> None:
    assert compare(pl.DataFrame(), ROWS).lost == 3


def test_floats_must_be_the_same_to_the_last_bit() -> None:
    assert not compare(ROWS.with_columns(pl.col("mean") + 1e-15), ROWS).equal


@pytest.mark.parametrize("actual", [pl.DataFrame(), ROWS.clear(), ROWS])
def test_an_expected_output_without_rows_is_refused(actual: pl.DataFrame) -> None:
    with pytest.raises(EmptyOutputError) as caught:
        compare(actual, ROWS.clear())
    assert caught.value.cure


def test_a_campaign_ends_before_its_first_fault_if_the_fault_free_run_puts_out_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    planned: list[int] = []

    class Round:
        def __init__(self, victim: object, faults: list[PlannedFault], *others: object) -> None:
            planned.append(len(faults))

        def run(self) -> list[Strike]:
            return []

    monkeypatch.setattr(campaign, "_Round", Round)
    monkeypatch.setattr(campaign, "output_of", lambda settings: ROWS.clear())
    with pytest.raises(EmptyOutputError):
        Campaign("ysb", 3, 1, ["driver"], tmp_path, None, lambda line: None).run()
    assert planned == [0]


def test_only_the_runs_with_faults_go_through_a_p_stream(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[bool, str]] = []

    class Round:
        def __init__(self, victim: VictimProcess, faults: list[PlannedFault], *others: object) -> None:
            seen.append((victim.settings.persist, victim.settings.fragment))
            self._strikes = [Strike(fault.kind, at=0.0, driver=1) for fault in faults]

        def run(self) -> list[Strike]:
            return self._strikes

    monkeypatch.setattr(campaign, "_Round", Round)
    monkeypatch.setattr(campaign, "output_of", lambda settings: ROWS)
    for persist in (True, False):
        made = Campaign("ysb", 3, 1, ["driver"], tmp_path, None, lambda line: None, persist=persist).run()
        assert made.equal
    assert seen == [(False, "victim"), (True, "victim.results"), (False, "victim"), (False, "victim")]
