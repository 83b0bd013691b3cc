"""Fragments: a pipeline cut by its p-streams into parts that run and recover on their own.

Each cut becomes a sink in the fragment that writes the p-stream and a source in every fragment that reads it. What is
connected without passing a cut is one fragment; what reads the same p-stream and is not connected otherwise is several,
each with its own progress. A pipeline without cuts is one fragment with the pipeline's own name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import polars as pl

from holdfast.errors import DeclarationError, PipelineChangedError
from holdfast.graph.nodes import (
    Node,
    Persist,
    SinkNode,
    SourceNode,
    Stateful,
    reconnected,
)
from holdfast.graph.pipeline import Pipeline
from holdfast.operators.lift import partial_schema
from holdfast.operators.registry import operator_of
from holdfast.operators.step import Grain
from holdfast.plan.column_needs import readers_of
from holdfast.plan.lifted import LiftedSink, LiftedSource, lifted_window
from holdfast.plan.places import Cut, cuts_of, lossy_at
from holdfast.plan.program import wants_marks
from holdfast.plan.pushup import AFRESH
from holdfast.pstream.description import Placement, StreamDescription
from holdfast.pstream.link import StreamSink, StreamSource

__all__ = [
    "CutPipeline",
    "Fragment",
    "FragmentLinks",
    "Receiving",
    "StreamPlan",
    "cut_pipeline",
    "links_of",
    "stream_name",
]


@dataclass(frozen=True, slots=True)
class StreamPlan:
    """A p-stream of a pipeline: its full name, what is written to it, and where the pipeline is cut for it."""

    name: str
    cut: Cut
    placement: Placement
    schema: pl.Schema
    event_time: str | None

    def description(self) -> StreamDescription:
        """What the store keeps about the stream."""
        columns = {column: str(dtype) for column, dtype in self.schema.items()}
        return StreamDescription(columns, self.event_time, self.cut.entry, self.placement)

    def check(self, known: StreamDescription, pipeline: str) -> None:
        """Refuse to continue with a stream that was made for rows of other types, or by another event time."""
        mine = self.description()
        for called, was, now in (("schema", known.schema, mine.schema), ("event time", known.time, mine.time)):
            if was != now:
                raise PipelineChangedError(
                    f"pipeline '{pipeline}' has changed: the {called} of p-stream '{self.cut.name}' was {was},"
                    f" now it is {now}",
                    cure=AFRESH,
                    operator=self.cut.name,
                )


@dataclass(frozen=True, slots=True)
class Receiving:
    """A source that clients push to: `chain` are the operators that its receivers apply before they write `stream`,
    whose rows are `marked` with the watermark before each if a keyed process reads them."""

    source: SourceNode
    stream: StreamPlan
    chain: Mapping[str, Node]
    marked: bool = False


@dataclass(frozen=True, slots=True)
class Fragment:
    """A part of a pipeline, as a pipeline of its own, with the p-streams it reads and writes."""

    pipeline: Pipeline
    reads: tuple[str, ...]
    writes: tuple[str, ...]

    @property
    def name(self) -> str:
        return self.pipeline.name


@dataclass(frozen=True, slots=True)
class FragmentLinks:
    """Which fragments write what this one reads, and whether it reads nothing else: what limits a run limits what it
    takes in, and the rest is worked off."""

    upstream: tuple[str, ...] = ()
    inner: bool = False


@dataclass(frozen=True, slots=True)
class CutPipeline:
    """The fragments of a pipeline, writers before their readers, its p-streams, and what receivers do."""

    fragments: tuple[Fragment, ...]
    streams: tuple[StreamPlan, ...]
    receiving: tuple[Receiving, ...]


def stream_name(pipeline: str, cut: str) -> str:
    return f"{pipeline}.{cut}"


def cut_pipeline(pipeline: Pipeline, placements: Mapping[str, Placement]) -> CutPipeline:
    """Cut a pipeline, each cut where `placements` says."""
    pipeline.check()
    cuts = cuts_of(pipeline.nodes)
    if not cuts:
        return CutPipeline((Fragment(pipeline, (), ()),), (), ())
    nodes = dict(pipeline.nodes)
    streams: list[StreamPlan] = []
    receiving: list[Receiving] = []
    writers: dict[str, Node] = {}
    sources: dict[str, SourceNode] = {}
    for cut in cuts:
        placement = placements[cut.name]
        plan = _plan_stream(pipeline, cut, placement)
        streams.append(plan)
        sources[cut.name] = _reading_end(pipeline.nodes, plan)
        if cut.pushed:
            receiving.append(_receiving(pipeline.nodes, plan))
        _rewire(nodes, plan)
    for plan in streams:
        if not plan.cut.pushed:
            writers[plan.cut.name] = _writing_end(pipeline.nodes, nodes, plan)
    for item in receiving:
        for name in (item.source.name, *item.chain):
            del nodes[name]
    parts = _components(nodes, {plan.cut.name for plan in streams}, writers)
    fragments = [_fragment(pipeline, nodes, part, writers, sources) for part in parts]
    return CutPipeline(tuple(_writers_first(fragments)), tuple(streams), tuple(receiving))


def _plan_stream(pipeline: Pipeline, cut: Cut, placement: Placement) -> StreamPlan:
    place = placement.place
    rows = pipeline.nodes[place.after]
    schema = pl.Schema({name: rows.schema[name] for name in place.columns})
    if place.window is not None:
        schema = partial_schema(lifted_window(pipeline.nodes[place.window]), rows.schema)
    name = stream_name(pipeline.name, cut.name)
    return StreamPlan(name, cut, placement, schema, None if rows.time is None else rows.time.column)


def _reading_end(nodes: Mapping[str, Node], plan: StreamPlan) -> SourceNode:
    place = plan.placement.place
    direct = plan.cut.pushed or not _after_state(nodes, place.after)
    lifted = place.window is not None
    source = StreamSource(
        plan.name, plan.schema, plan.event_time, derived=not direct and not lifted, pushed=plan.cut.pushed
    )
    kind = LiftedSource if lifted else SourceNode
    return kind(
        name=plan.cut.name, inputs=(), schema=plan.schema, time=nodes[place.after].time, source=source,
        idle=_idle_at(nodes, place.after),
    )  # fmt: skip


def _idle_at(nodes: Mapping[str, Node], name: str) -> float | None:
    """After how much silence nobody waits for a p-stream of these rows: the longest of their sources, if all of them
    say it."""
    node = nodes[name]
    if isinstance(node, SourceNode):
        return node.idle
    spans = [_idle_at(nodes, upstream) for upstream in node.inputs]
    known = [span for span in spans if span is not None]
    return max(known) if known and len(known) == len(spans) else None


def _after_state(nodes: Mapping[str, Node], name: str) -> bool:
    """Whether rows at `name` come through a stateful operator of the fragment that writes them."""
    node = nodes[name]
    if isinstance(node, Stateful):
        return True
    return not isinstance(node, Persist) and any(_after_state(nodes, upstream) for upstream in node.inputs)


def _writing_end(nodes: Mapping[str, Node], rewired: Mapping[str, Node], plan: StreamPlan) -> SinkNode:
    declared, place = nodes[plan.cut.name], plan.placement.place
    # Where nothing was moved before the cut, its input may have become the end of another cut.
    inputs = (place.after,) if place.after != plan.cut.entry else rewired[plan.cut.name].inputs
    assert isinstance(declared, Persist)
    lossy = lossy_at(nodes, plan.cut, place)
    chosen = next((measured for measured in plan.placement.measured if measured.place == place), None)
    sink = StreamSink(
        plan.name, declared.compress, lossy, declared.budget, expected=chosen.bytes_per_row if chosen else None,
        marked=_marks_wanted(nodes, plan.cut.name),
    )  # fmt: skip
    time = nodes[place.after].time
    if place.window is None:
        return SinkNode(name=plan.cut.name, inputs=inputs, schema=plan.schema, time=time, sink=sink)
    window = lifted_window(nodes[place.window])
    return LiftedSink(name=plan.cut.name, inputs=inputs, schema=plan.schema, time=time, sink=sink, window=window)


def _marks_wanted(nodes: Mapping[str, Node], name: str) -> bool:
    """Whether rows at `name` reach an operator that may want the watermark before each, with no stateful operator
    between."""
    return any(
        wants_marks(operator_of(node).grain(Grain(1)))
        if isinstance(node, Stateful)
        else _marks_wanted(nodes, node.name)
        for node in readers_of(nodes, name)
    )


def _receiving(nodes: Mapping[str, Node], plan: StreamPlan) -> Receiving:
    source = nodes[plan.cut.name]
    assert isinstance(source, SourceNode)
    chain: dict[str, Node] = {}
    at = plan.placement.place.after
    while at != source.name:
        chain[at] = nodes[at]
        [at] = nodes[at].inputs
    return Receiving(source, plan, dict(reversed(chain.items())), _marks_wanted(nodes, source.name))


def _rewire(nodes: dict[str, Node], plan: StreamPlan) -> None:
    """Let the operators before the place read past the cut, and those behind it read from it."""
    cut, place = plan.cut, plan.placement.place
    if place.after == cut.entry:
        return  # they do so already; what reads the operator before the cut itself goes on to do so
    for node in readers_of(nodes, place.after):
        inputs = tuple(cut.name if name == place.after else name for name in node.inputs)
        nodes[node.name] = reconnected(node, inputs)
    if not cut.pushed:
        at = place.after
        while nodes[at].inputs != (cut.name,):
            [at] = nodes[at].inputs
        nodes[at] = reconnected(nodes[at], nodes[cut.name].inputs)


def _components(nodes: Mapping[str, Node], cuts: set[str], writers: Mapping[str, Node]) -> list[list[str]]:
    """The names of what is connected without passing a cut, in order of declaration. A cut's own name stands for the
    end that writes it."""
    group: dict[str, str] = {name: name for name, node in nodes.items() if name not in cuts or name in writers}

    def root(name: str) -> str:
        while group[name] != name:
            name = group[name]
        return name

    for name in group:
        inputs = writers[name].inputs if name in writers else nodes[name].inputs
        for upstream in inputs:
            if upstream not in cuts:
                group[root(name)] = root(upstream)
    parts: dict[str, list[str]] = {}
    for name in group:
        parts.setdefault(root(name), []).append(name)
    return list(parts.values())


def _fragment(
    pipeline: Pipeline,
    nodes: Mapping[str, Node],
    part: list[str],
    writers: Mapping[str, Node],
    sources: Mapping[str, SourceNode],
) -> Fragment:
    mine = {name: writers[name] if name in writers else nodes[name] for name in part}
    read = list(dict.fromkeys(up for node in mine.values() for up in node.inputs if up in sources))
    written = [name for name in mine if name in writers]
    ends = [name for name, node in mine.items() if isinstance(node, SinkNode)]
    made = Pipeline(f"{pipeline.name}.{ends[0]}" if ends else pipeline.name)
    made.guarantee = pipeline.guarantee
    for upstream in read:
        if upstream in mine:
            raise _loop(upstream)
        made.add(sources[upstream])
    for node in mine.values():
        made.add(node)
    return Fragment(
        made,
        tuple(stream_name(pipeline.name, cut) for cut in read),
        tuple(stream_name(pipeline.name, cut) for cut in written),
    )


def _loop(cut: str) -> DeclarationError:
    return DeclarationError(
        "a reader of this p-stream is also connected to its writer by another path",
        cure="persist the other path, too, so that both sides of the cut can run independently, or move the cut"
        " after the operator where the paths meet",
        operator=cut,
    )


def _writers_first(fragments: list[Fragment]) -> list[Fragment]:
    produced = {stream for fragment in fragments for stream in fragment.writes}
    ordered: list[Fragment] = []
    written: set[str] = set()
    rest = list(fragments)
    while rest:
        ready = [fragment for fragment in rest if written.issuperset(produced.intersection(fragment.reads))]
        if not ready:
            raise _loop(rest[0].reads[0].rpartition(".")[2])
        ordered += ready
        written.update(stream for fragment in ready for stream in fragment.writes)
        rest = [fragment for fragment in rest if fragment not in ready]
    return ordered


def links_of(fragment: Fragment, among: Sequence[Fragment]) -> FragmentLinks:
    """How a fragment depends on others."""
    writers = {stream: writer.name for writer in among for stream in writer.writes}
    sources = [node.source for node in fragment.pipeline.nodes.values() if isinstance(node, SourceNode)]
    inner = all(isinstance(source, StreamSource) and source.stream in writers for source in sources)
    return FragmentLinks(tuple(writers[stream] for stream in fragment.reads if stream in writers), inner)
