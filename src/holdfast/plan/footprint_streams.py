"""Which operators can leave footprints of their windows, and in which p-stream.

A replay after eventual checkpoints gives an operator the rows since the oldest footprint, and each window ignores what
it has seen. So what the operator emits meanwhile is not what it emitted before, and an operator behind it could not
be replayed from it: between the two there must be a p-stream.
"""

from __future__ import annotations

from holdfast.errors import DeclarationError
from holdfast.graph.nodes import SinkNode, Stateful
from holdfast.operators.registry import operator_of
from holdfast.plan.lifted import LiftedSink
from holdfast.plan.program import Program
from holdfast.pstream.link import StreamSink

__all__ = ["LOG_SUFFIX", "check_eventual", "log_name", "output_stream"]


LOG_SUFFIX = ".footprints"


def check_eventual(program: Program) -> None:
    """Refuse a fragment whose operators cannot be recovered from footprints."""
    for node in program.stateful:
        operator = operator_of(node)
        if operator.footprints is None:
            raise DeclarationError(
                f"it leaves no footprints: {operator.no_footprints}",
                cure="use the policy 'delta' or 'interval(5s)' here; a p-stream (persist) keeps it apart from others",
                operator=node.name,
            )
        before = _stateful_before(program, node)
        if before is not None:
            raise DeclarationError(
                f"the policy 'eventual' replays '{before}' only in part, and '{node.name}' cannot be replayed from it",
                cure=f"put a p-stream between them: .persist(...) after '{before}'",
                operator=node.name,
            )


def output_stream(program: Program, operator: str) -> SinkNode | None:
    """The p-stream that an operator's results go to in its own fragment, if there is one."""
    for node in program.sinks:
        if isinstance(node.sink, StreamSink) and not isinstance(node, LiftedSink) and _reaches(program, node, operator):
            return node
    return None


def log_name(program: Program, operator: str) -> str:
    """The p-stream for the footprints of an operator: that of its results, or one of its own where they go to sinks."""
    node = output_stream(program, operator)
    if node is None:
        return f"{program.name}.{operator}{LOG_SUFFIX}"
    assert isinstance(node.sink, StreamSink)
    return node.sink.stream


def _stateful_before(program: Program, node: Stateful) -> str | None:
    pending = list(node.inputs)
    while pending:
        upstream = program.nodes[pending.pop()]
        if isinstance(upstream, Stateful):
            return upstream.name
        pending += upstream.inputs
    return None


def _reaches(program: Program, sink: SinkNode, operator: str) -> bool:
    pending = list(sink.inputs)
    while pending:
        name = pending.pop()
        if name == operator:
            return True
        if not isinstance(program.nodes[name], Stateful):
            pending += program.nodes[name].inputs
    return False
