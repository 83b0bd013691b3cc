"""Holdfast: fault-tolerant stream processing in Python, on Spark.

Declare a pipeline and the guarantee it must keep; Holdfast picks the mechanism, and shows why. This module is the
whole public API.

    import holdfast as hf
    import polars as pl
"""

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
from holdfast.graph.nodes import ProcessContext, Step
from holdfast.graph.pipeline import Pipeline
from holdfast.graph.stream import Stream
from holdfast.graph.windows import count_window, session, sliding, tumbling

__version__ = "0.1.0"

__all__ = [
    "Aggregate",
    "Pipeline",
    "ProcessContext",
    "Step",
    "Stream",
    "aggregate",
    "approx_distinct",
    "count",
    "count_window",
    "first",
    "last",
    "max",
    "mean",
    "min",
    "session",
    "sliding",
    "std",
    "sum",
    "top_k",
    "tumbling",
    "var",
]
