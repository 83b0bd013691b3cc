"""From a guarantee of completeness to what hosts are told: by a descriptor, or by what they have measured."""

from __future__ import annotations

import json
import os
import time
from fractions import Fraction
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import holdfast as hf
from holdfast.engine.fragment_runs import open_cuts
from holdfast.engine.options import RunOptions
from holdfast.errors import DeclarationError, DescriptorError
from holdfast.laar.descriptor import Descriptor
from holdfast.laar.epoch_journal import EpochWork, host_journal, read_journals
from holdfast.laar.host_strategy import StoredPlan
from holdfast.laar.rate_controller import ON_HOSTS, RateController
from holdfast.laar.strategy import Strategy
from holdfast.meta import MetaStore, ReplicaMeta
from holdfast.plan.cuts import cut_pipeline
from holdfast.plan.source_sample import place_cuts
from holdfast.replica.completeness import CompletenessPlanner, CompletenessSettings, completeness_planner
from holdfast.replica.deployment import Deployment, deploy, deployment_of
from holdfast.replica.process_meter import HostOverhead, ProcessMeter
from holdfast.replica.schemes.active_replication import ACTIVE_REPLICATION
from holdfast.replica.schemes.active_standby import ACTIVE_STANDBY
from holdfast.replica.schemes.deployed import DEPLOYED
from holdfast.replica.seat_store import Agreement
from holdfast.replica.seats import Activate, Turn

HOSTS = ("a", "b")
FIRST, SECOND = "app.middle", "app.out"


def pipeline(tmp_path: Path, **guarantee: Any) -> hf.Pipeline:
    made = hf.Pipeline("app", guarantee=hf.Guarantee(**guarantee) if guarantee else None)
    rows = made.source("numbers", hf.source.memory([pl.DataFrame({"n": [1, 2, 3]})])).filter(pl.col("n") > 0)
    rows.persist("middle", push_up=False).filter(pl.col("n") > 1).sink("out", hf.sink.parquet(tmp_path / "out"))
    return made


def descriptor(**changes: Any) -> dict[str, Any]:
    return {
        "format": "laar-instance-1", "name": "app", "sources": ["numbers"], "pes": [FIRST, SECOND],
        "configs": [{"name": "Low", "prob": 0.8, "rates": [4]}, {"name": "High", "prob": 0.2, "rates": [8]}],
        "edges": [{"from": "numbers", "to": FIRST, "selectivity": 1, "cost": 0.1},
                  {"from": FIRST, "to": SECOND, "selectivity": 1, "cost": 0.1}],
        "n_hosts": 2, "K": 1, "k": 2, "T": 1, "ic_target": 0.1, **changes,
    }  # fmt: skip


@pytest.fixture
def meta(tmp_path: Path) -> Any:
    opened = MetaStore(tmp_path, sync=False)
    yield opened
    opened.close()


def planner(
    tmp_path: Path, meta: MetaStore, said: dict[str, Any] | None = None, target: float = 0.6
) -> CompletenessPlanner:
    place = None
    if said is not None:
        place = tmp_path / "descriptor.json"
        place.write_text(json.dumps(said))
    made = completeness_planner(pipeline(tmp_path, completeness=target), tmp_path, meta, HOSTS, (),
                         CompletenessSettings(place, 1.0), lambda text: None)  # fmt: skip
    assert made is not None
    return made


def test_a_descriptor_leads_to_the_plan_of_the_paper(tmp_path: Path, meta: MetaStore) -> None:
    plan = planner(tmp_path, meta, descriptor()).plan()
    assert plan is not None
    assert plan.ic == pytest.approx(2 / 3)
    assert plan.cost == pytest.approx(1.6)
    low, high = plan.active(0), plan.active(1)
    assert {fragment: sorted(active) for fragment, (active, _) in low.items()} == {
        FIRST: ["a", "b"],
        SECOND: ["a", "b"],
    }
    assert [len(active) for active, _ in high.values()] == [1, 1]
    assert high[FIRST][0] != high[SECOND][0]
    assert StoredPlan.of(plan).plan() == plan


