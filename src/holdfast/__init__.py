"""Holdfast: exactly-once stream processing in Python on Spark.

Declare a pipeline with Polars expressions; Holdfast runs it in small deterministic epochs and commits each of them
once, whatever is killed in between. This module is the whole public API:

    import holdfast as hf
    import polars as pl

    clicks = {"ts": pl.Int64, "kind": pl.String, "page": pl.String}
    events = hf.source.files("in", format="ndjson", schema=clicks, grow=True)
    pipeline = hf.Pipeline("clicks")
    (
        pipeline.source("events", events, event_time="ts", time_unit="ms")
        .filter(pl.col("kind") == "click")
        .key_by("page")
        .window(hf.window.sliding("1 min", "1s"))
        .agg(clicks=hf.count())
        .sink("results", hf.sink.parquet("out"))
    )
    hf.run(pipeline)

What a method takes is in the namespace of its name: `hf.source` for `.source(...)`, `hf.window` for `.window(...)`,
`hf.sink` for `.sink(...)`, `hf.checkpoint` for `checkpoint=`. `hf.errors` has every error.
"""

from holdfast.interrupted_import import import_is_done  # first, for a Ctrl-C while the rest is imported

# isort: split
from typing import TYPE_CHECKING

from holdfast import checkpoint, errors, sink, source, window
from holdfast.connect.sinks.file_sink import read_output
from holdfast.durability.checkpoints import CheckpointReport
from holdfast.engine.observer import Observer, Observers
from holdfast.engine.options import RunOptions
from holdfast.engine.recovery import RecoveryReport
from holdfast.engine.scaling import Scaling, ScalingDecision
from holdfast.engine.summary import FragmentSummary, RunSummary
from holdfast.engine.transfer import export_state, import_state
from holdfast.epoch.report import EpochReport
from holdfast.errors import HoldfastError
from holdfast.graph.aggregates.aggregate import Aggregate, aggregate
from holdfast.graph.aggregates.distinct_sketch import approx_distinct
from holdfast.graph.aggregates.edges import first, last
from holdfast.graph.aggregates.extremes import max, min
from holdfast.graph.aggregates.moments import std, var
from holdfast.graph.aggregates.ranking import top_k
from holdfast.graph.aggregates.sums import count, mean, sum
from holdfast.graph.guarantee import Guarantee
from holdfast.graph.keyed import KeyedStream, WindowedStream
from holdfast.graph.nodes import ProcessContext, Step
from holdfast.graph.pipeline import Pipeline
from holdfast.graph.stream import Stream
from holdfast.plan.explain import explain
from holdfast.remedy import replan, skip
from holdfast.run import close_spark, open_spark, run, spark_cluster, start
from holdfast.running import Running
from holdfast.state.reader import state, state_diff

__version__ = "0.2.0.dev0"

__all__ = [
    "Aggregate",
    "CheckpointReport",
    "EpochReport",
    "FragmentSummary",
    "Guarantee",
    "HoldfastError",
    "KeyedStream",
    "Observer",
    "Observers",
    "Pipeline",
    "ProcessContext",
    "RecoveryReport",
    "RunOptions",
    "RunSummary",
    "Running",
    "Scaling",
    "ScalingDecision",
    "Step",
    "Stream",
    "WindowedStream",
    "aggregate",
    "approx_distinct",
    "checkpoint",
    "close_spark",
    "count",
    "errors",
    "explain",
    "export_state",
    "first",
    "import_state",
    "last",
    "max",
    "mean",
    "min",
    "open_spark",
    "read_output",
    "replan",
    "run",
    "sink",
    "skip",
    "source",
    "spark_cluster",
    "start",
    "state",
    "state_diff",
    "std",
    "sum",
    "top_k",
    "var",
    "window",
]


# Not the package of that name: whoever calls the function of 0.1 is to be told its new place.
del globals()["pstream"]


def __dir__() -> list[str]:
    return [*__all__, "__version__"]


if not TYPE_CHECKING:  # a type checker would take it to say that every name is here

    def __getattr__(name):
        from holdfast.renamed import FUNCTIONS, cure_for

        raise AttributeError(cure_for(name, FUNCTIONS, "hf") or f"module 'holdfast' has no attribute '{name}'")


import_is_done()
del import_is_done
