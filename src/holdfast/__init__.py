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
`hf.sink` for `.sink(...)`, `hf.lookup` for `.join_table(...)`, `hf.checkpoint` for `checkpoint=`. `hf.kafka` has what
Kafka's source and sink share, `hf.errors` every error, and `hf.testing` what tests of pipelines and connectors use.

A name is imported when it is first used: a task, which runs in a process of its own, loads nothing of the driver.
"""

import importlib
import sys
from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING

from holdfast.interrupted_import import import_part

if TYPE_CHECKING:
    from holdfast import checkpoint, errors, kafka, lookup, sink, source, spark, testing, window
    from holdfast.connect.sinks.file_sink import read_output
    from holdfast.durability.checkpoints import CheckpointReport
    from holdfast.engine.epoch_rerun import rerun
    from holdfast.engine.observer import Observer, Observers
    from holdfast.engine.options import RunOptions
    from holdfast.engine.recovery import RecoveryReport
    from holdfast.engine.rerun_result import Rerun
    from holdfast.engine.row_origin import RowOrigin
    from holdfast.engine.row_search import why
    from holdfast.engine.scaling_rules import Scaling, ScalingDecision
    from holdfast.engine.summary import FragmentSummary, RunSummary
    from holdfast.engine.transfer import export_state, import_state
    from holdfast.epoch.report import EpochReport
    from holdfast.errors import HoldfastError
    from holdfast.graph.aggregates.aggregate import Aggregate, aggregate
    from holdfast.graph.aggregates.distinct_sketch import approx_distinct
    from holdfast.graph.aggregates.edges import first, last
    from holdfast.graph.aggregates.extreme_rows import arg_max, arg_min
    from holdfast.graph.aggregates.extremes import max, min
    from holdfast.graph.aggregates.moments import std, var
    from holdfast.graph.aggregates.quantiles import median, quantile
    from holdfast.graph.aggregates.ranking import top_k
    from holdfast.graph.aggregates.sums import count, mean, sum
    from holdfast.graph.aggregates.value_lists import collect_list
    from holdfast.graph.aggregates.value_sets import count_distinct
    from holdfast.graph.guarantee import Guarantee
    from holdfast.graph.keyed import KeyedStream, WindowedStream
    from holdfast.graph.nodes import ProcessContext, Step
    from holdfast.graph.pipeline import Pipeline
    from holdfast.graph.stream import Stream
    from holdfast.plan.explain import explain
    from holdfast.remedy import replan, skip
    from holdfast.run import close_spark, open_spark, run, spark_cluster, start
    from holdfast.run_handle import Running
    from holdfast.scale.coordinator import ExecutorPool
    from holdfast.scale.pool import OwnCluster
    from holdfast.state.reader import state, state_diff
    from holdfast.watch.event_table import events

__version__ = "0.2.0"

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
    "Rerun",
    "RowOrigin",
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
    "arg_max",
    "arg_min",
    "checkpoint",
    "close_spark",
    "collect_list",
    "count",
    "count_distinct",
    "errors",
    "events",
    "explain",
    "export_state",
    "first",
    "import_state",
    "kafka",
    "last",
    "lookup",
    "max",
    "mean",
    "median",
    "min",
    "open_spark",
    "quantile",
    "read_output",
    "replan",
    "rerun",
    "run",
    "sink",
    "skip",
    "source",
    "spark",
    "spark_cluster",
    "start",
    "state",
    "state_diff",
    "std",
    "sum",
    "testing",
    "top_k",
    "var",
    "why",
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
    "Rerun": "engine.rerun_result",
    "RowOrigin": "engine.row_origin",
    "RunOptions": "engine.options",
    "RunSummary": "engine.summary",
    "Running": "run_handle",
    "Scaling": "engine.scaling_rules",
    "ScalingDecision": "engine.scaling_rules",
    "Step": "graph.nodes",
    "Stream": "graph.stream",
    "WindowedStream": "graph.keyed",
    "aggregate": "graph.aggregates.aggregate",
    "approx_distinct": "graph.aggregates.distinct_sketch",
    "arg_max": "graph.aggregates.extreme_rows",
    "arg_min": "graph.aggregates.extreme_rows",
    "close_spark": "run",
    "collect_list": "graph.aggregates.value_lists",
    "count": "graph.aggregates.sums",
    "count_distinct": "graph.aggregates.value_sets",
    "events": "watch.event_table",
    "explain": "plan.explain",
    "export_state": "engine.transfer",
    "first": "graph.aggregates.edges",
    "import_state": "engine.transfer",
    "last": "graph.aggregates.edges",
    "max": "graph.aggregates.extremes",
    "mean": "graph.aggregates.sums",
    "median": "graph.aggregates.quantiles",
    "min": "graph.aggregates.extremes",
    "open_spark": "run",
    "quantile": "graph.aggregates.quantiles",
    "read_output": "connect.sinks.file_sink",
    "replan": "remedy",
    "rerun": "engine.epoch_rerun",
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
    "why": "engine.row_search",
}
_SPACES = frozenset({"checkpoint", "errors", "kafka", "lookup", "sink", "source", "spark", "testing", "window"})
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
