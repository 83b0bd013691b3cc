"""What the user declares: pipelines, streams, operators, windows and aggregates."""

from holdfast.graph.aggregates import Aggregate
from holdfast.graph.keyed import KeyedStream, WindowedStream
from holdfast.graph.nodes import ProcessContext, Step
from holdfast.graph.pipeline import Pipeline
from holdfast.graph.stream import Stream
from holdfast.graph.windows import count_window, session, sliding, tumbling

__all__ = [
    "Aggregate",
    "KeyedStream",
    "Pipeline",
    "ProcessContext",
    "Step",
    "Stream",
    "WindowedStream",
    "count_window",
    "session",
    "sliding",
    "tumbling",
]
