"""Directories that must be different: a source must not read what the same run writes."""

from __future__ import annotations

import os
from pathlib import Path

from holdfast.connect.base import Source
from holdfast.errors import DeclarationError
from holdfast.graph.nodes import SinkNode, SourceNode
from holdfast.graph.pipeline import Pipeline

__all__ = ["check_places"]


def check_places(pipeline: Pipeline, store: Path) -> None:
    """Refuse a source that would take files of the store, or of a sink of the same pipeline, as its input."""
    nodes = list(pipeline.nodes.values())
    sinks = [(node.name, node.sink.place) for node in nodes if isinstance(node, SinkNode)]
    for node in nodes:
        if not isinstance(node, SourceNode) or not isinstance(node.source, Source):
            continue
        if node.source.lists(store) or node.source.lists_below(store):
            raise DeclarationError(
                f"{node.source.describe()}: files of the store {store} would be read as input",
                cure="give the input and the store separate directories, neither inside the other",
                operator=node.name,
            )
        for name, place in sinks:
            if place is not None and (os.path.isabs(place) or "://" in place) and node.source.lists(Path(place)):
                raise DeclarationError(
                    f"{node.source.describe()}: sink '{name}' writes there, and its output would be read as input",
                    cure="give the input and the output separate directories",
                    operator=node.name,
                )
