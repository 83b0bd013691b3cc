"""Changing the parallelism of a large keyed state while it runs at full speed: how long epochs are held up.

Ten million keys with about a hundred bytes each are loaded; then the operator is scaled from 2 to 4, 3 and 2
partitions by command, as `holdfast scale` would. Around each change there are four stretches of time: *before*, *right
after* (the epochs until the pace is that of the new partitions), *compacting* (until merges beside the epochs are
done) and *after*.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import polars as pl
from pyspark.sql import SparkSession

from holdfast.connect.sinks.file_sink import parquet
from holdfast.engine.fragment_run import FragmentRun
from holdfast.engine.observer import Observer
from holdfast.engine.spark_platform import SparkPlatform
from holdfast.epoch.report import EpochReport
from holdfast.graph.nodes import ProcessContext, Step
from holdfast.graph.pipeline import Pipeline
from holdfast.meta import Commands, MetaStore
from holdfast.plan.scale_command import ScaleCommand
from holdfast_lab.bench.keyed_scale import EPOCH_ROWS, keyed_source
from holdfast_lab.bench.memory_watch import MemoryWatch
from holdfast_lab.bench.query_runs import BenchOptions

__all__ = ["PartitionChange", "Repartition", "measure_changes", "repartition"]

KEYS = 10_000_000
_STEPS = (4, 3, 2)
_EPOCHS_BEFORE = 10
_EPOCHS_AROUND = 3
_LEAST_AFTER = 10
_MOST_COMPACTING = 60
_NAME, _OPERATOR = "repartition", "totals"
_HISTORY = [f"last_{number}" for number in range(8)]


def _wide_totals(rows: pl.DataFrame, state: pl.DataFrame, context: ProcessContext) -> Step:
    """Count, sum and the last eight sums of a key: eighty bytes of state beside the key and its position."""
    added = rows.group_by("key").agg(pl.len().cast(pl.Int64).alias("rows"), pl.col("value").sum())
    before = added.join(state, on="key", how="left").with_columns(pl.col("n", "total", *_HISTORY).fill_null(0))
    shifted = {newer: pl.col(older) for older, newer in pairwise(["value", *_HISTORY])}
    upserts = before.select("key", n=pl.col("n") + pl.col("rows"), total=pl.col("total") + pl.col("value"), **shifted)
    return Step(upserts=upserts)


def _pipeline(keys: int, place: Path) -> Pipeline:
    pipeline = Pipeline(_NAME)
    events = pipeline.source("events", keyed_source(keys), event_time="event_time", time_unit="ms")
    totals = events.key_by("key").process(
        _wide_totals,
        state={"n": pl.Int64, "total": pl.Int64, **dict.fromkeys(_HISTORY, pl.Int64)},
        output={"key": pl.Int64},
        keep_forever=True,
        name=_OPERATOR,
    )
    totals.sink("out", parquet(place / "out"))
    return pipeline


@dataclass(frozen=True, slots=True)
class PartitionChange:
    """What a change of parallelism did. Times are seconds, speeds rows per second.

    `pause` is the longest gap between two commits around the change, less the median gap before it.
    """

    partitions: tuple[int, int]
    pause: float
    epoch: float
    before: float
    right_after: float
    compacting: float | None
    after: float
    merges: int

    def to_json(self) -> dict[str, Any]:
        return {
            "partitions": list(self.partitions),
            "pause_ms": round(1_000 * self.pause, 1),
            "epoch_ms": round(1_000 * self.epoch, 1),
            "before_per_s": round(self.before),
            "right_after_per_s": round(self.right_after),
            "compacting_per_s": None if self.compacting is None else round(self.compacting),
            "after_per_s": round(self.after),
            "merges": self.merges,
        }


@dataclass(frozen=True, slots=True)
class EpochMark:
    """An epoch and whether pieces were being merged beside it."""

    rows: int
    committed: float
    partitions: int
    merging: bool
    merged: int


def measure_changes(marks: Sequence[EpochMark]) -> list[PartitionChange]:
    """The changes of parallelism among some epochs. Pure."""
    at = [index for index in range(1, len(marks)) if marks[index].partitions != marks[index - 1].partitions]
    changes = []
    for index, following in zip(at, [*at[1:], len(marks)], strict=True):
        begin = max((other for other in at if other < index), default=0)
        before, later = marks[max(begin, index - _EPOCHS_BEFORE) : index], marks[index:following]
        gaps = [b.committed - a.committed for a, b in pairwise(before)]
        around = [b.committed - a.committed for a, b in pairwise(marks[index - 1 : index + _EPOCHS_AROUND])]
        merging = [mark for mark in later if mark.merging]
        last = max((number for number, mark in enumerate(later) if mark.merging), default=-1)
        rest = later[last + 1 :] if len(later) - last > 2 else later
        changes.append(
            PartitionChange(
                (marks[index - 1].partitions, marks[index].partitions),
                max(0.0, max(around) - median(gaps)),
                median(gaps),
                _speed(before),
                _speed(marks[index - 1 : index + _EPOCHS_AROUND]),
                _speed(later[: last + 1]) if len(merging) > 1 else None,
                _speed(rest),
                later[-1].merged - later[0].merged,
            )
        )
    return changes


def _speed(marks: Sequence[EpochMark]) -> float:
    if len(marks) < 2:
        return 0.0
    return sum(mark.rows for mark in marks[1:]) / (marks[-1].committed - marks[0].committed)


@dataclass(frozen=True, slots=True)
class Repartition:
    """All changes of a run, the state they were made with, and the most memory it took."""

    keys: int
    state_bytes: int
    changes: tuple[PartitionChange, ...]
    memory: dict[str, int]
    gaps: tuple[float, ...]

    def lines(self) -> list[str]:
        told = [f"{self.keys:,} keys, {self.state_bytes / 1e9:.2f} GB of p-units"]
        for change in self.changes:
            during = "no merges" if change.compacting is None else f"{change.compacting:,.0f} while merging"
            told.append(
                f"{change.partitions[0]} to {change.partitions[1]} partitions: pause {1_000 * change.pause:.0f} ms "
                f"(epochs of {1_000 * change.epoch:.0f} ms); rows/s {change.before:,.0f} before, "
                f"{change.right_after:,.0f} right after, {during}, {change.after:,.0f} after"
            )
        return told

    def to_json(self) -> dict[str, Any]:
        return {
            "query": "repartition",
            "engine": "holdfast",
            "keys": self.keys,
            "state_bytes": self.state_bytes,
            "changes": [change.to_json() for change in self.changes],
            "memory_bytes": self.memory,
            "gaps_ms": [round(1_000 * gap) for gap in self.gaps],
        }


@dataclass(slots=True)
class _Schedule(Observer):
    """Asks for the next parallelism when the one before has settled, and stops the run after the last."""

    store: Path
    keys: int
    running: FragmentRun = field(init=False)
    marks: list[EpochMark] = field(default_factory=list)
    state_bytes: int = 0
    _rows: int = 0
    _since: int = 0
    _asked: int = 0

    def epoch_committed(self, report: EpochReport) -> None:
        self._rows += report.rows
        if self._rows <= self.keys:
            return
        compacting = self.running.merges
        partitions = sum(1 for task in report.cpu if task.startswith("1-"))
        if self.marks and self.marks[-1].partitions != partitions:
            self._since = 0
        self.marks.append(EpochMark(report.rows, report.committed, partitions, compacting.busy, compacting.merged))
        self.state_bytes = max(self.state_bytes, report.state_bytes)
        self._since += 1
        waiting = self._asked and partitions != _STEPS[self._asked - 1]
        quiet = self._since >= _LEAST_AFTER and not compacting.busy
        if waiting or not (quiet or self._since >= _MOST_COMPACTING):
            return
        if self._asked == len(_STEPS):
            self.running.stop()
            return
        meta = MetaStore(self.store)
        try:
            Commands(meta).ask(_NAME, ScaleCommand(_OPERATOR, _STEPS[self._asked]).encode(), time.time())
        finally:
            meta.close()
        self._asked += 1


def repartition(spark: SparkSession, options: BenchOptions, place: Path) -> Repartition:
    """Load, scale, and measure."""
    keys = options.keys or KEYS
    settings = replace(options.run_options(place, EPOCH_ROWS // 4, EPOCH_ROWS // 2), partitions=2)
    schedule = _Schedule(settings.store, keys)
    running = schedule.running = FragmentRun(_pipeline(keys, place), SparkPlatform(spark), settings, observer=schedule)
    with MemoryWatch() as watch:
        running.run()
    marks = schedule.marks
    gaps = tuple(b.committed - a.committed for a, b in pairwise(marks))
    return Repartition(keys, schedule.state_bytes, tuple(measure_changes(marks)), watch.most.to_json(), gaps)
