"""Holdfast: exactly-once stream processing in Python on Spark.

Declare a pipeline with Polars expressions; Holdfast runs it in small deterministic epochs and commits each of them
once, whatever is killed in between. This module is the whole public API:

    import holdfast as hf
    import polars as pl

    clicks = {"ts": pl.Int64, "kind": pl.String, "page": pl.String}
    pipeline = hf.Pipeline("clicks")
    (
        pipeline.source(
            "events", hf.files("in", format="ndjson", schema=clicks, grow=True), event_time="ts", time_unit="ms"
        )
        .filter(pl.col("kind") == "click")
        .key_by("page")
        .window(hf.sliding("1 min", "1s"))
        .agg(clicks=hf.count())
        .sink("results", hf.parquet("out"))
    )
    hf.run(pipeline)
"""

from holdfast.connect import (
    Crash,
    Fail,
    arrow,
    collect,
    console,
    database,
    files,
    for_each_epoch,
    generator,
    memory,
    ndjson,
    parquet,
    push,
    read_output,
    replay,
)
from holdfast.connect.base import Chunk, DriverSink, Sink, Slice, Source, Take, TaskSink
from holdfast.epoch.transfer import export_state, import_state
from holdfast.errors import HoldfastError
from holdfast.graph.aggregates import (
    Aggregate,
    aggregate,
    approx_distinct,
    count,
    first,
    last,
    max,
    mean,
    min,
    std,
    sum,
    top_k,
    var,
)
from holdfast.graph.guarantee import Guarantee
from holdfast.graph.nodes import ProcessContext, Step
from holdfast.graph.pipeline import Pipeline
from holdfast.graph.policies import delta, eventual, interval, none
from holdfast.graph.stream import Stream
from holdfast.graph.windows import count_window, session, sliding, tumbling
from holdfast.plan.explain import explain
from holdfast.pstream.link import pstream
from holdfast.remedy import replan, skip
from holdfast.run import close_session, cluster, open_session, run, start
from holdfast.running import Running, RunStatus
from holdfast.scale.settings import Scaling
from holdfast.state.inspect import read_state
from holdfast.state.people import state, state_diff

__version__ = "0.1.0"

__all__ = [
    "Aggregate",
    "Chunk",
    "Crash",
    "DriverSink",
    "Fail",
    "Guarantee",
    "HoldfastError",
    "Pipeline",
    "ProcessContext",
    "RunStatus",
    "Running",
    "Scaling",
    "Sink",
    "Slice",
    "Source",
    "Step",
    "Stream",
    "Take",
    "TaskSink",
    "aggregate",
    "approx_distinct",
    "arrow",
    "close_session",
    "cluster",
    "collect",
    "console",
    "count",
    "count_window",
    "database",
    "delta",
    "eventual",
    "explain",
    "export_state",
    "files",
    "first",
    "for_each_epoch",
    "generator",
    "import_state",
    "interval",
    "last",
    "max",
    "mean",
    "memory",
    "min",
    "ndjson",
    "none",
    "open_session",
    "parquet",
    "pstream",
    "push",
    "read_output",
    "read_state",
    "replan",
    "replay",
    "run",
    "session",
    "skip",
    "sliding",
    "start",
    "state",
    "state_diff",
    "std",
    "sum",
    "top_k",
    "tumbling",
    "var",
]
