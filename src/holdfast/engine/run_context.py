"""What the parts of one run of a fragment share: planner, committer and start."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from holdfast.engine.authority import Authority
from holdfast.engine.fragment_progress import FragmentProgress
from holdfast.engine.machine import Machine
from holdfast.engine.observer import Observer
from holdfast.engine.options import RunOptions
from holdfast.engine.shadow_output import ShadowWatch
from holdfast.engine.stream_links import StreamLinks
from holdfast.epoch.deadline import Deadlines
from holdfast.epoch.execution import Executor
from holdfast.meta import MetaStore
from holdfast.plan.program import Program
from holdfast.store import Tiers

__all__ = ["RunContext"]


@dataclass(slots=True)
class RunContext:
    """`clock` tells the time of day, which may be set; `ticks` how long something lasts. `progress` is another object
    when the run begins again from a commit."""

    program: Program
    options: RunOptions
    meta: MetaStore
    tiers: Tiers
    authority: Authority
    machine: Machine
    executor: Executor
    streams: StreamLinks
    observer: Observer
    deadlines: Deadlines
    clock: Callable[[], float]
    ticks: Callable[[], float]
    progress: FragmentProgress
    shadow: ShadowWatch | None = None
    """Who compares, where this run follows with state of its own and nothing of it is to be seen."""
