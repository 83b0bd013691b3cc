"""From a graph to a program: stages, the edges between them, and which rows go where.

A stage is the part of a pipeline between two shuffles. Stage 0 reads the sources; a stateful operator stands in the
stage after the last stage its input comes from. Stateless operators run wherever their input is, so one below a
union may run in several stages. The program is what the tasks get, pickled once.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from math import gcd

import polars as pl

from holdfast.connect.base import Source
from holdfast.connect.source_need import SourceNeed
from holdfast.errors import DeclarationError
from holdfast.graph.guarantee import Guarantee
from holdfast.graph.nodes import Node, SideOutput, SinkNode, SourceNode, SparkInput, Stateful, WindowAggregate
from holdfast.graph.pipeline import Pipeline
from holdfast.graph.stateless.stateless_operator import LookupUse, Stateless
from holdfast.hidden_columns import BOUND, POSITION, ROW_SEQ, ROW_TIME
from holdfast.operators.lift import needed_columns, partial_schema
from holdfast.operators.registry import operator_of
from holdfast.operators.step import Grain
from holdfast.plan.column_needs import columns_read, first_filters
from holdfast.plan.lifted import LiftedSink, LiftedSource, lifted_window
from holdfast.pstream.link import StreamSink, StreamSource

__all__ = [
    "Edge",
    "Program",
    "compile_program",
    "edge_schema",
    "goes_by_time",
    "is_derived",
    "is_numbered",
    "keeps_time",
    "wants_marks",
]


@dataclass(frozen=True, slots=True)
class Edge:
    """A shuffle into an input port of a stateful operator.

    `partials` edges carry lifted pane partials, others carry rows, of which `columns` travel. `before_join` is a
    table join that can be done after lifting, on partials instead of rows. What comes from a p-stream of partials is
    `lifted` already.
    """

    number: int
    consumer: str
    port: int
    input: str
    partials: bool
    columns: tuple[str, ...]
    before_join: str | None = None
    lifted: bool = False


@dataclass(frozen=True)
class Program:
    """A pipeline, planned. `stage_of` gives the stage of each stateful operator."""

    name: str
    nodes: dict[str, Node]
    order: tuple[str, ...]
    stage_of: dict[str, int]
    edges: tuple[Edge, ...]
    lifts: tuple[Edge, ...] = ()
    """Into sinks that write partials; numbered after `edges`."""
    guarantee: Guarantee = field(default_factory=Guarantee)

    def window_of(self, edge: Edge) -> WindowAggregate:
        """The window that an edge of partials is lifted for."""
        node = self.nodes[edge.consumer]
        return node.window if isinstance(node, LiftedSink) else lifted_window(node)

    @cached_property
    def sources(self) -> tuple[SourceNode, ...]:
        return tuple(node for node in self._ordered() if isinstance(node, SourceNode))

    @cached_property
    def spark_input(self) -> SourceNode | None:
        return next((node for node in self.sources if isinstance(node.source, SparkInput)), None)

    @cached_property
    def stateful(self) -> tuple[Stateful, ...]:
        return tuple(node for node in self._ordered() if isinstance(node, Stateful))

    @cached_property
    def sinks(self) -> tuple[SinkNode, ...]:
        return tuple(node for node in self._ordered() if isinstance(node, SinkNode))

    @cached_property
    def lookups(self) -> dict[str, LookupUse]:
        """The tables that change while the pipeline runs, by the operators that join with them."""
        uses = {node.name: node.lookup_use for node in self._ordered() if isinstance(node, Stateless)}
        return {name: use for name, use in uses.items() if use is not None}

    @cached_property
    def stages(self) -> int:
        """The number of stages, stage 0 included."""
        return 1 + max(self.stage_of.values(), default=0)

    def for_tasks(self) -> Program:
        """The program without what only the driver needs and what may not be picklable: DataFrames, driver sinks,
        lookup tables, which may hold passwords."""
        return replace(self, nodes={name: node.for_tasks() for name, node in self.nodes.items()})

    @cached_property
    def silent(self) -> Program:
        """The program without its sinks, for epochs that are run again for their state only."""
        nodes = {name: node for name, node in self.nodes.items() if not isinstance(node, SinkNode)}
        return replace(self, nodes=nodes, order=tuple(name for name in self.order if name in nodes), lifts=())

    @cached_property
    def wanted(self) -> frozenset[str]:
        """The nodes whose rows reach a sink or a stateful operator."""
        found: set[str] = set()
        for name in reversed(self.order):
            node = self.nodes[name]
            if name in found or isinstance(node, SinkNode | Stateful):
                found.update(node.inputs)
        return frozenset(found)

    def _ordered(self) -> list[Node]:
        return [self.nodes[name] for name in self.order]

    def operators_in(self, stage: int) -> list[Stateful]:
        return [node for node in self.stateful if self.stage_of[node.name] == stage]

    def inputs_of(self, node: Node) -> list[pl.Schema]:
        """The columns of the rows that come to the ports of an operator."""
        return [self.nodes[upstream].schema for upstream in node.inputs]

    def edges_into(self, operator: str) -> list[Edge]:
        return [edge for edge in self.edges if edge.consumer == operator]

    def sources_of(self, name: str) -> frozenset[str]:
        """The sources an operator's rows come from: its watermark is the least of theirs."""
        return self._sources_of[name]

    @cached_property
    def _sources_of(self) -> dict[str, frozenset[str]]:
        found: dict[str, frozenset[str]] = {}
        for name in self.order:
            node = self.nodes[name]
            if isinstance(node, SourceNode):
                found[name] = frozenset([name])
            else:
                found[name] = frozenset().union(*(found[upstream] for upstream in node.inputs))
        return found

    @cached_property
    def direct(self) -> frozenset[str]:
        """The operators whose rows come from sources alone, without a stateful operator on the way, be it in another
        fragment."""
        found: set[str] = set()
        for name in self.order:
            node = self.nodes[name]
            if (isinstance(node, SourceNode) and not is_derived(node)) or (
                not isinstance(node, Stateful) and node.inputs and all(up in found for up in node.inputs)
            ):
                found.add(name)
        return frozenset(found)

    @cached_property
    def _wishes(self) -> dict[str, Grain]:
        """For each node how closely those behind it want the watermark of what it puts out; those that nobody asks are
        left out."""
        wishes: dict[str, Grain] = {}
        for name in reversed(self.order):
            node = self.nodes[name]
            wish = wishes.get(name)
            if isinstance(node, Stateful):
                wish = operator_of(node).grain(wish)
            elif isinstance(node, LiftedSink):
                wish = operator_of(node.window).grain(None)
            elif isinstance(node, SinkNode):
                wish = Grain(1, node.sink.marked) if isinstance(node.sink, StreamSink) else None
            if wish is not None:
                for upstream in node.inputs:
                    other = wishes.get(upstream, wish)
                    wishes[upstream] = Grain(gcd(wish.unit, other.unit), wish.every or other.every)
        return wishes

    @cached_property
    def grains(self) -> dict[str, Grain]:
        """For each stateful operator how closely the watermark of what it emits is wanted, where it has times."""
        timed = [node.name for node in self.stateful if node.time is not None]
        return {name: self._wishes[name] for name in timed if name in self._wishes}

    @cached_property
    def marked(self) -> frozenset[str]:
        """The operators, and the sinks that feed some, to which each row comes with the watermark before it."""
        found = {
            node.name
            for node in self.stateful
            if self.nodes[node.inputs[0]].time is not None
            and wants_marks(operator_of(node).grain(self._wishes.get(node.name)))
        }
        return frozenset(found | {n.name for n in self.sinks if isinstance(n.sink, StreamSink) and n.sink.marked})

    @cached_property
    def wants_late(self) -> frozenset[str]:
        """The operators whose late rows somebody reads: there rows must travel whole."""
        return _wants_late(self.nodes)