@pytest.mark.parametrize(
    ("changes", "target", "said"),
    [
        ({}, 0.7, "no strategy keeps a completeness of 0.7"),
        ({"n_hosts": 3}, 0.6, "n_hosts"),
        ({"k": 3, "n_hosts": 2}, 0.6, "k: it is 3"),
        ({"sources": ["others"], "edges": [{"from": "others", "to": FIRST, "selectivity": 1, "cost": 1},
                                           {"from": FIRST, "to": SECOND, "selectivity": 1, "cost": 1}]},
         0.6, "sources: '(numbers|others)'"),
        ({"pes": [FIRST], "edges": [{"from": "numbers", "to": FIRST, "selectivity": 1, "cost": 0.1}]}, 0.6,
         f"pes: '{SECOND}' is missing"),
    ],
)  # fmt: skip
def test_a_descriptor_that_is_not_of_the_pipeline_is_refused(
    tmp_path: Path, meta: MetaStore, changes: dict[str, Any], target: float, said: str
) -> None:
    with pytest.raises(DescriptorError, match=said):
        planner(tmp_path, meta, descriptor(**changes), target).plan()


def test_what_cannot_both_be_kept_is_refused(tmp_path: Path, meta: MetaStore) -> None:
    options = RunOptions(store=tmp_path)
    with pytest.raises(DeclarationError, match="both completeness and recovery time"):
        pipeline(tmp_path, completeness=0.6, recovery="2 s")
    with pytest.raises(DeclarationError, match="a scheme"):
        deployment_of(pipeline(tmp_path, completeness=0.6), "f.py", options, meta, DEPLOYED, "delta", HOSTS)
    settings = CompletenessSettings(tmp_path / "d.json")
    with pytest.raises(DescriptorError, match="no guarantee of completeness"):
        completeness_planner(pipeline(tmp_path), tmp_path, meta, HOSTS, (), settings, lambda text: None)
    asked, plain = pipeline(tmp_path, completeness=0.6), CompletenessSettings()
    with pytest.raises(DescriptorError, match="1 host"):
        completeness_planner(asked, tmp_path, meta, ("a",), (), plain, lambda text: None)
    with pytest.raises(DescriptorError, match="host 'a' is named twice"):
        completeness_planner(asked, tmp_path, meta, HOSTS, ("a",), plain, lambda text: None)


def test_a_host_is_reckoned_with_what_it_has(tmp_path: Path, meta: MetaStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1, 2}, raising=False)
    asked = pipeline(tmp_path, completeness=0.6)
    for pinned, capacity in ((False, Fraction(3, 2)), (True, Fraction(1))):
        made = completeness_planner(
            asked, tmp_path, meta, HOSTS, (), CompletenessSettings(pinned=pinned), lambda text: None
        )
        assert made is not None
        assert made.capacity == capacity
        assert made.shared, "Spark has its part of that"


def work(tmp_path: Path, meta: MetaStore, seconds: int, cost: float = 0.01, low: int = 4,
         other_cpu: float | None = None) -> None:  # fmt: skip
    """What two hosts wrote that took turns: 4 rows a second, and twice as many in the last fifth of the time."""
    cuts = open_cuts(pipeline(tmp_path), meta)
    for fragment in cuts.fragments:
        both = [host_journal("app", fragment, tmp_path, meta, host, 1.0, lambda: other_cpu) for host in HOSTS]
        for epoch in range(1, seconds + 1):
            rows = 2 * low if epoch > 0.8 * seconds else low
            both[epoch % 2](_Report(fragment.name, epoch, rows, rows if fragment.name == FIRST else 0, cost))  # type: ignore[arg-type]


