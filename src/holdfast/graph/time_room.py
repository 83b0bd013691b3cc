"""How much is added to event times on the way through a pipeline: lateness, windows, gaps and time-to-live.

What comes from the sources lies in a range (`connect/time_range.py`) that leaves room for this. So where all that is
added up to an operator fits into the room, none of its times can overflow, whatever rows come.
"""

from __future__ import annotations

from collections.abc import Iterable

from holdfast.connect.time_range import LONGEST
from holdfast.errors import WrongTypeError
from holdfast.graph.nodes import Node

__all__ = ["check_spans"]


def check_spans(order: Iterable[Node]) -> None:
    """Refuse operators whose times could overflow. The operators come inputs first."""
    reach: dict[str, int] = {}
    for node in order:
        before = max((reach[name] for name in node.inputs), default=0)
        reach[node.name] = before + node.added_time
        most = max(reach[node.name], before + node.held_time)
        if most > LONGEST:
            raise WrongTypeError(
                f"lateness, windows, gaps, time-to-live and timers up to here add up to {most:,} event time ticks;"
                f" the maximum is {LONGEST:,}",
                cure="make them shorter, or give the time column a coarser unit",
                operator=node.name,
            )
