"""Event times that the rows for a window must have."""

from __future__ import annotations

import polars as pl

from holdfast.connect.time_range import EARLIEST, END_OF_TIME, LATEST
from holdfast.errors import BadRowError
from holdfast.plan.program import Edge

__all__ = ["check_times"]


def check_times(times: pl.Series, edge: Edge, pane: int = 1) -> None:
    """Rows of an operator without event time belong to no window, and would go unnoticed; those at the end of time
    would never leave one: say so instead. `times` are in panes of so many ticks."""
    if times.null_count():
        raise BadRowError(
            f"{times.null_count()} rows for '{edge.consumer}' have no event time",
            cure="filter out the rows whose time is null before the window",
            operator=edge.input,
        )
    least, greatest = EARLIEST // pane, (END_OF_TIME - 1) // pane
    if times.len() and not (times.min() >= least and times.max() <= greatest):  # type: ignore[operator]
        outside = ~times.is_between(least, greatest)
        time = times.filter(outside)[0] * pane
        raise BadRowError(
            f"{outside.sum()} rows for '{edge.consumer}' have an event time that is not allowed, such as {time}",
            cure=f"give the rows of '{edge.input}' times from {EARLIEST} to {LATEST}",
            operator=edge.input,
        )
