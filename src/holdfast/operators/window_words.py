"""Window aggregates of all kinds, in words: for `explain`, and in the shape of a pipeline."""

from __future__ import annotations

from typing import Any

from holdfast.graph.nodes import WindowAggregate

__all__ = ["window_line", "window_meaning"]


def window_line(node: WindowAggregate) -> str:
    """What is computed, by which keys, in which windows."""
    labels = ", ".join(f"{bound.output} = {bound.label}" for bound in node.aggregates)
    by = f" by {', '.join(node.keys)}" if node.keys else ""
    return f"{node.window}{by}: {labels}"


def window_meaning(node: WindowAggregate) -> dict[str, Any]:
    """What decides what the state of windows means: the windows, and the columns of a partial."""
    return {
        "window": str(node.window),
        "state": {name: str(dtype) for name, dtype in node.state_schema.items()},
    }
