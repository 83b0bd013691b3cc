"""The ends of a p-stream that carries the partial aggregates of a window instead of rows."""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.graph.nodes import Node, SinkNode, SourceNode, Stateful, WindowAggregate
from holdfast.operators.registry import operator_of

__all__ = ["LiftedSink", "LiftedSource", "lifted_window"]


def lifted_window(node: Node) -> WindowAggregate:
    """The window aggregate for which rows on the way to this operator are lifted."""
    assert isinstance(node, Stateful)
    window = operator_of(node).lifted
    assert window is not None
    return window


@dataclass(frozen=True, slots=True, kw_only=True)
class LiftedSink(SinkNode):
    """Rows that come here are lifted for `window`, combined per epoch, and written."""

    window: WindowAggregate


@dataclass(frozen=True, slots=True, kw_only=True)
class LiftedSource(SourceNode):
    """What comes from here is partials, for the only operator that reads it."""
