"""Latency of rows under a load that does not wait: rows are due at a fixed rate, and epochs take what is due.

The latency of a row is the time from when it was due at the source to the commit of the epoch that has its result. The
95th percentile is over all rows, not over epochs.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from math import floor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from holdfast.connect.base import Chunk, Position, Slice, Source, Take
from holdfast.connect.sources.generator import GeneratorSource
from holdfast.durability.checkpoints import CheckpointReport
from holdfast.engine.fragment_run import FragmentRun
from holdfast.engine.observer import Observer
from holdfast.engine.options import RunOptions
from holdfast.engine.spark_platform import SparkPlatform
from holdfast.epoch.report import EpochReport
from holdfast.graph.pipeline import Pipeline
from holdfast.graph.policies import as_policy

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["DueSource", "DueTake", "Latencies", "LatencyFigures", "measure", "percentile"]


@dataclass(frozen=True, slots=True)
class DueTake:
    """The rows of one epoch; the first of them was due at `due`."""

    rows: int
    due: float


class DueSource(Source):
    """The first `ahead` rows of another source at once, as the first take; then rows at a fixed rate, counted from the
    second take of the process that plans. `on_take` hears of each take, in their order."""

    keeps = True

    def __init__(
        self,
        inner: GeneratorSource,
        rate: float,
        ahead: int = 0,
        on_take: Callable[[DueTake], None] = lambda taken: None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.inner = inner
        self.rate = rate
        self.ahead = ahead
        self.schema = inner.schema
        self.bounded = False
        self._on_take = on_take
        self._clock = clock
        self._since: float | None = None
        self._first = 0

    def __getstate__(self) -> dict[str, Any]:
        return {"inner": self.inner, "schema": self.schema, "bounded": False}

    def start(self) -> Position:
        return self.inner.start()

    def take(self, position: Position, rows: int, pieces: int) -> Take:
        offset, now = int(position["offset"]), self._clock()
        if offset < self.ahead:
            self._on_take(DueTake(self.ahead - offset, now))
            return self.inner.take(position, self.ahead - offset, pieces)
        if self._since is None:
            self._since, self._first = now, offset
        due = self._first + floor((now - self._since) * self.rate)
        if due <= offset:
            return Take((), position)
        count = min(due - offset, max(1, rows))
        self._on_take(DueTake(count, self._since + (offset - self._first) / self.rate))
        return self.inner.take(position, count, pieces)

    def read(self, piece: Slice) -> Iterator[Chunk]:
        return self.inner.read(piece)

    def lag(self, position: Position) -> int | None:
        return None


@dataclass(slots=True)
class Latencies:
    """Collects what was taken and when it was committed, epoch by epoch."""

    rate: float
    taken: list[DueTake] = field(default_factory=list)
    committed: list[float] = field(default_factory=list)

    def of_rows(self, after: float, until: float) -> tuple[list[float], list[int]]:
        """The latency of the first and of the last row of each epoch, in pairs, and how many rows that is; of epochs
        whose first row was due in this time."""
        ends: list[float] = []
        counts: list[int] = []
        for taken, committed in zip(self.taken, self.committed, strict=False):
            if after <= taken.due < until:
                ends += [committed - taken.due, committed - taken.due - (taken.rows - 1) / self.rate]
                counts.append(taken.rows)
        return ends, counts


def percentile(ends: Sequence[float], counts: Sequence[int], share: float, points: int = 50) -> float | None:
    """The latency that this share of the rows stays below; rows of an epoch lie evenly between its first and last."""
    if not counts:
        return None
    highest, lowest = np.asarray(ends[0::2]), np.asarray(ends[1::2])
    places = (np.arange(points) + 0.5) / points
    values = (lowest[:, None] + (highest - lowest)[:, None] * places).ravel()
    weights = np.repeat(np.asarray(counts, dtype=float) / points, points)
    order = np.argsort(values)
    reached = np.cumsum(weights[order])
    return float(values[order][np.searchsorted(reached, share * reached[-1])])


@dataclass(frozen=True, slots=True)
class LatencyFigures:
    """What a run under load showed. One that does not keep up has no latency to speak of."""

    p50: float
    p95: float
    epochs: int
    checkpoints: int
    checkpoint_bytes: int
    state_rows: int
    state_bytes: int
    kept_up: bool


def measure(
    spark: SparkSession,
    build: Callable[[DueSource], Pipeline],
    inner: GeneratorSource,
    *,
    rate: float,
    ahead: int,
    policy: str,
    seconds: float,
    warm: float,
    home: Path,
    partitions: int = 2,
) -> LatencyFigures:
    """Run for `warm` + `seconds` seconds of input behind the rows that are there at once; the last are measured."""
    found = Latencies(rate)
    source = DueSource(inner, rate, ahead, found.taken.append)
    reports: list[EpochReport] = []
    told: list[CheckpointReport] = []
    copies: list[CheckpointReport] = []

    class LatencyWatch(Observer):
        def epoch_committed(self, report: EpochReport) -> None:
            found.committed.append(report.committed)
            reports.append(report)
            first = found.taken[1 if ahead else 0].due if len(found.taken) > 1 else None
            if first is not None and report.committed - first >= warm + seconds:
                run.stop()  # a clean end makes all state durable: that is not one of the checkpoints
                copies.extend(told)
                told.clear()

        def checkpoint_copied(self, report: CheckpointReport) -> None:
            told.append(report)

    run = FragmentRun(
        build(source),
        SparkPlatform(spark),
        RunOptions(
            store=home / "store",
            checkpoint=as_policy(policy),
            volatile=home / "volatile",
            partitions=partitions,
            poll=0.01,
        ),
        observer=LatencyWatch(),
    )
    run.run()
    began = found.taken[1 if ahead else 0].due
    ends, counts = found.of_rows(began + warm, began + warm + seconds)
    p50, p95 = percentile(ends, counts, 0.5), percentile(ends, counts, 0.95)
    assert p50 is not None, "no epoch was measured"
    assert p95 is not None
    last = found.taken[len(found.committed) - 1]
    return LatencyFigures(
        p50,
        p95,
        len(counts),
        len(copies),
        sum(copy.bytes for copy in copies),
        reports[-1].state_rows,
        reports[-1].state_bytes,
        kept_up=found.committed[-1] - last.due <= 3 * p95,
    )
