"""Benchmarks that are not a query of the papers: the cost of an idle epoch, keyed state, sliding windows against
tumbling ones, and what durability costs. The last two compare within one session."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any, TypeAlias

import polars as pl
from pyspark.sql import SparkSession

from holdfast.connect.base import Chunk, Position, Slice, Source, Take
from holdfast.connect.sinks.file_sink import parquet
from holdfast.graph.aggregates.sums import count
from holdfast.graph.pipeline import Pipeline
from holdfast.graph.windows import tumbling
from holdfast_lab.bench.bench_figures import Figures, figures
from holdfast_lab.bench.dense_input import DenseInput, dense
from holdfast_lab.bench.keyed_scale import KeyedScale, keyed_bars, keyed_scale
from holdfast_lab.bench.query_runs import BenchOptions, measure, measure_pipeline
from holdfast_lab.bench.quiet_pipeline import QuietFigures, quiet
from holdfast_lab.bench.repartition import Repartition, repartition
from holdfast_lab.bench.worker_recovery import WorkerRecovery, executor_recovery, worker_recovery
from holdfast_lab.workloads.queries import Query, query
from holdfast_lab.workloads.synthetic import keyed_events

__all__ = ["SPECIAL", "Comparison", "SpecialResult"]

KEYS = 1_000_000
ROUNDS = 3


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two ways to run a query. `ratio` is the first's tuples per second over the second's, the median of rounds."""

    name: str
    first: Figures
    second: Figures
    ratios: tuple[float, ...]

    @property
    def ratio(self) -> float:
        return median(self.ratios)

    def to_json(self) -> dict[str, Any]:
        return {
            "query": self.name,
            "engine": "holdfast",
            "ratio": round(self.ratio, 3),
            "ratios": [round(ratio, 3) for ratio in self.ratios],
            "first": self.first.to_json(),
            "second": self.second.to_json(),
        }


class _NothingSource(Source):
    """Endless empty takes: each is an epoch without a row."""

    schema = pl.Schema({"time": pl.Int64(), "key": pl.Int64()})

    def start(self) -> Position:
        return {"take": 0}

    def take(self, position: Position, rows: int, pieces: int) -> Take:
        number = int(position["take"])
        slices = tuple(Slice(base=number * pieces + piece, rows=0, where={}) for piece in range(pieces))
        return Take(slices, {"take": number + 1})

    def read(self, piece: Slice) -> Iterator[Chunk]:
        yield Chunk(pl.DataFrame(schema=self.schema))


def idle(spark: SparkSession, options: BenchOptions, place: Path) -> Figures:
    """Empty epochs of a pipeline with two stages, one after the other: what an epoch costs before any row."""
    pipeline = Pipeline("idle")
    nothing = pipeline.source("nothing", _NothingSource(), event_time="time", time_unit="ms")
    counts = nothing.key_by("key").window(tumbling("1s"), name="counts").agg(n=count())
    counts.sink("out", parquet(place / "idle-out"))
    meter = measure_pipeline(spark, pipeline, replace(options, overlap=False), place, warm_epochs=40)
    return figures(meter, "idle", 0, None, warm_up_epochs=meter.warm)


def keyed(spark: SparkSession, options: BenchOptions, place: Path) -> Figures:
    """Running totals of a million keys, or as many as asked for: tuples per second are updates of state per second."""
    asked = query("keyed")
    keys = options.keys or KEYS
    made = dense(asked.dataset, 2 * keys, keyed_events(2 * keys, keys=keys))
    found = measure(spark, asked, options, place, given=made)
    return replace(found, notes={**found.notes, "keys": keys, "bars": keyed_bars(keys, found.tuples_per_s)})


def sliding(spark: SparkSession, options: BenchOptions, place: Path) -> Comparison:
    """CM1 with windows of 60 s every second, against one every 60 s."""
    return _compare("sliding", spark, query("CM1"), replace(options, slide=1), replace(options, slide=60), place)


def durability(spark: SparkSession, options: BenchOptions, place: Path) -> Comparison:
    """YSB with every epoch durable, against no syncing at all."""
    return _compare(
        "durability", spark, query("YSB"), replace(options, durable=True), replace(options, durable=False), place
    )


def _compare(
    name: str, spark: SparkSession, asked: Query, first: BenchOptions, second: BenchOptions, place: Path
) -> Comparison:
    """Short runs in turn, the other one first in every second round, so that what drifts falls on both."""
    made = dense(asked.dataset)
    runs: list[list[Figures]] = [[], []]
    for number in range(ROUNDS):
        for side in (0, 1) if number % 2 == 0 else (1, 0):
            options = replace((first, second)[side], seconds=first.seconds / ROUNDS)
            runs[side].append(_run(spark, asked, options, place, made, f"{name}-{number}-{side}"))
    ratios = tuple(a.tuples_per_s / b.tuples_per_s for a, b in zip(*runs, strict=True) if b.tuples_per_s)
    return Comparison(name, _middle(runs[0]), _middle(runs[1]), ratios)


def _run(spark: SparkSession, asked: Query, options: BenchOptions, place: Path, made: DenseInput, name: str) -> Figures:
    return measure(spark, asked, options, place, name=name, given=made)


def _middle(runs: list[Figures]) -> Figures:
    return sorted(runs, key=lambda run: run.tuples_per_s)[len(runs) // 2]


SpecialResult: TypeAlias = Figures | Comparison | KeyedScale | Repartition | WorkerRecovery | QuietFigures
SPECIAL: dict[str, Callable[[SparkSession, BenchOptions, Path], SpecialResult]] = {
    "idle": idle,
    "quiet": quiet,
    "keyed": keyed,
    "keyed-scale": keyed_scale,
    "repartition": repartition,
    "sliding": sliding,
    "durability": durability,
    "recovery": worker_recovery,
    "executor-recovery": executor_recovery,
}
"""By name. `keyed` is also a query, here with a million keys."""
