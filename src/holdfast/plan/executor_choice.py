"""What runs the epochs of a fragment: a crew wherever one can stand, otherwise a Spark job for each epoch.

Pure: the same rule decides at the start of a run and is explained before.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from holdfast.plurals import counted

__all__ = ["CrewSize", "ExecutorChoice", "ExecutorName", "choose_executor", "crew_size", "slots_of"]

ExecutorName = Literal["crew", "jobs"]
_SLOTS_LEFT = 2
"""Workers hold their slots for the whole run; jobs that are no epochs need some, too."""
_SPARES = 1


@dataclass(frozen=True, slots=True)
class CrewSize:
    """How many workers run tasks at first, how many at most, and how many stand by as spares."""

    first: int
    most: int
    spares: int


@dataclass(frozen=True, slots=True)
class ExecutorChoice:
    """What runs the epochs, and why."""

    executor: ExecutorName
    why: str
    workers: int = 0
    spares: int = 0

    def __str__(self) -> str:
        if self.executor == "jobs":
            return f"Spark jobs, one for each epoch: {self.why}"
        spare = f" and {counted(self.spares, 'spare')}" if self.spares else ""
        return f"a crew of {counted(self.workers, 'worker')}{spare}: {self.why}"


def crew_size(tasks: int, fragments: int, slots: int, parallelism: int) -> CrewSize | None:
    """The size of a crew that runs so many tasks at first, with `fragments` that share the slots of a session; None
    if they are too few. It may grow up to the tasks that make sense at a time (`parallelism`), if the slots allow."""
    share = (slots - _SLOTS_LEFT) // fragments
    if share < tasks:
        return None
    spares = min(_SPARES, share - tasks)
    return CrewSize(tasks, min(share - spares, max(tasks, parallelism)), spares)


def choose_executor(
    wanted: ExecutorName | None,
    *,
    streaming_frame: bool,
    tasks: int,
    fragments: int = 1,
    slots: int | None = None,
    parallelism: int = 0,
    master: str | None = None,
) -> ExecutorChoice:
    """`wanted` is what the user asks for, if anything. Without `slots`, for a session that is not open yet, on `master`
    or, without one, on this machine: that one has enough."""
    if streaming_frame:
        return ExecutorChoice("jobs", "a streaming DataFrame arrives in batches of Structured Streaming")
    if wanted == "jobs":
        return ExecutorChoice("jobs", "executor='jobs' asks for them")
    needed = tasks * fragments + _SLOTS_LEFT
    if slots is None and master is not None:
        return ExecutorChoice("crew", f"if {master} has the {needed} slots for it, else Spark jobs", tasks, _SPARES)
    if slots is None:
        return ExecutorChoice("crew", f"a session on this machine has the {needed} slots for it", tasks, _SPARES)
    size = crew_size(tasks, fragments, slots, parallelism)
    if size is None:
        return ExecutorChoice("jobs", f"a crew needs {needed} slots, and there are {slots}")
    return ExecutorChoice("crew", f"it needs {needed} slots, and there are {slots}", size.first, size.spares)


def slots_of(master: str | None) -> int | None:
    """The slots that are known from the address of a master alone."""
    if master == "local":
        return 1
    counted_there = re.match(r"local\[(\d+)[],]", master or "")
    return None if counted_there is None else int(counted_there[1])
