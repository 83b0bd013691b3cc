"""From where a fragment can be replayed with empty state, and still come to the state it had. Pure.

Some operators forget: what lies before their first open window has no part in their state. So a replay that begins
with empty state early enough reaches the same state. What an operator emits while it has not seen all of its open
windows is wrong, and so is the state of operators behind it that takes it in, until they have forgotten it, too.
"""

from __future__ import annotations

from collections.abc import Mapping

from holdfast.connect.time_range import END_OF_TIME
from holdfast.graph.nodes import SourceNode, Stateful
from holdfast.operators.registry import operator_of
from holdfast.plan.program import Program

__all__ = ["can_start_empty", "forgets"]


def forgets(program: Program) -> bool:
    """Whether there is such a place at all: all operators forget."""
    nothing = {node.name: 0 for node in program.sources}
    return can_start_empty(program, nothing, {node.name: END_OF_TIME for node in program.stateful})


def can_start_empty(program: Program, greatest: Mapping[str, int | None], watermarks: Mapping[str, int | None]) -> bool:
    """Whether empty state after an epoch leads to the right state later.

    `greatest` is the greatest event time of each source up to that epoch, `watermarks` those of the operators later.
    """
    wrong: dict[str, int | None] = {}
    """For each node the time up to which its rows may be wrong or missing; None where there are none of these."""
    for name, node in program.nodes.items():
        if isinstance(node, SourceNode):
            wrong[name] = greatest.get(name)
            continue
        before = [mark for upstream in node.inputs if (mark := wrong.get(upstream)) is not None]
        reach = max(before, default=None)
        if isinstance(node, Stateful):
            operator = operator_of(node)
            if not operator.forgets:
                return False
            if reach is not None:
                mark = watermarks.get(name)
                reach = None if mark is None else operator.wrong_until(reach, mark)
                if reach is None:
                    return False
        wrong[name] = reach
    return True
