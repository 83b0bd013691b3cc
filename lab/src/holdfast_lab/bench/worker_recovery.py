"""What the kill -9 of a worker, or of an executor, costs: the pause in the commits of a crew, again and again in a run.

A query with a sliding window runs on a steady input in short epochs. About every second one of its workers is killed,
or every ten seconds the executor that one of them belongs to. The pause is the longest gap between two commits from the
kill on, less the median gap of the run.
"""

from __future__ import annotations

import itertools
import os
import random
import signal
import threading
import time
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import polars as pl
import psutil
from pyspark.sql import SparkSession

from holdfast.connect.sinks.file_sink import parquet
from holdfast.connect.sources.generator import generator
from holdfast.engine.fragment_run import FragmentRun
from holdfast.engine.observer import Observer
from holdfast.engine.spark_platform import SparkPlatform
from holdfast.epoch.report import EpochReport
from holdfast.errors import HoldfastError
from holdfast.graph.aggregates.sums import count
from holdfast.graph.pipeline import Pipeline
from holdfast.graph.windows import sliding
from holdfast.plurals import counted
from holdfast.spark.crew import Crew
from holdfast.spark.executor_switch import ExecutorSwitch
from holdfast.spark.executor_watch import runs_in_driver
from holdfast_lab.bench.query_runs import BenchOptions

__all__ = ["WorkerRecovery", "executor_recovery", "measure_pauses", "worker_recovery"]

_ROWS_PER_SECOND = 100_000
_LATENCY = 0.02
_WARM_SECONDS = 3.0


@dataclass(frozen=True, slots=True)
class Blow:
    """What is killed, how often, and the longest pause that it may cost."""

    what: str
    every: float
    most_ms: float


WORKER = Blow("worker", 1.0, 300.0)
EXECUTOR = Blow("executor", 10.0, 3_000.0)


@dataclass(frozen=True, slots=True)
class WorkerRecovery:
    """Pauses in seconds, one for each kill, and the usual time between two commits."""

    blow: Blow
    pauses: tuple[float, ...]
    usual: float
    crew: bool
    """Whether a crew has run it to the end."""

    def to_json(self) -> dict[str, Any]:
        longest = 1_000 * max(self.pauses)
        return {
            "query": "recovery",
            "killed": self.blow.what,
            "engine": "holdfast",
            "kills": len(self.pauses),
            "pause_ms": {"p50": round(1_000 * median(self.pauses), 1), "max": round(longest, 1)},
            "usual_ms": round(1_000 * self.usual, 1),
            "crew": self.crew,
            "bars": [
                {"name": f"longest pause after the kill of a {self.blow.what}, ms", "value": round(longest, 1),
                 "bar": self.blow.most_ms, "ok": self.crew and longest <= self.blow.most_ms},
            ],
        }  # fmt: skip

    def lines(self) -> list[str]:
        said = self.to_json()
        return [
            f"{counted(said['kills'], self.blow.what)} killed, one commit every {said['usual_ms']} ms",
            f"pause in the commits p50 {said['pause_ms']['p50']} ms, max {said['pause_ms']['max']} ms",
        ]


def measure_pauses(kills: Sequence[float], commits: Sequence[float], within: float) -> tuple[tuple[float, ...], float]:
    """The pause after each kill, and the median gap. A pause may end after `within` seconds: what counts is where its
    gap begins. Pure."""
    usual = median(later - earlier for earlier, later in itertools.pairwise(commits))
    pauses = []
    for kill in kills:
        after = range(bisect_left(commits, kill), bisect_left(commits, kill + within) + 1)
        gaps = [commits[at] - max(commits[at - 1], kill) for at in after if 0 < at < len(commits)]
        pauses.append(max(0.0, max(gaps, default=0.0) - usual))
    return tuple(pauses), usual


class _Killing(Observer):
    """Notes commits, and kills from another thread."""

    def __init__(self, blow: Blow, seconds: float) -> None:
        self._blow = blow
        self._seconds = seconds
        self._rng = random.Random(1)
        self.running: FragmentRun | None = None
        self.commits: list[float] = []
        self.kills: list[float] = []

    def epoch_committed(self, report: EpochReport) -> None:
        self.commits.append(time.monotonic())
        if len(self.commits) == 1:
            threading.Thread(target=self._kill, name="kills", daemon=True).start()

    def _kill(self) -> None:
        assert self.running is not None
        time.sleep(_WARM_SECONDS)
        end = time.monotonic() + self._seconds
        while time.monotonic() < end:
            if (crew := crew_of(self.running)) is not None and crew.workers:
                victim = self._rng.choice(crew.workers)
                if self._blow is EXECUTOR:
                    victim = executor_of(victim)
                self.kills.append(time.monotonic())
                os.kill(victim, signal.SIGKILL)
            time.sleep(self._blow.every * (0.8 + 0.4 * self._rng.random()))
        self.running.stop()


def crew_of(run: FragmentRun) -> Crew | None:
    """The crew that runs the epochs now, if one does."""
    executor = run.loop.executor
    found = executor.current if isinstance(executor, ExecutorSwitch) else None
    return found if isinstance(found, Crew) else None


def executor_of(worker: int) -> int:
    """The Java process that a Python worker belongs to."""
    return next(parent.pid for parent in psutil.Process(worker).parents() if parent.name() == "java")


def worker_recovery(spark: SparkSession, options: BenchOptions, place: Path) -> WorkerRecovery:
    """Kills of Python workers."""
    return _recovery(spark, options, place, WORKER)


def executor_recovery(spark: SparkSession, options: BenchOptions, place: Path) -> WorkerRecovery:
    """Kills of executors, of a cluster on this machine."""
    if runs_in_driver(str(spark.sparkContext.master)):
        raise HoldfastError(
            "tasks run in the driver's own Java", cure="give --cluster 2, or the --master of a cluster on this machine"
        )
    return _recovery(spark, options, place, EXECUTOR)


def _recovery(spark: SparkSession, options: BenchOptions, place: Path, blow: Blow) -> WorkerRecovery:
    schema = {"time": pl.Int64, "key": pl.Int64}

    def rows(start: int, stop: int) -> pl.DataFrame:
        number = pl.int_range(start, stop, dtype=pl.Int64, eager=True)
        return pl.DataFrame({"time": number // (_ROWS_PER_SECOND // 1_000), "key": number % 1_000})

    pipeline = Pipeline("recovery")
    events = pipeline.source(
        "events", generator(rows, schema, rate=_ROWS_PER_SECOND), event_time="time", time_unit="ms"
    )
    counts = events.key_by("key").window(sliding("60s", "1s"), name="counts").agg(n=count())
    counts.sink("out", parquet(place / "out"))
    killing = _Killing(blow, options.seconds)
    settings = replace(options.run_options(place, 1_000, 1_000_000), latency=_LATENCY, poll=0.002)
    killing.running = FragmentRun(pipeline, SparkPlatform(spark), settings, observer=killing)
    killing.running.run()
    if not killing.kills:
        raise HoldfastError("no worker was there to be killed", cure="give --executor crew, and a master with slots")
    pauses, usual = measure_pauses(killing.kills, killing.commits, blow.every / 2)
    return WorkerRecovery(blow, pauses, usual, crew_of(killing.running) is not None)