def _wants_late(nodes: dict[str, Node]) -> frozenset[str]:
    return frozenset(node.inputs[0] for node in nodes.values() if isinstance(node, SideOutput) and node.kind == "late")


def compile_program(pipeline: Pipeline) -> Program:
    """Check the pipeline as a whole and lay it out in stages."""
    order = pipeline.check()
    nodes = {node.name: node for node in order}
    wants_late = _wants_late(nodes)
    stages: dict[str, frozenset[int]] = {}
    stage_of: dict[str, int] = {}
    edges: list[Edge] = []
    for node in order:
        if isinstance(node, SourceNode):
            stages[node.name] = frozenset([0])
        elif isinstance(node, Stateful):
            stage = 1 + max(max(stages[upstream]) for upstream in node.inputs)
            stages[node.name] = frozenset([stage])
            stage_of[node.name] = stage
            for port, upstream in enumerate(node.inputs):
                edges.append(_edge(len(edges), node, port, upstream, nodes, wants_late))
        else:
            stages[node.name] = frozenset().union(*(stages[upstream] for upstream in node.inputs))
    used = {upstream for node in order for upstream in node.inputs}
    for node in order:
        if isinstance(node, SourceNode) and node.name not in used:
            raise DeclarationError(
                "no operator or sink reads this source", cure="remove it, or connect it to a sink", operator=node.name
            )
    lifts = [
        Edge(
            len(edges) + number, node.name, 0, node.inputs[0], True,
            tuple(needed_columns(node.window, nodes[node.inputs[0]].time)),
            _late_join(node.window, nodes[node.inputs[0]]),
        )
        for number, node in enumerate(sink for sink in order if isinstance(sink, LiftedSink))
    ]  # fmt: skip
    program = Program(pipeline.name, nodes, tuple(nodes), stage_of, tuple(edges), tuple(lifts), pipeline.guarantee)
    return replace(program, nodes={name: _narrowed(program, node) for name, node in nodes.items()})


