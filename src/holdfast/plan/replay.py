"""From where a fragment can be replayed with empty state, and still come to the state it had. Pure.

A time window forgets: what lies before its first open window has no part in its state. So a replay that begins with
empty state early enough comes to the same state. What an operator puts out while it has not seen all of its open
windows is wrong, and so is the state of operators behind it that takes it in, until that lies behind their first open
windows, too.
"""

from __future__ import annotations

from collections.abc import Mapping

from holdfast.connect.time_range import END_OF_TIME
from holdfast.graph.nodes import SourceNode, Stateful, StreamJoin, WindowAggregate
from holdfast.graph.windows import TimeWindow
from holdfast.plan.lift import shape_of
from holdfast.plan.program import Program
from holdfast.state.sliding import WindowShape

__all__ = ["can_start_empty", "forgets"]


def forgets(program: Program) -> bool:
    """Whether there is such a place at all: all state is of time windows."""
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
        before = [mark for each in node.inputs if (mark := wrong.get(each)) is not None]
        reach = max(before, default=None)
        if isinstance(node, Stateful):
            shape = _shape(node)
            if shape is None:
                return False
            if reach is not None:
                mark = watermarks.get(name)
                if mark is None or reach >= (shape.last_closed(mark) + 1) * shape.step * shape.pane:
                    return False
                reach += shape.length * shape.pane
        wrong[name] = reach
    return True


def _shape(node: Stateful) -> WindowShape | None:
    if isinstance(node, WindowAggregate | StreamJoin) and isinstance(node.window, TimeWindow) and node.time is not None:
        return shape_of(node.window, node.time)
    return None
