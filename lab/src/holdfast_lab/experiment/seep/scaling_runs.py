"""Running a query on input that rises, with fixed partitions or with the autoscaler, and what is to be seen of it.

Time is measured from the beginning of the input. The latency of a row is from when it was due to the commit of its
epoch: waiting for the source to be read, for the epoch to end and for its commit are all in it.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import psutil

from holdfast.connect.sinks.file_sink import parquet
from holdfast.engine.observer import Observer
from holdfast.engine.scaling_rules import Scaling, ScalingDecision
from holdfast.epoch.report import EpochReport
from holdfast.errors import HoldfastError
from holdfast.run import run
from holdfast.spark.session import close_spark, open_spark
from holdfast_lab.experiment.seep.rising_input import Ramp, RisingSource, RisingTake
from holdfast_lab.experiment.seep.scaling_queries import ScalingQuery

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = [
    "Capacity",
    "ScaledEpoch",
    "ScalingRun",
    "capacity",
    "disturbed",
    "put_under_load",
    "reached",
    "relative",
    "session",
    "weighted_percentile",
]

_LATENCY = 1.0
_POLL = 0.005
_SAMPLES = 32
_DISTURBING = 0.25
_ENDLESS = Ramp(low=20e6, high=20e6, rise=0.0, hold=3_600.0)


@dataclass(frozen=True, slots=True)
class ScaledEpoch:
    """An epoch: when it was taken and committed, its rows, and what the partitions of the operator used of a CPU."""

    taken: RisingTake
    at: float
    rows: int
    cpu: tuple[float, ...]
    reading: tuple[float, ...]

    @property
    def partitions(self) -> int:
        return len(self.cpu)


@dataclass(slots=True)
class ScalingRun(Observer):
    """A run, epoch by epoch. Takes and epochs come in the same order."""

    ramp: Ramp
    operator: str
    takes: list[RisingTake] = field(default_factory=list)
    epochs: list[ScaledEpoch] = field(default_factory=list)
    decisions: list[ScalingDecision] = field(default_factory=list)
    others: float = 0.0
    """CPUs that others used meanwhile: processes that do not belong to the run, and other machines on the same host."""

    def epoch_committed(self, report: EpochReport) -> None:
        taken = self.takes[len(self.epochs)]
        cpu = tuple(part.cpu for part in report.work[self.operator])
        reading = tuple(part.cpu for part in report.reading)
        self.epochs.append(ScaledEpoch(taken, report.committed - taken.since, report.rows, cpu, reading))

    def scaling_decided(self, decision: ScalingDecision) -> None:
        if decision.epoch is not None or decision.problem is not None or not decision.acts:
            self.decisions.append(decision)

    @property
    def rows(self) -> int:
        return sum(epoch.rows for epoch in self.epochs)

    @property
    def dropped(self) -> int:
        return self.takes[-1].dropped if self.takes else 0

    @property
    def partitions(self) -> int:
        """Of the operator, at the end."""
        return self.epochs[-1].partitions

    @property
    def changes(self) -> int:
        return sum(before.partitions != after.partitions for before, after in pairwise(self.epochs))

    def latency_ms(self, *percents: float, since: float = 0.0) -> list[float]:
        """Percentiles over all rows that were due at `since` or later."""
        waits: list[float] = []
        weights: list[float] = []
        for epoch in self.epochs:
            if epoch.rows:
                due = self.ramp.due(np.linspace(epoch.taken.start, epoch.taken.stop - 1, _SAMPLES))
                late = due[due >= since]
                waits += list(epoch.at - late)
                weights += [epoch.rows / _SAMPLES] * len(late)
        return [1e3 * weighted_percentile(waits, weights, percent) for percent in percents]

    def throughput(self, begin: float, end: float) -> float:
        """Rows committed per second from one time to another; an epoch's rows are spread over the time since the commit
        before."""
        rows, before = 0.0, 0.0
        for epoch in self.epochs:
            within = min(end, epoch.at) - max(begin, before)
            if within > 0:
                rows += epoch.rows * within / (epoch.at - before)
            before = epoch.at
        return rows / (end - begin)

    def partitions_at(self, at: float) -> int:
        past = [epoch.partitions for epoch in self.epochs if epoch.at <= at]
        return past[-1] if past else self.epochs[0].partitions

    def dropped_at(self, at: float) -> int:
        return max((take.dropped for take in self.takes if take.at - take.since <= at), default=0)

    def use(self, seconds: float) -> list[tuple[float, tuple[float, ...]]]:
        """What each partition used of a CPU, in periods of so many seconds; those of a change are left out."""
        found = []
        bins: dict[int, list[ScaledEpoch]] = {}
        for epoch in self.epochs:
            bins.setdefault(int(epoch.at // seconds), []).append(epoch)
        for number, epochs in bins.items():
            if len({epoch.partitions for epoch in epochs}) == 1:
                sums = tuple(
                    sum(partition) / seconds for partition in zip(*(epoch.cpu for epoch in epochs), strict=True)
                )
                found.append((number * seconds, sums))
        return found

    def timeline(self, step: float) -> list[dict[str, float]]:
        """For the plot and the JSON: rates, rows dropped and partitions in every step."""
        end = max(self.ramp.seconds, self.epochs[-1].at)
        rows = []
        for begin in np.arange(0.0, end, step):
            until = float(begin) + step
            rows.append(
                {
                    "second": float(begin),
                    "input_tuples_per_s": (self.ramp.until(until) - self.ramp.until(float(begin))) / step,
                    "throughput_tuples_per_s": self.throughput(float(begin), until),
                    "dropped_tuples_per_s": (self.dropped_at(until) - self.dropped_at(float(begin))) / step,
                    "partitions": self.partitions_at(until),
                }
            )
        return rows

    def to_json(self) -> list[dict[str, Any]]:
        return [
            {"at": round(decision.at - self.takes[0].since, 2), "told": str(decision)} for decision in self.decisions
        ]


def weighted_percentile(values: Sequence[float], weights: Sequence[float], percent: float) -> float:
    """The least value that so many percent of the weight do not exceed; not-a-number of nothing."""
    if not values:
        return float("nan")
    order = np.argsort(values)
    reached = np.cumsum(np.asarray(weights)[order])
    place = int(np.searchsorted(reached, percent / 100 * reached[-1] * (1 - 1e-12)))
    return float(np.asarray(values)[order][min(place, len(values) - 1)])


@contextmanager
def session(partitions: int) -> Iterator[SparkSession]:
    """A session with slots for two epochs of so many partitions."""
    spark = open_spark(app="holdfast experiment", slots=2 * partitions)
    try:
        yield spark
    finally:
        close_spark(spark)


def put_under_load(
    spark: SparkSession,
    load: ScalingQuery,
    ramp: Ramp,
    place: Path,
    *,
    partitions: int = 1,
    scaling: Scaling | None = None,
    patience: float | None = None,
    max_seconds: float | None = None,
) -> ScalingRun:
    """Run the query from the first row of the ramp to its last, in a store of its own below `place`."""
    story = ScalingRun(ramp, load.operator)
    source = RisingSource(load.make, ramp, patience=patience, on_take=story.takes.append)
    busy, own, began = _machine_cpu(), _own_cpu(), time.monotonic()
    run(
        load.build(source, parquet(place / "out"), "loaded", partitions),
        spark=spark,
        store=place / "store",
        partitions=1,
        tasks=1,
        latency=_LATENCY,
        least_rows=load.epoch_rows,
        poll=_POLL,
        overlap=False,
        checkpoint="delta",
        scaling=scaling,
        max_seconds=max_seconds,
        observer=story,
    )
    seconds = time.monotonic() - began
    story.others = max(0.0, (_machine_cpu() - busy) - (_own_cpu() - own)) / seconds
    return story


def disturbed(others: Iterable[float]) -> list[str]:
    """A note, if others used so much of the CPU that the figures are not those of this machine."""
    most = max(others)
    if most <= _DISTURBING:
        return []
    return [
        f"Disturbed: others used up to {most:.1f} CPUs while this was measured (`others_cpu`), and not the same all the"
        " time. What more partitions bring is not to be seen then; measure again when nothing else runs."
    ]


def _machine_cpu() -> float:
    """CPU seconds that somebody used since the machine was started, or that were stolen from it."""
    times = psutil.cpu_times()
    return float(sum(times) - times.idle - getattr(times, "iowait", 0.0))


def _own_cpu() -> float:
    """CPU seconds of this process and all it has started, Java and the workers among them."""
    mine = psutil.Process()
    used = 0.0
    for process in (mine, *mine.children(recursive=True)):
        with suppress(psutil.Error):
            used += sum(process.cpu_times()[:2])
    return used


@dataclass(frozen=True, slots=True)
class Capacity:
    """What one partition can do: rows a second, and what part of a CPU it uses by the clock at its busiest."""

    rows_per_s: float
    use: float

    @property
    def rows_per_cpu_s(self) -> float:
        """What it could do with a CPU of its own that it never waits for."""
        return self.rows_per_s / self.use

    def __str__(self) -> str:
        return f"{self.rows_per_s:,.0f} rows/s, {self.use:.2f} of a CPU by the clock"


def capacity(spark: SparkSession, load: ScalingQuery, place: Path, seconds: float) -> Capacity:
    """Run the query with one partition and more input than it can take."""
    story = put_under_load(spark, load, _ENDLESS, place, max_seconds=seconds)
    return reached(story.epochs)


def reached(epochs: Sequence[ScaledEpoch]) -> Capacity:
    """From the later half of the epochs: the first ones are small, and start workers."""
    steady = epochs[len(epochs) // 2 - 1 :] if len(epochs) > 3 else epochs
    if len(steady) < 2:
        raise HoldfastError(
            f"{len(epochs)} epochs are too few to measure what a partition can do",
            cure="run it again when the machine has less to do",
        )
    seconds = steady[-1].at - steady[0].at
    rows = sum(epoch.rows for epoch in steady[1:])
    cpu = sum(sum(epoch.cpu) for epoch in steady[1:])
    return Capacity(rows / seconds, cpu / seconds)


def relative(part: float, full: Capacity, **settings: Any) -> Scaling:
    """Scaling at a part of what a partition uses at its busiest, which is its slice of the CPU here."""
    return Scaling(threshold=min(1.0, part * full.use), **settings)
