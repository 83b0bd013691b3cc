"""What a pipeline costs while nothing comes: the CPU time of its driver, of Spark's JVM and of its workers, by their
process ids, over a time in which it only waits. It is the share of one core."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import polars as pl
import psutil
from pyspark.sql import SparkSession

from holdfast.connect.base import Chunk, Position, Slice, Source, Take
from holdfast.connect.sinks.file_sink import parquet
from holdfast.engine.observer import Observer
from holdfast.epoch.report import EpochReport
from holdfast.errors import HoldfastError
from holdfast.graph.aggregates.sums import count
from holdfast.graph.pipeline import Pipeline
from holdfast.graph.windows import sliding
from holdfast.run import start
from holdfast_lab.bench.query_runs import BenchOptions

__all__ = ["QUIET_BAR", "QuietFigures", "quiet"]

QUIET_BAR = 0.02
_SECONDS_TO_STAND = 180.0
_SECONDS_TO_SETTLE = 20.0
"""After the row is committed: Java compiles what it has run."""


class _OneRow(Source):
    """A row at the start, and then nothing."""

    schema = pl.Schema({"time": pl.Int64(), "key": pl.Int64()})
    keeps = True

    def start(self) -> Position:
        return {"taken": False}

    def take(self, position: Position, rows: int, pieces: int) -> Take:
        return Take((), position) if position["taken"] else Take((Slice(0, 1, {}),), {"taken": True})

    def read(self, piece: Slice) -> Iterator[Chunk]:
        yield Chunk(pl.DataFrame({"time": [0], "key": [0]}))


@dataclass(frozen=True, slots=True)
class QuietFigures:
    """CPU seconds per second, by what has used them."""

    executor: str
    seconds: float
    driver: float
    jvm: float
    workers: float

    @property
    def share(self) -> float:
        return self.driver + self.jvm + self.workers

    def to_json(self) -> dict[str, Any]:
        name = "CPU of a pipeline to which nothing comes, as a share of a core"
        bar = {"name": name, "value": round(self.share, 4), "bar": QUIET_BAR, "ok": self.share < QUIET_BAR}
        return {"query": "quiet", **asdict(self), "share": round(self.share, 4), "bars": [bar]}

    def lines(self) -> list[str]:
        return [
            f"{self.share:.2%} of a core over {self.seconds:.0f} s ({self.executor}): driver {self.driver:.2%},"
            f" JVM {self.jvm:.2%}, workers {self.workers:.2%}; the bar is {QUIET_BAR:.0%}"
        ]


def quiet(spark: SparkSession, options: BenchOptions, place: Path) -> QuietFigures:
    """Run a pipeline that has read one row, and watch it wait."""
    pipeline = Pipeline("quiet")
    rows = pipeline.source("rows", _OneRow(), event_time="time", time_unit="ms")
    rows.key_by("key").window(sliding(60, 1), name="counts").agg(n=count()).sink("out", parquet(place / "quiet-out"))
    settings = options.run_options(place, 20_000, 1_000_000_000)
    stands = threading.Event()

    class FirstCommit(Observer):
        def epoch_committed(self, report: EpochReport) -> None:
            stands.set()

    with start(pipeline, settings, observer=FirstCommit(), spark=spark) as running:
        if not stands.wait(_SECONDS_TO_STAND):
            raise HoldfastError("nothing was committed in time", cure="is the machine very busy? try again")
        time.sleep(_SECONDS_TO_SETTLE)
        before, began = _spent(), time.monotonic()
        time.sleep(options.seconds)
        after, seconds = _spent(), time.monotonic() - began
        running.stop()
        running.wait()
    used = {name: (after[name] - before[name]) / seconds for name in after}
    return QuietFigures(options.executor or "as chosen", seconds, **used)


def _spent() -> dict[str, float]:
    """CPU seconds so far, of this process and of those it has started."""
    me = psutil.Process()
    spent = {"driver": sum(me.cpu_times()[:2]), "jvm": 0.0, "workers": 0.0}
    for child in me.children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            spent["jvm" if child.name() == "java" else "workers"] += sum(child.cpu_times()[:2])
    return spent
