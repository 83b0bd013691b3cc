"""The eleven queries on three engines, for the experiments that compare them: the same rows, at the same density.

`load_of` says what is read: the dataset, each row repeated so often that a second of event time is as dense as in a
fast stream, replayed for ever. Holdfast maps it into memory, Structured Streaming unfolds it from a broadcast table,
Flink from lines that stand for thousands of rows. `equal_on_…` run a small bounded slice on an engine and compare with
the oracle.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Literal

import polars as pl
from pyspark.sql import SparkSession

from holdfast.connect.sinks.driver_sinks import collect
from holdfast.connect.sources.memory import memory
from holdfast.run import run
from holdfast.ui.figures import quantile
from holdfast_lab.bench.bench_figures import Figures
from holdfast_lab.bench.dense_input import DENSE_ROWS, DenseInput, dense, dense_table
from holdfast_lab.bench.query_runs import BenchOptions, measure, spark_figures
from holdfast_lab.workloads.flink_cluster import FlinkSession
from holdfast_lab.workloads.flink_input import FlinkInput, flink_input
from holdfast_lab.workloads.flink_queries import flink_query
from holdfast_lab.workloads.flink_run import flink_results
from holdfast_lab.workloads.oracle import first_difference, oracle
from holdfast_lab.workloads.queries import Query, query
from holdfast_lab.workloads.spark_run import run_spark, spark_results
from holdfast_lab.workloads.synthetic import nexmark_bids, ysb_events

__all__ = [
    "PERCENTILES",
    "WAYS",
    "EngineLoad",
    "EngineRounds",
    "equal_on_flink",
    "equal_on_holdfast",
    "equal_on_spark",
    "flink_lines",
    "holdfast_rounds",
    "latency_columns",
    "load_of",
    "speed_on_spark",
]

PERCENTILES = (5, 25, 50, 75, 95)

_GENERATED_ROWS = 20_000
"""Of a generated dataset. Few, so that each stands for many rows, and none of the engines is busy with reading."""

_SPARK_TABLE_ROWS = 400_000

_BOUNDED_ROWS = {"SG1": 400, "SG3": 400, "SG2": 400, "LRB1": 1_000}
"""Rows of the slice that outputs are compared on, 1,500 where nothing is said."""

_SPARK_SLIDE = {"SG1": 600, "SG2": 32, "SG3": 16, "LRB1": 60, "NQ": 20}
"""Slides for comparing Structured Streaming's output: at the paper's it copies every row thousands of times."""


@dataclass(frozen=True, slots=True)
class EngineLoad:
    """What a query reads: `base`, each row `repeat` times, replayed for ever."""

    query: Query
    base: pl.DataFrame
    repeat: int

    def dense(self) -> DenseInput:
        return dense(self.query.dataset, self.base.height * self.repeat, self.base)


def load_of(name: str, seed: int) -> EngineLoad:
    """The load of a query, the same for every engine."""
    asked = query(name)
    if asked.name == "YSB":
        base = ysb_events(_GENERATED_ROWS, seed, rows_per_second=_GENERATED_ROWS)
    elif asked.name == "NQ":
        base = nexmark_bids(_GENERATED_ROWS, seed, rows_per_second=_GENERATED_ROWS // 10)
    else:
        base = asked.dataset.load()
    return EngineLoad(asked, base, max(1, DENSE_ROWS // base.height))


def flink_lines(load: EngineLoad, directory: Path, rows: int) -> FlinkInput:
    """The load for Flink, ending after `rows`."""
    asked = flink_query(load.query.name)
    return flink_input(load.query.dataset, load.base, asked.reads, directory, repeat=load.repeat, rows=rows)


Way = Literal["kept", "jobs", "short", "bare"]
WAYS: tuple[Way, ...] = ("kept", "jobs", "short", "bare")
_SHORT_SECONDS = 0.05


@dataclass(frozen=True, slots=True)
class EngineRounds:
    """Runs of Holdfast in turn: with fault tolerance (`kept`), the same with Spark `jobs` in the place of a crew, the
    same at a `short` latency, and without fault tolerance (`bare`)."""

    kept: tuple[Figures, ...]
    bare: tuple[Figures, ...]
    jobs: tuple[Figures, ...] = ()
    short: tuple[Figures, ...] = ()

    @property
    def ratio(self) -> float | None:
        """Throughput with fault tolerance over that without, the median of the rounds."""
        return self.over(self.bare)

    def over(self, other: Sequence[Figures]) -> float | None:
        """Throughput of `kept` over that of another way, the median of the rounds; None if that was not run."""
        return _median_ratio(self.kept, other)

    def under(self, other: Sequence[Figures]) -> float | None:
        return _median_ratio(other, self.kept)

    def in_order(self) -> tuple[tuple[Figures, ...], ...]:
        return tuple(getattr(self, way) for way in WAYS)


def _median_ratio(first: Sequence[Figures], second: Sequence[Figures]) -> float | None:
    pairs = zip(first, second, strict=False)
    ratios = [one.tuples_per_s / other.tuples_per_s for one, other in pairs if other.tuples_per_s]
    return median(ratios) if ratios else None


def holdfast_rounds(
    spark: SparkSession,
    load: EngineLoad,
    place: Path,
    *,
    seconds: float,
    rounds: int,
    latency: float = 1.0,
    ways: Sequence[Way] = ("kept", "bare"),
) -> EngineRounds:
    """Short runs in turn, in the other order in every second round, so that what drifts falls on all.

    Without fault tolerance the store is in memory where the machine has a file system for that: state goes from epoch
    to epoch there, and nothing reaches a disk.
    """
    made = load.dense()
    runs: dict[str, list[Figures]] = {way: [] for way in WAYS}
    memory_only = Path("/dev/shm")
    options = BenchOptions(seconds=seconds, latency=latency, executor="crew")
    with TemporaryDirectory(prefix="holdfast-", dir=memory_only if memory_only.is_dir() else None) as fleeting:
        chosen = {
            "kept": options,
            "jobs": replace(options, executor="jobs"),
            "short": replace(options, latency=_SHORT_SECONDS),
            "bare": replace(options, durable=False, store=Path(fleeting)),
        }
        try:
            for number in range(rounds):
                for way in ways if number % 2 == 0 else reversed(ways):
                    name = f"{load.query.name.lower()}-{number}-{way}"
                    runs[way].append(measure(spark, load.query, chosen[way], place, name=name, given=made))
        finally:
            shutil.rmtree(place, ignore_errors=True)
    return EngineRounds(**{way: tuple(found) for way, found in runs.items()})


def speed_on_spark(
    spark: SparkSession, load: EngineLoad, *, seconds: float, patience: float
) -> tuple[Figures, float, str | None]:
    """What Structured Streaming reached: figures, tuples per second, and what to say of a run that got nowhere."""
    rows = load.base.height * load.repeat
    made = dense_table(load.query.dataset, _SPARK_TABLE_ROWS, rows, load.base)
    ran = run_spark(spark, load.query.name, seconds, events=made.input.frame, repeat=made.repeat, patience=patience)
    speed, said = ran.speed()
    return spark_figures(load.query, ran, made.rows_per_event_second, None), speed, said


def latency_columns(seconds: Sequence[float]) -> dict[str, float | None]:
    found = {f"latency_p{share}_ms": quantile(seconds, share / 100) for share in PERCENTILES}
    return {name: None if value is None else round(value * 1_000, 1) for name, value in found.items()}


def _slice(name: str, slide: int | None) -> tuple[pl.DataFrame, pl.DataFrame]:
    """A small input and what the oracle makes of it."""
    events = query(name).dataset.load(_BOUNDED_ROWS.get(name, 1_500))
    return events, oracle(name, events, slide=slide)


def equal_on_holdfast(spark: SparkSession, name: str, place: Path) -> str | None:
    """How Holdfast's output differs from the oracle's, None if it does not."""
    events, expected = _slice(name, None)
    sink = collect()
    try:
        run(query(name).build(memory(events), sink), spark=spark, store=place, least_rows=400)
        return first_difference(sink.frame(), expected)
    finally:
        shutil.rmtree(place, ignore_errors=True)


def equal_on_spark(spark: SparkSession, name: str, place: Path) -> str | None:
    slide = _SPARK_SLIDE.get(name)
    events, expected = _slice(name, slide)
    try:
        return first_difference(spark_results(spark, name, events, place, slide=slide), expected)
    finally:
        shutil.rmtree(place, ignore_errors=True)


def equal_on_flink(session: FlinkSession, name: str, place: Path) -> str | None:
    events, expected = _slice(name, None)
    return first_difference(flink_results(session.fresh(), place, name, events, expected.schema), expected)