class _Report:
    """As much of a report as a journal looks at."""

    def __init__(self, fragment: str, epoch: int, rows: int, entered: int, cost: float) -> None:
        self.fragment, self.epoch, self.rows, self.entered = fragment, epoch, rows, entered
        self.started, self.committed = 100.0 + epoch - 1, 100.0 + epoch
        self.streamed_rows, self.output_rows, self.cpu = rows if entered else 0, 0, {"0-0": rows * cost}


def test_journals_of_several_hosts_are_one(tmp_path: Path, meta: MetaStore) -> None:
    work(tmp_path, meta, 40)
    assert (tmp_path / FIRST / "epochs.a.jsonl").exists()
    [first, second] = read_journals(tmp_path, "app")
    assert [epoch.epoch for epoch in first.epochs] == list(range(1, 41))
    assert second.epochs[0] == EpochWork(1.0, 1, 100.0, 101.0, 4, 0, 0, 0, 0.04, {"app.middle": 4})


def test_a_plan_is_made_when_enough_was_measured(tmp_path: Path, meta: MetaStore) -> None:
    told: list[str] = []
    made = planner(tmp_path, meta)
    made.tell = told.append
    assert made.plan() is None
    assert "until there are enough measurements" in told[-1]
    deployment = deployment_of(
        pipeline(tmp_path, completeness=0.6), "f.py", RunOptions(store=tmp_path), meta, None, "delta", HOSTS
    )
    assert deployment.scheme is ACTIVE_REPLICATION, "all are active until then"
    assert made.tick(deployment, 0.0) is deployment
    work(tmp_path, meta, 60, cost=0.1)
    assert made.tick(deployment, 30.0) is deployment, "not yet looked again"
    after = made.tick(deployment, 61.0)
    assert after.activation is not None
    assert "is guaranteed" in told[-1]
    assert Deployment.decode(ReplicaMeta(meta).deployed()["app"]) == after
    assert after.runs_like(deployment), "hosts go on as they are"
    plan = after.activation
    assert [float(config.rates[0]) for config in plan.descriptor.configs][-1] == pytest.approx(8.0, rel=0.1)
    assert plan.feeds["numbers"].fragment == FIRST
    assert made.tick(after, 200.0) is after, "nothing is new"
    work(tmp_path, meta, 60, cost=0.101)
    assert made.tick(after, 300.0) is after, "replicas are not moved for so little"


def test_a_deployment_without_a_plan_takes_back_what_was_commanded(tmp_path: Path, meta: MetaStore) -> None:
    agreement = Agreement(meta, "host:1:0.00", time.time)
    options, asked = RunOptions(store=tmp_path), pipeline(tmp_path, completeness=0.6)
    plan = planner(tmp_path, meta, descriptor()).plan()
    deploy(deployment_of(asked, "f.py", options, meta, None, "delta", HOSTS, None, plan), agreement, meta)
    agreement.ask({FIRST: [Activate(0, ("a",), HOSTS), Turn(0, ACTIVE_STANDBY)]})
    deploy(deployment_of(asked, "f.py", options, meta, None, "delta", HOSTS, None, plan), agreement, meta)
    seats = agreement.look([FIRST])[FIRST].seats
    assert (seats.active, seats.scheme) == (("a",), ACTIVE_STANDBY), "what runs by a plan is left alone"
    plain = deployment_of(pipeline(tmp_path), "f.py", options, meta, DEPLOYED, "delta", HOSTS)
    deploy(plain, agreement, meta)
    seats = agreement.look([FIRST])[FIRST].seats
    assert (seats.active, seats.scheme) == (None, DEPLOYED)


def test_what_cannot_be_kept_as_measured_leaves_all_active(tmp_path: Path, meta: MetaStore) -> None:
    told: list[str] = []
    made = planner(tmp_path, meta, target=0.9)
    made.tell, made.capacity = told.append, Fraction(1, 2)
    work(tmp_path, meta, 60, cost=0.1)
    assert made.plan() is None
    assert "the active replicas stay as they are" in told[-1]


