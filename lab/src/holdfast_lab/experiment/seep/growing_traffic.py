"""Linear Road on a cluster of Spark workers on this machine, from little traffic to much, scaled while it runs.

The traffic of so many expressways grows by the benchmark's own ramp, faster than real time, and waits for nobody. It
begins with one partition of each operator on one worker; the autoscaler adds partitions, and workers from the pool for
them. Every answer is compared with what it must be. A kill takes a worker as the loss of a machine does: with its
executor and all that runs there.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt
import polars as pl
import psutil

from holdfast.connect.sinks.file_sink import parquet
from holdfast.engine.observer import Observer
from holdfast.engine.options import RunOptions
from holdfast.engine.scaling_rules import Scaling, ScalingDecision
from holdfast.epoch.report import EpochReport
from holdfast.errors import HoldfastError
from holdfast.run import run, start
from holdfast.run_handle import Running
from holdfast.scale.pool import OwnCluster
from holdfast_lab.bench.bench_figures import Reports
from holdfast_lab.bench.road_run import LIMITS, RoadTraffic, application
from holdfast_lab.experiment.seep.scaling_runs import Capacity
from holdfast_lab.linear_road.expected_answers import ANSWER_KINDS, Verdict
from holdfast_lab.linear_road.expressway import Expressway
from holdfast_lab.linear_road.many_expressways import ArrivingRoads, ManyExpressways, arrivals

__all__ = ["RampPlan", "RampStory", "at_full_speed", "drive_up", "growing_traffic", "peak_rate", "story_of"]

_SECONDS_TO_STAND = 180.0
_PATIENCE = 60.0
_LOOK = 0.1
_LOOK_AT_WORKERS = 1.0
_WARM_SECONDS = 30
"""Of traffic before the clock runs: every vehicle that is on the road has reported once."""


@dataclass(frozen=True, slots=True)
class RampPlan:
    """`minutes` of traffic that grows as in three hours, `speed` times as fast as real time, with `density` times as
    many vehicles, on `expressways`. `kill` is the share of the time after which a worker is lost."""

    expressways: int
    minutes: float
    speed: float
    density: float
    most: int
    kill: float | None = None
    threshold: float = 0.7
    latency: float = 0.5


def growing_traffic(plan: RampPlan, seed: int) -> RoadTraffic:
    return RoadTraffic.of(Expressway(seed, 0.0, plan.minutes, plan.density), _WARM_SECONDS)


def peak_rate(traffic: RoadTraffic, plan: RampPlan) -> float:
    """Tuples per second of one expressway at the end, by the clock."""
    last = int(traffic.one["time"][-1])
    return traffic.one.filter(pl.col("time") > last - 60).height / 60 * plan.speed


def at_full_speed(plan: RampPlan, traffic: RoadTraffic, cluster: OwnCluster, place: Path, seconds: float) -> Capacity:
    """What one partition of each operator can do on this machine: all traffic is there at once. The use of a CPU is
    that of the busiest operator."""
    place.mkdir(parents=True, exist_ok=True)
    roads = ManyExpressways.of(traffic.one, plan.expressways, place / "one.arrow")
    source = ArrivingRoads(roads, arrivals(traffic.one), roads.rows, plan.speed, time.time)
    pipeline = application().linear_road(source, roads.table(traffic.history), parquet(place / "answers"))
    seen = Reports()
    run(
        pipeline, spark=cluster.session(), observer=seen, store=place / "store", latency=plan.latency, partitions=1,
        tasks=1, checkpoint="delta", until_idle=True, max_seconds=seconds,
    )  # fmt: skip
    shutil.rmtree(place, ignore_errors=True)
    steady = seen.epochs[len(seen.epochs) // 2 - 1 :] if len(seen.epochs) > 3 else seen.epochs
    if len(steady) < 2:
        raise HoldfastError(
            f"{len(seen.epochs)} epochs are too few to measure what a partition can do",
            cure="run it again when the machine has less to do",
        )
    took, counted = steady[-1].committed - steady[0].committed, steady[1:]
    use = {name: sum(part.cpu for one in counted for part in one.work[name]) / took for name in counted[0].work}
    return Capacity(sum(one.rows for one in counted) / took, max(use.values()))


@dataclass(slots=True)
class RampWatch(Observer):
    """Notes commits, partitions and decisions. The clock of the traffic begins when the first rows are committed."""

    source: ArrivingRoads
    warm: int
    rows: list[int] = field(default_factory=lambda: [0])
    committed: list[float] = field(default_factory=lambda: [0.0])
    answers: list[int] = field(default_factory=lambda: [0])
    partitions: list[dict[str, int]] = field(default_factory=lambda: [{}])
    decisions: list[ScalingDecision] = field(default_factory=list)

    def epoch_committed(self, report: EpochReport) -> None:
        self.rows.append(self.rows[-1] + report.rows)
        self.committed.append(report.committed)
        self.answers.append(report.output_rows)
        self.partitions.append({name: len(parts) for name, parts in report.work.items()})
        if self.source.end is None and self.rows[-1] >= self.warm:
            self.source.begin()

    def scaling_decided(self, decision: ScalingDecision) -> None:
        if decision.acts and (decision.epoch is not None or decision.problem is not None):
            self.decisions.append(decision)


@dataclass(frozen=True, slots=True)
class RampStory:
    """What happened, in seconds from the first row that arrived by the clock. Of each row of the one expressway: when
    it arrived, when it was committed, and whether its answer was late; `weights` is how many answers it got, with its
    twins on all expressways."""

    arrived: npt.NDArray[np.float64]
    done: npt.NDArray[np.float64]
    weights: npt.NDArray[np.int64]
    late: npt.NDArray[np.bool_]
    expressways: int
    commits: Sequence[float]
    partitions: Sequence[Mapping[str, int]]
    workers: Sequence[tuple[float, int]]
    decisions: Sequence[tuple[float, str]]
    verdict: Verdict | None
    killed: float | None = None

    def input_rate(self, begin: float, end: float) -> float:
        return self._between(self.arrived, begin, end) * self.expressways / (end - begin)

    def output_rate(self, begin: float, end: float) -> float:
        """Tuples whose answers were committed."""
        return self._between(self.done, begin, end) * self.expressways / (end - begin)

    def _between(self, moments: npt.NDArray[np.float64], begin: float, end: float) -> int:
        return int(np.searchsorted(moments, end) - np.searchsorted(moments, begin))

    def latency_ms(self, *shares: float, begin: float = 0.0, end: float = np.inf) -> list[float | None]:
        """Of the answers to rows that arrived within a time."""
        chosen = (self.arrived >= begin) & (self.arrived < end) & (self.weights > 0)
        waits, weights = (self.done - self.arrived)[chosen], self.weights[chosen]
        if not len(waits):
            return [None] * len(shares)
        order = np.argsort(waits)
        reached = np.cumsum(weights[order])
        places = np.searchsorted(reached, np.asarray(shares) * reached[-1] * (1 - 1e-12))
        return [round(1e3 * float(waits[order][min(place, len(waits) - 1)]), 1) for place in places]

    def workers_at(self, at: float) -> int:
        return next((count for when, count in reversed(self.workers) if when <= at), self.workers[0][1])

    def partitions_at(self, at: float) -> int:
        """Of all operators together."""
        place = max(1, int(np.searchsorted(self.commits, at, side="right")) - 1)
        return sum(self.partitions[min(place, len(self.partitions) - 1)].values())

    def late_answers(self, begin: float = 0.0, end: float = np.inf) -> int:
        """Of those that came within a time."""
        chosen = self.late & (self.done >= begin) & (self.done < end)
        return int(self.weights[chosen].sum())

    def pause(self, since: float) -> float:
        """The longest time between two commits that ends after a moment."""
        moments = [0.0, *(moment for moment in self.commits if moment > 0)]
        gaps = [after - before for before, after in pairwise(moments) if after >= since]
        return max(gaps, default=float("nan"))


def drive_up(plan: RampPlan, traffic: RoadTraffic, cluster: OwnCluster, place: Path) -> RampStory:
    """Run the application from the first row to the last one."""
    place.mkdir(parents=True, exist_ok=True)
    roads = ManyExpressways.of(traffic.one, plan.expressways, place / "one.arrow")
    source = ArrivingRoads(roads, arrivals(traffic.one), traffic.warm, plan.speed, time.time)
    watch = RampWatch(source, traffic.warm * plan.expressways)
    pipeline = application().linear_road(source, roads.table(traffic.history), parquet(place / "answers"))
    settings = RunOptions(
        store=place / "store", latency=plan.latency, partitions=1, tasks=1, checkpoint="delta",
        scaling=Scaling(report=2.0, reports=2, threshold=plan.threshold, cooldown=6.0, most=plan.most),
    )  # fmt: skip
    every, workers, killed = roads.rows * plan.expressways, list[tuple[float, int]](), list[float]()
    with start(pipeline, settings, observer=watch, spark=cluster.session(), pool=cluster.pool) as running:
        began, looked = time.time(), 0.0
        while watch.rows[-1] < every and not _ended(running):
            now, end = time.time(), source.end
            if now > (began + _SECONDS_TO_STAND if end is None else end + _PATIENCE):
                break
            if now - looked > _LOOK_AT_WORKERS:
                workers.append((now, sum(bool(worker.executors) for worker in cluster.workers())))
                looked = now
            if plan.kill is not None and not killed and end is not None:
                first = float(source.arrived()[0])
                if now > first + plan.kill * (end - first):
                    killed.append(_lose_a_worker(cluster))
        running.stop()
        running.wait()
    if source.end is None:
        raise HoldfastError("the first rows were not taken in time", cure="is the machine very busy? try again")
    return story_of(plan, traffic, roads, watch, workers, killed[0] if killed else None, place / "answers")


def story_of(
    plan: RampPlan, traffic: RoadTraffic, roads: ManyExpressways, watch: RampWatch,
    workers: Sequence[tuple[float, int]], killed: float | None, answers: Path,
) -> RampStory:  # fmt: skip
    began, warm = float(watch.source.arrived()[0]), traffic.warm
    contained = np.asarray(watch.rows) // roads.count
    moments = np.append(np.asarray(watch.committed), np.inf)
    done = moments[np.searchsorted(contained, np.arange(warm, roads.rows), side="right")] - began
    arrived = watch.source.arrived() - began
    weights, late = np.zeros(len(done), np.int64), np.zeros(len(done), bool)
    for kind, name in ANSWER_KINDS.items():
        gets = traffic.expected.gets(kind)[warm:]
        weights += gets * roads.count
        late |= gets & (done - arrived > LIMITS[name])
    whole = watch.rows[-1] >= roads.rows * roads.count
    return RampStory(
        arrived=arrived,
        done=done,
        weights=weights,
        late=late,
        expressways=plan.expressways,
        commits=[moment - began for moment in watch.committed],
        partitions=watch.partitions,
        workers=[(at - began, count) for at, count in workers],
        decisions=[(decision.at - began, str(decision)) for decision in watch.decisions],
        verdict=traffic.expected.compare(pl.scan_parquet(answers), roads) if whole else None,
        killed=None if killed is None else killed - began,
    )


def _lose_a_worker(cluster: OwnCluster) -> float:
    """kill -9 of a worker that runs an executor, with all its processes; when that was."""
    [victim, *_] = [worker for worker in cluster.workers() if worker.executors]
    process = psutil.Process(victim.pid)
    family = [process, *process.children(recursive=True)]
    at = time.time()
    for one in family:
        with suppress(psutil.NoSuchProcess):
            one.kill()
    return at


def _ended(running: Running) -> bool:
    """Whether it has ended by itself, after a moment."""
    try:
        running.wait(_LOOK)
    except TimeoutError:
        return False
    return True
