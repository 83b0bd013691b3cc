"""This process as the platform of runs, for tests and simulation: no Spark, and tasks in an order that is chosen."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from holdfast.engine.background_merges import Compacting, FindMerge
from holdfast.engine.loop import Loop
from holdfast.engine.options import RunOptions
from holdfast.epoch.deadline import Deadlines
from holdfast.plan.program import Program
from holdfast.store import DirectoryStore, Tiers
from holdfast.task.in_process import Attempt, InProcess, first_attempt, nothing_lost
from holdfast.task.in_process_merges import MergesInProcess
from holdfast.task.work_directory import WorkDirectory

__all__ = ["InProcessPlatform"]


def go_on(loop: Loop) -> None:
    """Nothing happens between two steps."""


@dataclass(frozen=True, slots=True)
class InProcessPlatform:
    """See `InProcess` for what can be decided about tasks."""

    choose: Callable[[list[Attempt]], Attempt] = first_attempt
    is_lost: Callable[[Attempt], bool] = nothing_lost
    overlap: bool = True
    merges: Sequence[int] = (1,)
    """How many epochs merges of state last, over and over; with none of them, there are no merges."""
    find_merge: FindMerge | None = None
    """What is merged; by default, what is large."""
    before_step: Callable[[Loop], None] = go_on
    """Called before each step of a run. What it raises ends the run there; what is no `Exception`, like a death."""

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
        *,
        alone: bool,
    ) -> InProcess:
        return InProcess(work, tiers, clock, choose=self.choose, is_lost=self.is_lost, overlap=self.overlap)

    def compacting(self, program: Program, work: WorkDirectory, store: DirectoryStore) -> Compacting:
        return Compacting(program, store, MergesInProcess(work, store, self.merges), self.find_merge)

    def warm_up(self, work: WorkDirectory, tasks: int) -> None:
        """Nothing takes time once."""

    def drive(self, loop: Loop, program: Program, options: RunOptions, home: Path) -> bool:
        return loop.run(partial(self.before_step, loop))
