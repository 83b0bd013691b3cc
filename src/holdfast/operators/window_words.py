"""Window aggregates of all kinds, in words: for `explain`, and in the shape of a pipeline."""

from __future__ import annotations

from holdfast.graph.nodes import WindowAggregate
from holdfast.state.pipeline_shape import StateMeaning

__all__ = ["window_line", "window_meaning"]


def window_line(node: WindowAggregate) -> str:
    """What is computed, by which keys, in which windows."""
    labels = ", ".join(f"{bound.output} = {bound.label}" for bound in node.aggregates)
    by = f" by {', '.join(node.keys)}" if node.keys else ""
    return f"{node.window}{by}: {labels}"


def window_meaning(node: WindowAggregate) -> StateMeaning:
    """What decides what the state of windows means: the windows, and the columns of a partial."""
    columns = {name: str(dtype) for name, dtype in node.state_schema.items()}
    return StateMeaning(window=str(node.window), state=columns)
