"""`explain`: what will run where, and why, in words."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from html import escape

from holdfast.graph.nodes import Node, SinkNode, SourceNode, Stateful
from holdfast.graph.pipeline import Pipeline, check_pipeline
from holdfast.graph.policies import DELTA, strictest
from holdfast.graph.stateless.stateless_operator import Stateless
from holdfast.operators.registry import operator_of
from holdfast.plan.cuts import cut_pipeline
from holdfast.plan.executor_choice import ExecutorName, choose_executor, slots_of
from holdfast.plan.fragment_facts import ProgramFacts
from holdfast.plan.partition_count import USUAL_PARTITIONS, begins_alone, first_partitions
from holdfast.plan.place_report import explain_receivers, explain_stream
from holdfast.plan.program import Edge, Program, compile_program
from holdfast.plan.source_sample import place_cuts
from holdfast.pstream.description import Placement
from holdfast.spans import duration

__all__ = ["Explanation", "explain", "node_lines"]


class Explanation(str):
    """Text that a notebook shows line by line."""

    __slots__ = ()

    def _repr_html_(self) -> str:
        return f"<pre>{escape(self)}</pre>"


@dataclass(frozen=True, slots=True)
class _Asked:
    """What a run would be given, and by fragment and host what the store knows of the executor."""

    partitions: int | None
    latency: float
    tasks: int
    executor: ExecutorName | None
    master: str | None
    executors: Mapping[str, Mapping[str, str]]


def explain(
    pipeline: Pipeline,
    *,
    partitions: int | None = None,
    latency: float = 1.0,
    tasks: int = 2,
    executor: ExecutorName | None = None,
    master: str | None = None,
    placements: Mapping[str, Placement] | None = None,
    executors: Mapping[str, Mapping[str, str]] | None = None,
) -> str:
    """The stages of the pipeline's epoch, what each operator does, what is sent between stages, and the reasons.

    Where p-streams cut the pipeline, also where they do so and what each possible place would write: as kept from an
    earlier run in `placements`, else measured now on the first rows of the sources.

    How many partitions operators have depends on the `partitions` and the `latency`, in seconds, of a run. What runs
    the epochs depends on its `tasks`, `executor` and `master`; where none is given, `executors` has what runs in the
    store have reported for each fragment and host.
    """
    check_pipeline(pipeline, "hf.explain")
    known = {} if executor is not None or master is not None else executors or {}
    asked = _Asked(partitions, latency, tasks, executor, master, known)
    cuts = cut_pipeline(pipeline, place_cuts(pipeline, placements or {}))
    if not cuts.streams:
        return Explanation("\n".join(_program(compile_program(pipeline), "pipeline", asked, 1)))
    lines = [
        f"pipeline {pipeline.name}: {_count(len(cuts.fragments), 'fragment')}, which run and recover independently"
    ]
    for stream in cuts.streams:
        lines += ["", *explain_stream(stream, cuts)]
    for item in cuts.receiving:
        lines += ["", *explain_receivers(item)]
    for fragment in cuts.fragments:
        program = compile_program(fragment.pipeline)
        lines += ["", *_program(program, "fragment", asked, len(cuts.fragments))]
    return Explanation("\n".join(lines))


def _executor(program: Program, asked: _Asked, fragments: int) -> list[str]:
    if known := asked.executors.get(program.name):
        return [f"executor{f' on {host}' if host else ''} at the last start: {text}" for host, text in known.items()]
    choice = choose_executor(
        asked.executor,
        streaming_frame=program.spark_input is not None,
        tasks=asked.tasks,
        fragments=fragments,
        slots=slots_of(asked.master),
        master=asked.master,
    )
    return [f"executor: {choice}"]


def _program(program: Program, what: str, asked: _Asked, fragments: int) -> list[str]:
    lines = [f"{what} {program.name}: {_count(program.stages, 'stage')}", *_executor(program, asked, fragments), ""]
    for stage in range(program.stages):
        lines.append(f"stage {stage}" + ("  read and reduce, inside the Python tasks" if stage == 0 else "  assemble"))
        for name in _in_stage(program, stage):
            node = program.nodes[name]
            lines += [f"  {name}: {line}" if i == 0 else f"      {line}" for i, line in enumerate(node_lines(node))]
        for edge in program.edges:
            if edge.input in _in_stage(program, stage):
                lines.append(f"  ── shuffle to {edge.consumer}: {_edge(edge, program, asked)}")
        lines.append("")
    return lines + _durability(program)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" + ("" if number == 1 else "s")


def _in_stage(program: Program, stage: int) -> list[str]:
    stages: dict[str, set[int]] = {}
    for name in program.order:
        node = program.nodes[name]
        if isinstance(node, SourceNode):
            stages[name] = {0}
        elif isinstance(node, Stateful):
            stages[name] = {program.stage_of[name]}
        else:
            stages[name] = set().union(*(stages[upstream] for upstream in node.inputs))
    return [name for name in program.order if stage in stages[name]]


def node_lines(node: Node) -> list[str]:
    """What an operator does."""
    if isinstance(node, SourceNode):
        what = node.source.describe()
        if node.time is None:
            return [f"source, {what}"]
        ahead = "" if node.max_ahead is None else f", at most {node.max_ahead} ahead of the clock"
        waits = "" if node.idle is None else f"; after {duration(node.idle)} of silence nothing waits for it"
        times = f"event time {node.time.column} ({node.time.unit}), lateness {node.lateness}{ahead}{waits}"
        return [f"source, {what}", times]
    if isinstance(node, Stateless):
        return node.explain()
    if isinstance(node, Stateful):
        return operator_of(node).explain()
    if isinstance(node, SinkNode):
        # A driver sink with an __init__ of its own may have left it unset.
        promised = getattr(node.sink, "guarantee", "") or "the sink declares none"
        return [f"sink, {node.sink.describe()}", f"guarantee: {promised}"]
    return [f"side output of {node.inputs[0]}"]


def _edge(edge: Edge, program: Program, asked: _Asked) -> str:
    node = program.nodes[edge.consumer]
    assert isinstance(node, Stateful)
    count = (node.partitions or first_partitions(asked.partitions, asked.latency, scaled=False)) if node.keys else 1
    where = f"{_count(count, 'partition')} by the position of {', '.join(node.keys) or 'no key'}"
    if node.keys and node.partitions is None and begins_alone(asked.partitions, asked.latency, scaled=False):
        where += (
            f" ({USUAL_PARTITIONS} when epochs take much longer than {round(1_000 * asked.latency)} ms: until then,"
            " one worker alone is faster)"
        )
    if edge.lifted:
        return f"partial aggregates per pane, {where}; they arrive as such from the p-stream"
    if not edge.partials:
        why = (
            "its late rows are read"
            if edge.consumer in program.wants_late
            else "the operator needs the rows themselves"
        )
        return f"rows ({', '.join(edge.columns)}), {where}; {why}"
    text = f"partial aggregates per pane, {where}; lifted before the shuffle, so batches carry groups, not rows"
    if edge.before_join is not None:
        text += f"; the join {edge.before_join} is done on partials, since its table has one row per key"
    return text


def _durability(program: Program) -> list[str]:
    again = "  a restart runs planned epochs again exactly as planned and resumes from the last commit"
    if not program.stateful:
        return ["durability: no state", again]
    facts = ProgramFacts(program)
    target = program.guarantee.recovery_seconds
    within = "" if target is None else f", among those that restore lost state within {target:g} s"
    policy = strictest(node.checkpoint for node in program.stateful if node.checkpoint is not None)
    if policy is None:
        return [
            f"durability: the cheapest policy{within}",
            *(f"  first {DELTA}: {line}" for line in DELTA.explain(facts)),
            "  the bytes of each policy are measured while it runs, if the sources keep what was read; see"
            " `holdfast status`",
            again,
        ]
    policy.check(facts)
    return [f"durability: {policy}", *(f"  {line}" for line in policy.explain(facts)), again]
