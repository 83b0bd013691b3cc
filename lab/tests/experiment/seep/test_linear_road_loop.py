"""The `linear-road` experiment: what is told of a run, and a run on a cluster that loses a worker."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from holdfast.scale.pool import OwnCluster
from holdfast_lab.experiment.definition import Settings
from holdfast_lab.experiment.plots import save
from holdfast_lab.experiment.seep.growing_traffic import RampPlan, RampStory, drive_up, growing_traffic
from holdfast_lab.experiment.seep.linear_road_loop import plan_of, told
from holdfast_lab.experiment.seep.scaling_runs import Capacity
from holdfast_lab.linear_road.expected_answers import Verdict

PLAN = RampPlan(2, minutes=1.0, speed=6.0, density=1.0, most=2)
FULL = Capacity(100_000.0, 0.5)


def verdict(missing: int = 0) -> Verdict:
    return Verdict({"toll": 20}, {"toll": 20 - missing}, {"toll": missing}, {"toll": 0})


def story(**changes: Any) -> RampStory:
    """A row arrives every second and is committed half a second later; the last five wait for eight seconds."""
    arrived = np.arange(20.0)
    done = arrived + 0.5
    done[15:] = 27.5
    given: dict[str, Any] = {
        "arrived": arrived, "done": done, "weights": np.full(20, 2), "late": done - arrived > 5.0, "expressways": 2,
        "commits": [-2.0, *np.unique(done)], "partitions": [{"a": 1, "b": 1}] * 10 + [{"a": 2, "b": 1}] * 7,
        "workers": [(0.0, 1), (9.0, 2)], "decisions": [(8.5, "split")], "verdict": verdict(),
    }  # fmt: skip
    return RampStory(**{**given, **changes})


def test_latencies_are_of_the_answers_to_rows_that_arrived_within_a_time() -> None:
    assert story().latency_ms(0.5, 0.99, end=10.0) == [500.0, 500.0]
    assert story().latency_ms(0.5, begin=15.0) == [10_500.0]
    assert story().latency_ms(0.5, begin=100.0) == [None]
    assert story().late_answers() == 2 * 5
    assert story().late_answers(end=20.0) == 0


def test_rates_and_workers_are_those_of_a_time() -> None:
    assert story().input_rate(0.0, 10.0) == pytest.approx(2.0)
    assert story().output_rate(16.0, 20.0) == 0.0
    assert [story().workers_at(at) for at in (1.0, 9.5)] == [1, 2]
    assert [story().partitions_at(at) for at in (1.0, 27.6)] == [2, 3]


def test_a_pause_after_a_kill_is_the_longest_time_between_commits() -> None:
    assert story().pause(15.0) == pytest.approx(27.5 - 14.5)
    assert story().pause(1.0) == pytest.approx(27.5 - 14.5)


def test_what_is_lost_or_late_misses_a_bar(tmp_path: Path) -> None:
    bars = {bar.name: bar for bar in told(PLAN, story(), FULL).bars}
    assert bars["answers that are missing, double or wrong"].ok
    assert not bars["late answers"].ok
    assert not bars["99th percentile of the latency, ms"].ok
    lost = told(PLAN, story(verdict=verdict(missing=3)), FULL)
    assert lost.bars[0].value == 3
    assert not lost.bars[0].ok
    killed = told(PLAN, story(killed=15.0, verdict=None), FULL)
    assert not killed.bars[0].ok
    assert {bar.name for bar in killed.bars} >= {"late answers before the kill"}
    assert any("10 answers were late after it" in note for note in killed.notes)
    assert killed.plot is not None
    assert all(path.exists() for path in save(killed.plot, "kill", tmp_path, "kill"))


def test_expressways_and_the_kill_are_those_asked_for(tmp_path: Path) -> None:
    asked = Settings(True, 1, tmp_path, print, kill=True, expressways=3)
    assert (plan_of(asked).expressways, plan_of(asked).kill) == (3, 0.5)
    assert plan_of(Settings(False, 1, tmp_path, print)).kill is None


@pytest.mark.spark
@pytest.mark.long  # `holdfast experiment linear-road --kill`
def test_a_cluster_that_loses_a_worker_answers_all_and_rightly(tmp_path: Path) -> None:
    plan = RampPlan(1, minutes=4.0, speed=12.0, density=3.0, most=2, kill=0.5, threshold=0.05)
    traffic = growing_traffic(plan, 1)
    with OwnCluster(1, 1, cores=4) as cluster:
        found = drive_up(plan, traffic, cluster, tmp_path)
    assert found.verdict is not None
    assert found.verdict.right, found.verdict
    assert found.killed is not None
    assert found.commits[-1] > found.killed
