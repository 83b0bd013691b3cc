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

A name is imported when it is first used: a task, which runs in a process of its own, loads nothing of the driver.
"""

import importlib
import sys
from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING

from holdfast.interrupted_import import import_part

if TYPE_CHECKING:
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
    from holdfast.scale.coordinator import ExecutorPool
    from holdfast.scale.pool import OwnCluster
    from holdfast.state.reader import state, state_diff

__version__ = "0.2.0.dev0"

__all__ = [
    "Aggregate",
    "CheckpointReport",
    "EpochReport",
    "ExecutorPool",
    "FragmentSummary",
    "Guarantee",
    "HoldfastError",
    "KeyedStream",
    "Observer",
    "Observers",
    "OwnCluster",
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

_PLACES = {
    "Aggregate": "graph.aggregates.aggregate",
    "CheckpointReport": "durability.checkpoints",
    "EpochReport": "epoch.report",
    "ExecutorPool": "scale.coordinator",
    "FragmentSummary": "engine.summary",
    "Guarantee": "graph.guarantee",
    "HoldfastError": "errors",
    "KeyedStream": "graph.keyed",
    "Observer": "engine.observer",
    "Observers": "engine.observer",
    "OwnCluster": "scale.pool",
    "Pipeline": "graph.pipeline",
    "ProcessContext": "graph.nodes",
    "RecoveryReport": "engine.recovery",
    "RunOptions": "engine.options",
    "RunSummary": "engine.summary",
    "Running": "running",
    "Scaling": "engine.scaling",
    "ScalingDecision": "engine.scaling",
    "Step": "graph.nodes",
    "Stream": "graph.stream",
    "WindowedStream": "graph.keyed",
    "aggregate": "graph.aggregates.aggregate",
    "approx_distinct": "graph.aggregates.distinct_sketch",
    "close_spark": "run",
    "count": "graph.aggregates.sums",
    "explain": "plan.explain",
    "export_state": "engine.transfer",
    "first": "graph.aggregates.edges",
    "import_state": "engine.transfer",
    "last": "graph.aggregates.edges",
    "max": "graph.aggregates.extremes",
    "mean": "graph.aggregates.sums",
    "min": "graph.aggregates.extremes",
    "open_spark": "run",
    "read_output": "connect.sinks.file_sink",
    "replan": "remedy",
    "run": "run",
    "skip": "remedy",
    "spark_cluster": "run",
    "start": "run",
    "state": "state.reader",
    "state_diff": "state.reader",
    "std": "graph.aggregates.moments",
    "sum": "graph.aggregates.sums",
    "top_k": "graph.aggregates.ranking",
    "var": "graph.aggregates.moments",
}
_SPACES = frozenset({"checkpoint", "errors", "sink", "source", "window"})
# Modules with the name of a function, of today or of 0.1: `hf.state` is the function, whoever has imported the package.
_SHADOWED = frozenset({"pstream", "run", "state"})


class _Namespace(ModuleType):
    """A module that does not show the `_SHADOWED` ones, which an import would set as its attributes."""

    def __setattr__(self, name: str, value: object) -> None:
        if name not in _SHADOWED or not isinstance(value, ModuleType):
            super().__setattr__(name, value)

    def __reduce__(self) -> tuple[Callable[[str], ModuleType], tuple[str]]:
        """Functions of a user that use `hf` are pickled for the tasks; what they find there is this module again."""
        return importlib.import_module, (self.__name__,)


sys.modules[__name__].__class__ = _Namespace


def __dir__() -> list[str]:
    return [*__all__, "__version__"]


if not TYPE_CHECKING:  # a type checker would take it to say that every name is here

    def __getattr__(name):
        if name in _SPACES:
            return import_part(f"holdfast.{name}")
        if name in _PLACES:
            value = globals()[name] = getattr(import_part(f"holdfast.{_PLACES[name]}"), name)
            return value
        renamed = import_part("holdfast.renamed")
        cure = renamed.cure_for(name, renamed.FUNCTIONS, "hf")
        raise AttributeError(cure or f"module 'holdfast' has no attribute '{name}'")
