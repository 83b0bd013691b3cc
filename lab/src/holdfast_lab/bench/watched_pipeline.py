"""A pipeline that the dashboard's cost is measured on: orders at a fixed rate, counted by key, in one process without
Spark, so that nothing else hides what watching costs. Run as a process of its own: `python -m ... STORE`."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import polars as pl

from holdfast.connect.sinks.file_sink import parquet
from holdfast.connect.sources.generator import generator
from holdfast.engine.fragment_runs import FragmentsRun
from holdfast.engine.in_process_platform import InProcessPlatform
from holdfast.engine.options import RunOptions
from holdfast.graph.aggregates.sums import count
from holdfast.graph.guarantee import Guarantee
from holdfast.graph.pipeline import Pipeline
from holdfast.graph.windows import tumbling
from holdfast.signals import stop_on_signals
from holdfast.watch.event_log import EventLog
from holdfast.watch.pipeline_description import describe_pipeline, keep_description
from holdfast.watch.run_events import RunEvents

__all__ = ["NAME", "run"]

NAME = "watched"
_RATE = 20_000
_LATENCY = 0.1
_KEYS = 1_000


def _orders(start: int, stop: int) -> pl.DataFrame:
    number = np.arange(start, stop, dtype=np.int64)
    return pl.DataFrame({"at": number * 1_000 // _RATE, "key": number % _KEYS})


def run(store: Path) -> None:
    """Until SIGTERM."""
    pipeline = Pipeline(NAME, guarantee=Guarantee(recovery="20s"))
    source = generator(_orders, {"at": pl.Int64, "key": pl.Int64}, rate=_RATE)
    rows = pipeline.source("orders", source, event_time="at", time_unit="ms")
    rows.key_by("key").window(tumbling("1s"), name="counts").agg(n=count()).sink("out", parquet(store / "out"))
    options = RunOptions(store=store, latency=_LATENCY, tasks=1, partitions=1, retain=100)
    with EventLog(store) as log:
        watching = RunEvents(log, NAME)
        made = FragmentsRun(pipeline, InProcessPlatform(), options, observer=watching)
        keep_description(store, describe_pipeline(pipeline, made.cuts.fragments, _LATENCY))
        watching.started(dict.fromkeys(made.runs, 0))
        with stop_on_signals(made.stop, lambda: None):
            made.run()


if __name__ == "__main__":
    run(Path(sys.argv[1]))
