"""Warming up a session: a tiny pipeline, run from start to end before the first real epoch.

The first job of a session is slow: Java loads the classes of planner, scheduler and Arrow, Python workers are forked
and use their libraries for the first time, and this process compiles its first SQL. All of that belongs to the start of
the process, not to the first epoch, which after a crash is the one that everybody waits for.
"""

from __future__ import annotations

import tempfile
import threading
from pathlib import Path
from weakref import WeakSet

import polars as pl
from pyspark.sql import SparkSession

from holdfast.connect.sinks.file_sink import parquet
from holdfast.connect.sources.memory import memory
from holdfast.engine.fragment_run import FragmentRun
from holdfast.engine.options import RunOptions
from holdfast.graph.aggregates.sums import count, mean
from holdfast.graph.pipeline import Pipeline
from holdfast.graph.windows import sliding
from holdfast.plan.executor_choice import ExecutorName

__all__ = ["warm_up"]

_EPOCHS = 3
_warm: WeakSet[SparkSession] = WeakSet()
_lock = threading.RLock()


def warm_up(spark: SparkSession, directory: Path, tasks: int = 2, executor: ExecutorName | None = None) -> bool:
    """Run a few small epochs of two stages with `tasks` tasks each; whether that was still to be done.

    Once per session. `directory` must be seen by all tasks; what is made in it is removed.
    """
    with _lock:
        if spark in _warm:
            return False
        _warm.add(spark)  # first: the pipeline below is run like any other
        directory.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="warm-up-", dir=directory, ignore_cleanup_errors=True) as place:
            _run(spark, tasks, executor, Path(place))
        return True


def _run(spark: SparkSession, tasks: int, executor: ExecutorName | None, directory: Path) -> None:
    from holdfast.engine.spark_platform import SparkPlatform  # noqa: PLC0415 - it warms its session up by this module

    rows = 100 * tasks
    frames = [
        pl.DataFrame({"time": range(at, at + rows), "key": [at % 7 for at in range(rows)], "value": [0.5] * rows})
        for at in range(0, rows * _EPOCHS, rows)
    ]
    pipeline = Pipeline("warm-up")
    events = pipeline.source("events", memory(frames, epochs=True), event_time="time", time_unit="ms")
    windows = events.filter(pl.col("value") > 0).key_by("key").window(sliding("200ms", "100ms"))
    windows.agg(n=count(), mean=mean("value")).named("windows").sink("out", parquet(directory / "out"))
    options = RunOptions(
        store=directory / "store",
        volatile=directory / "volatile",
        tasks=tasks,
        partitions=tasks,
        durable=False,
        executor=executor,
    )
    FragmentRun(pipeline, SparkPlatform(spark), options).run()
