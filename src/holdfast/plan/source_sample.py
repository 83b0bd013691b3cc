"""Rows of a source to measure with, read as an epoch would read them, without touching any position."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping

import polars as pl

from holdfast.connect.base import Source
from holdfast.connect.source_answers import checked_chunks, checked_position, checked_take
from holdfast.connect.sources.received import ReceivedSource
from holdfast.errors import HoldfastError
from holdfast.graph.nodes import Node, SourceNode
from holdfast.graph.pipeline import Pipeline
from holdfast.plan.places import Cut, cuts_of
from holdfast.plan.pushup import check_placement, decide, sources_above
from holdfast.pstream.description import Placement
from holdfast.pstream.link import StreamSource

__all__ = ["place_cuts"]

_SAMPLE = 200_000


def place_cuts(pipeline: Pipeline, known: Mapping[str, Placement]) -> dict[str, Placement]:
    """The place of every cut of a pipeline: as `known` from an earlier run, else decided now."""
    nodes = pipeline.nodes
    placements = {}
    samples: dict[str, pl.DataFrame] = {}
    for cut in cuts_of(nodes):
        if cut.name in known:
            check_placement(nodes, cut, known[cut.name], pipeline.name)
            placements[cut.name] = known[cut.name]
        else:
            placements[cut.name] = decide(nodes, cut, _samples(nodes, cut, samples))
    return placements


def _samples(nodes: Mapping[str, Node], cut: Cut, made: dict[str, pl.DataFrame]) -> dict[str, pl.DataFrame]:
    above = sources_above(nodes, cut.entry) if cut.push_up else None
    found = {}
    for node in above or ():
        if node.name not in made:
            made[node.name] = _sample(node)
        if made[node.name].height:
            found[node.name] = made[node.name]
    return found


def _sample(node: SourceNode) -> pl.DataFrame:
    """The first rows of a source, as far as it has any: what it gives at its start, it gives again later."""
    source = node.source
    if not isinstance(source, Source) or isinstance(source, ReceivedSource | StreamSource):
        return pl.DataFrame(schema=node.schema)
    frames: list[pl.DataFrame] = []
    # A run meets the same error, in its place; what came before it can be measured.
    with contextlib.suppress(HoldfastError):
        _read(node, source, frames)
    return pl.concat(frames) if frames else pl.DataFrame(schema=node.schema)


def _read(node: SourceNode, source: Source, frames: list[pl.DataFrame]) -> None:
    rows = 0
    start = checked_position("start", source.start())
    for piece in checked_take(source.take(start, _SAMPLE, 1)).slices:
        for chunk in checked_chunks(node.schema, source.read(piece)):
            frame = chunk.frame.head(_SAMPLE - rows)
            if node.time is not None and chunk.shift:
                column = node.time.column
                dtype = frame.schema[column]
                frame = frame.with_columns((pl.col(column).to_physical() + chunk.shift).cast(dtype))
            frames.append(frame)
            rows += frame.height
            if rows >= _SAMPLE:
                return