def test_levels_that_the_controller_would_not_take_for_the_old_ones_are_told(tmp_path: Path, meta: MetaStore) -> None:
    """It takes what is lastingly more than half its tolerance above a level for the next one."""
    made = planner(tmp_path, meta)
    asked = pipeline(tmp_path, completeness=0.6)
    deployment = deployment_of(asked, "f.py", RunOptions(store=tmp_path), meta, None, "delta", HOSTS)
    made.tick(deployment, 0.0)
    work(tmp_path, meta, 60, cost=0.001, low=400)
    before = made.tick(deployment, 100.0)
    work(tmp_path, meta, 60, cost=0.001, low=430)
    after = made.tick(before, 200.0)
    low, controller = lows(after), RateController(*plan_of(before), ON_HOSTS, 0)
    assert low == pytest.approx(430.0)
    for _ in range(20):
        controller.measured([430.0])
    assert controller.config != 0, "by the plan before it would be High for good"
    work(tmp_path, meta, 60, cost=0.001, low=440)
    assert made.tick(after, 300.0) is after, "as near as that is the same"


def plan_of(deployment: Deployment) -> tuple[Descriptor, Strategy]:
    assert deployment.activation is not None
    plan = deployment.activation
    return plan.descriptor, plan.strategy


def lows(deployment: Deployment) -> float:
    return float(plan_of(deployment)[0].configs[0].rates[0])


def test_a_fragment_that_was_renamed_away_does_not_hold_up_planning(tmp_path: Path, meta: MetaStore) -> None:
    old = hf.Pipeline("app")
    rows = old.source("numbers", hf.source.memory([pl.DataFrame({"n": [1, 2, 3]})])).filter(pl.col("n") > 0)
    rows.persist("before", push_up=False).filter(pl.col("n") > 1).sink("out", hf.sink.parquet(tmp_path / "out"))
    stale = next(
        fragment for fragment in cut_pipeline(old, place_cuts(old, {})).fragments if fragment.name == "app.before"
    )
    note = host_journal("app", stale, tmp_path, meta, "a", 0.5, lambda: None)
    for epoch in range(1, 10):
        note(_Report(stale.name, epoch - 50, 4, 4, 0.01))  # type: ignore[arg-type]
    work(tmp_path, meta, 60, cost=0.1)
    plan = planner(tmp_path, meta).plan()
    assert plan is not None
    assert plan.descriptor.pes == (FIRST, SECOND)
    assert [journal.fragment for journal in read_journals(tmp_path, "app")] == [FIRST, SECOND], "by name alone, too"


@pytest.mark.parametrize(("other_cpu", "capacity"), [(None, 0.6), (0.25, 0.75), (5.0, 0.1)])
def test_what_hosts_use_beside_tasks_is_not_planned_with(
    tmp_path: Path, meta: MetaStore, monkeypatch: pytest.MonkeyPatch, other_cpu: float | None, capacity: float
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1}, raising=False)
    work(tmp_path, meta, 60, cost=0.001, other_cpu=other_cpu)
    asked = pipeline(tmp_path, completeness=0.6)
    for given, expected in ((None, capacity), (1.0, 1.0)):
        made = completeness_planner(
            asked, tmp_path, meta, HOSTS, (), CompletenessSettings(capacity=given), lambda text: None
        )  # fmt: skip
        assert made is not None
        plan = made.plan()
        assert plan is not None
        assert [float(capacity) for capacity in plan.descriptor.capacities] == [pytest.approx(expected)] * 2


def test_what_a_host_uses_beside_tasks_is_what_they_do_not_account_for() -> None:
    seen = HostOverhead()
    for at in range(8):
        assert seen.rate is None or at == 7
        assert seen.due(5.0 * at)
        seen.sample(5.0 * at, 100.0 + 3.5 * at)
        assert not seen.due(5.0 * at + 1.0)
        seen.spent(1.5)
    assert seen.rate == pytest.approx((3.5 - 1.5) / 5)
    process = ProcessMeter(_cpu={-1: 7.0})
    assert process.cpu_seconds() > 7.0
    assert process._cpu[os.getpid()] > 0
