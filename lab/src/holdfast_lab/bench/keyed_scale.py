"""Keyed state from small to large: updates per second, memory and epochs, for ten thousand to ten million keys.

The first rows bring every key once, so the state reaches its size as fast as it can; after them keys come at random.
Only what comes when the state has its size is measured.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from pyspark.sql import SparkSession

from holdfast.connect.sinks.file_sink import parquet
from holdfast.connect.sources.generator import GeneratorSource, generator
from holdfast.engine.fragment_run import FragmentRun
from holdfast.engine.observer import Observer, Observers
from holdfast.engine.spark_platform import SparkPlatform
from holdfast.epoch.report import EpochReport
from holdfast_lab.bench.bench_figures import Figures, Meter, figures
from holdfast_lab.bench.memory_watch import MemoryWatch, processor_seconds
from holdfast_lab.bench.query_runs import BenchOptions
from holdfast_lab.experiment.definition import at_least
from holdfast_lab.workloads.queries import query

__all__ = ["EPOCH_ROWS", "KeyedScale", "ScatteredKeys", "keyed_bars", "keyed_scale", "keyed_source"]

EPOCH_ROWS = 1_000_000
UPDATES_PER_SECOND = {1_000_000: 2_000_000.0, 10_000_000: 1_200_000.0}
"""What two cores are to reach, by the number of keys."""
_SIZES = (10_000, 100_000, 1_000_000, 10_000_000)
_SETTLE_EPOCHS = 10
_CHUNK = 500_000
_SCHEMA = pl.Schema({"key": pl.Int64(), "value": pl.Int64(), "event_time": pl.Int64()})
_ROWS_PER_MS = 1_000


@dataclass(frozen=True, slots=True)
class ScatteredKeys:
    """Every key once, then keys at random; a function of the row's number."""

    keys: int

    def __call__(self, start: int, stop: int) -> pl.DataFrame:
        number = np.arange(start, stop, dtype=np.uint64)
        mixed = number * np.uint64(0x9E3779B97F4A7C15)
        mixed ^= mixed >> np.uint64(29)
        mixed *= np.uint64(0xBF58476D1CE4E5B9)
        mixed ^= mixed >> np.uint64(32)
        key = np.where(number < self.keys, number, mixed % np.uint64(self.keys)).astype(np.int64)
        value = (mixed >> np.uint64(50)).astype(np.int64)
        return pl.DataFrame({"key": key, "value": value, "event_time": number.astype(np.int64) // _ROWS_PER_MS})


def keyed_source(keys: int) -> GeneratorSource:
    return generator(ScatteredKeys(keys), _SCHEMA, chunk_rows=_CHUNK)


@dataclass(frozen=True, slots=True)
class KeyedScale:
    """The figures for each number of keys, the fewest first."""

    sizes: tuple[Figures, ...]

    def ratios(self) -> dict[str, float]:
        """Updates per second over those with the fewest keys."""
        first = self.sizes[0].tuples_per_s
        return {str(size.notes["keys"]): round(size.tuples_per_s / first, 3) for size in self.sizes if first}

    def to_json(self) -> dict[str, Any]:
        return {
            "query": "keyed-scale",
            "engine": "holdfast",
            "sizes": [size.to_json() for size in self.sizes],
            "ratios": self.ratios(),
            "bars": [bar for size in self.sizes for bar in keyed_bars(int(size.notes["keys"]), size.tuples_per_s)],
        }


def keyed_bars(keys: int, updates_per_s: float) -> list[dict[str, Any]]:
    """What is asked of so many keys, if anything is, as JSON."""
    if keys not in UPDATES_PER_SECOND:
        return []
    return [asdict(at_least(f"updates per second of {keys:,} keys", round(updates_per_s), UPDATES_PER_SECOND[keys]))]


def keyed_scale(spark: SparkSession, options: BenchOptions, place: Path) -> KeyedScale:
    """One run per number of keys, up to `options.keys`."""
    most = options.keys or _SIZES[-1]
    sizes: Sequence[int] = [size for size in _SIZES if size <= most] or [most]
    return KeyedScale(tuple(_measure(spark, options, place / str(keys), keys) for keys in sizes))


def _measure(spark: SparkSession, options: BenchOptions, place: Path, keys: int) -> Figures:
    asked = query("keyed")
    pipeline = asked.build(keyed_source(keys), parquet(place / "out"), pipeline_name=f"keyed-{keys}")
    meter = Meter(options.seconds, warm_rows=keys, warm_epochs=_SETTLE_EPOCHS, patience=600.0)
    settings = options.run_options(place, EPOCH_ROWS, EPOCH_ROWS)
    used: list[float] = []

    class Used(Observer):
        def epoch_committed(self, report: EpochReport) -> None:
            if meter.warm is not None:
                used[1:] = [processor_seconds()]

    running = FragmentRun(pipeline, SparkPlatform(spark), settings, observer=Observers(meter, Used()))
    meter.stop = running.stop
    with MemoryWatch() as watch:
        running.run()
    last = meter.reports[-1]
    updates = sum(report.rows for report in meter.measured())
    return figures(
        meter,
        "keyed",
        asked.tuple_bytes,
        None,
        keys=keys,
        memory_bytes=watch.most.to_json(),
        cpu_us_per_update=round(1e6 * (used[-1] - used[0]) / updates, 3) if updates else None,
        state_bytes=last.state_bytes,
        merges_beside_epochs=running.merges.merged,
        warm_up_epochs=meter.warm,
    )