def _narrowed(program: Program, node: Node) -> Node:
    """A source without what nobody reads, if it can leave that out. Where somebody wants the watermark before each row,
    or times are held against the clock, all rows are looked at."""
    if not isinstance(node, SourceNode) or not isinstance(node.source, Source):
        return node
    filters = () if program.marked or node.max_ahead is not None else first_filters(program.nodes, node.name)
    need = SourceNeed(columns_read(program.nodes, node), pl.all_horizontal(filters) if filters else None, node.allowed)
    return replace(node, source=node.source.narrowed(need))


def _edge(
    number: int, node: Stateful, port: int, upstream: str, nodes: dict[str, Node], wants_late: frozenset[str]
) -> Edge:
    operator, columns = operator_of(node), tuple(nodes[upstream].schema)
    if isinstance(nodes[upstream], LiftedSource):
        return Edge(number, node.name, port, upstream, True, columns, lifted=True)
    read = operator.reads(nodes[upstream].time)
    if read is None or node.name in wants_late:
        return Edge(number, node.name, port, upstream, False, columns)
    if operator.lifted is None:
        return Edge(number, node.name, port, upstream, False, tuple(read))
    return Edge(number, node.name, port, upstream, True, tuple(read), _late_join(operator.lifted, nodes[upstream]))


def _late_join(node: WindowAggregate, upstream: Node) -> str | None:
    """A table join right before a window can follow the lift if the aggregates read the stream's side only."""
    join = upstream.key_join if isinstance(upstream, Stateless) else None
    if join is None:
        return None
    read = {
        name
        for aggregate in node.aggregates
        for expr in (*aggregate.prepare, *aggregate.lift)
        for name in expr.meta.root_names()
    }
    return upstream.name if not read & join.added else None


def is_derived(node: SourceNode) -> bool:
    """Whether a source gives results of a stateful operator, whose order means nothing."""
    return isinstance(node.source, StreamSource) and node.source.derived


def keeps_time(program: Program, source: SourceNode, target: str) -> bool:
    """Whether the event time of rows at `target` is the source's own, untouched on the way."""
    pending = [target] if source.time is not None else []
    kept = bool(pending)
    while pending and kept:
        node = program.nodes[pending.pop()]
        kept = node.time is not None and (not isinstance(node, Stateless) or node.keeps_time)
        if not isinstance(node, SourceNode | Stateful):
            pending += node.inputs
    return kept


def goes_by_time(node: Node) -> bool:
    """Whether event time decides what an operator does with a row; if not, the order of arrival does."""
    return not isinstance(node, Stateful) or operator_of(node).by_time


def is_numbered(node: Node) -> bool:
    """Whether the rows that come to an operator have their place in the order of arrival."""
    return not isinstance(node, Stateful) or operator_of(node).numbered


def wants_marks(grain: Grain | None) -> bool:
    """Whether an operator with this grain wants the watermark before every row."""
    return grain is not None and grain.every


def edge_schema(program: Program, edge: Edge) -> pl.Schema:
    """The columns of the batches that travel along an edge."""
    node = program.nodes[edge.consumer]
    assert isinstance(node, Stateful)
    rows = program.nodes[edge.input].schema
    if edge.partials:
        return pl.Schema({POSITION: pl.UInt64(), **partial_schema(lifted_window(node), rows)})
    bounded = goes_by_time(node) or node.name in program.marked
    times: dict[str, pl.DataType] = {BOUND: pl.Int64()} if bounded else {}
    times[ROW_TIME] = pl.Int64()
    if is_numbered(node):
        times |= {name: pl.Int64() for name in ROW_SEQ}
    return pl.Schema({POSITION: pl.UInt64(), **{name: rows[name] for name in edge.columns}, **times})
