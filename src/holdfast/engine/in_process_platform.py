"""This process as the platform of runs, for tests and simulation: without Spark, with tasks in a chosen order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from holdfast.engine.background_merges import BackgroundMerges, FindMerge
from holdfast.engine.loop import Loop
from holdfast.engine.options import RunOptions
from holdfast.epoch.deadline import Deadlines
from holdfast.plan.executor_choice import ExecutorChoice
from holdfast.plan.program import Program
from holdfast.store import DirectoryStore, Tiers
from holdfast.task.in_process import Attempt, InProcessExecutor, first_attempt, nothing_lost
from holdfast.task.in_process_merges import MergesInProcess
from holdfast.task.work_directory import WorkDirectory
from holdfast.threads import SYSTEM, Thread, Threads

__all__ = ["InProcessPlatform"]


def go_on(loop: Loop) -> None:
    """Nothing happens between two steps."""


@dataclass(frozen=True, slots=True)
class InProcessPlatform:
    """See `InProcessExecutor` for what can be decided about tasks."""

    choose: Callable[[list[Attempt]], Attempt] = first_attempt
    is_lost: Callable[[Attempt], bool] = nothing_lost
    overlap: bool = True
    merges: Sequence[int] = (1,)
    """How many epochs merges of state last, over and over; with none of them, there are no merges."""
    find_merge: FindMerge | None = None
    """What is merged; by default, what is large."""
    before_step: Callable[[Loop], None] = go_on
    """Called before each step of a run. What it raises ends the run there; what is no `Exception`, like a death."""

    threads: Threads = SYSTEM

    def has_died(self) -> bool:
        return False

    def shared(self, runs: int) -> InProcessPlatform:
        return self

    def start(self, work: Callable[[], None], name: str) -> Thread:
        return self.threads.start(work, name)

    def sees_volatile(self, program: Program, options: RunOptions, tiers: Tiers) -> bool:
        return True

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
    ) -> tuple[InProcessExecutor, None]:
        return InProcessExecutor(
            work, tiers, clock, choose=self.choose, is_lost=self.is_lost, overlap=self.overlap
        ), None

    def merges_of(self, program: Program, work: WorkDirectory, store: DirectoryStore) -> BackgroundMerges:
        return BackgroundMerges(program, store, MergesInProcess(work, store, self.merges), self.find_merge)

    def warm_up(self, work: WorkDirectory, options: RunOptions) -> None:
        """Nothing needs to be warmed up."""

    def drive(self, loop: Loop) -> bool:
        return loop.run(partial(self.before_step, loop))
