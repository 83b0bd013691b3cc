"""The ends of a p-stream that carries the partial aggregates of a window instead of rows."""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.graph.nodes import SinkNode, SourceNode, WindowAggregate

__all__ = ["LiftedSink", "LiftedSource"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LiftedSink(SinkNode):
    """Rows that come here are lifted for `window`, combined per epoch, and written."""

    window: WindowAggregate


@dataclass(frozen=True, slots=True, kw_only=True)
class LiftedSource(SourceNode):
    """What comes from here is partials, for the only operator that reads it."""
