"""Runs in this process whose events are kept in the store, as `hf.run` keeps them."""

from __future__ import annotations

from pathlib import Path

import polars as pl

import holdfast as hf
from harness import WHOLE, options
from holdfast.engine.fragment_runs import FragmentsRun
from holdfast.engine.in_process_platform import InProcessPlatform
from holdfast.watch.event_log import EventLog
from holdfast.watch.pipeline_description import describe_pipeline, keep_description
from holdfast.watch.run_events import RunEvents

FIRST = 1_790_000_000_000


def orders_pipeline(rows: int = 4_000, *, failing: bool = False, dropped: int | None = None) -> hf.Pipeline:
    """Orders of four countries, one a millisecond, counted by the second; every hundredth is too late. With `dropped`,
    one of a hundred is left out."""
    number = pl.int_range(rows, eager=True)
    frame = pl.DataFrame(
        {
            "at": FIRST + number - (number % 100 == 99).cast(pl.Int64) * 600_000,
            "country": (number % 4).cast(pl.String),
        }
    )
    pipeline = hf.Pipeline("orders", guarantee=hf.Guarantee(recovery="5s"))
    source = hf.source.memory([frame[at : at + 500] for at in range(0, rows, 500)], epochs=True)
    read = pipeline.source("in", source, event_time="at", time_unit="ms")
    if failing:
        read = read.map_batches(_fail, schema=frame.schema)
    if dropped is not None:
        read = read.filter(pl.col("at") % 100 != dropped)
    counts = read.key_by("country").window(hf.window.tumbling("1s"), name="counts").agg(orders=hf.count())
    counts.sink("out", hf.sink.collect())
    return pipeline


def _fail(frame: pl.DataFrame) -> pl.DataFrame:
    raise ValueError("no such country")


def run_watched(store: Path, pipeline: hf.Pipeline, **given: object) -> None:
    """Run a pipeline to the end of its sources."""
    with EventLog(store, pipeline.name) as log:
        events = RunEvents(log, pipeline.name)
        chosen = options(store, WHOLE, **{"least_rows": 500, "most_rows": 500, "checkpoint": None, **given})
        run = FragmentsRun(pipeline, InProcessPlatform(), chosen, observer=events)
        keep_description(store, describe_pipeline(pipeline, run.cuts.fragments, chosen.latency))
        events.started(dict.fromkeys(run.runs, 0))
        try:
            run.run()
        except BaseException as error:
            events.failed(error)
            raise
