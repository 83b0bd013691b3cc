"""The platform of runs: what epochs run on, e.g. a Spark session or this process alone.

This is everything that a run, a pipeline of several fragments or a host needs from the layer below, so that each of
them also runs in one process, in tests and in the simulation.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from holdfast.engine.background_merges import BackgroundMerges
from holdfast.engine.loop import Loop
from holdfast.engine.options import RunOptions
from holdfast.epoch.deadline import Deadlines
from holdfast.epoch.execution import Batches, Executor
from holdfast.plan.executor_choice import ExecutorChoice
from holdfast.plan.program import Program
from holdfast.store import DirectoryStore, Tiers
from holdfast.task.work_directory import WorkDirectory
from holdfast.threads import Thread

__all__ = ["Platform"]


class Platform(Protocol):
    """Not promised: that it lives as long as its runs do; see `has_died`."""

    def has_died(self) -> bool:
        """Whether nothing can run on it any more."""

    def shared(self, runs: int) -> Platform:
        """The platform of each of so many runs that share this one."""

    def start(self, work: Callable[[], None], name: str) -> Thread:
        """Have a run done in a thread of its own."""

    def sees_volatile(self, program: Program, options: RunOptions, tiers: Tiers) -> bool:
        """Whether all tasks see the same volatile tier; raises if they do not all see what they must."""

    def executor(
        self,
        program: Program,
        options: RunOptions,
        work: WorkDirectory,
        tiers: Tiers,
        clock: Callable[[], float],
        deadlines: Deadlines,
        chosen: Callable[[ExecutorChoice], None],
        *,
        alone: bool,
    ) -> tuple[Executor, Batches | None]:
        """The executor of one run, and what cuts its epochs if that is not the planner. Where there is a choice,
        `chosen` is told of it, and again when it changes. Who is not `alone` leaves what fails to another host."""

    def merges_of(self, program: Program, work: WorkDirectory, store: DirectoryStore) -> BackgroundMerges:
        """The merges of one run, in the background."""

    def warm_up(self, work: WorkDirectory, options: RunOptions) -> None:
        """Before the first epoch: what takes time once is done now."""

    def drive(self, loop: Loop) -> bool:
        """Run the loop to its end, or until less is wanted of the run: then False."""
