"""Executors: what runs the epochs of a fragment, and what is known about an epoch while it runs.

The loop gives an executor the plan of an epoch and, when the epoch before it is committed, the hand-over. The executor
reports when the tasks have read their input and when all of them have ended. Executors differ in what they run tasks
on: the long-running workers of a crew; a Spark job for each epoch; this process alone. The output does not depend on
it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, TypeAlias

from holdfast.epoch.handover import HandOver
from holdfast.epoch.messages import Message
from holdfast.epoch.plan import EpochPlan, TaskSettings
from holdfast.plan.program import Program

__all__ = ["Batches", "EpochFinished", "EpochRead", "Execution", "ExecutionEvent", "Executor"]


@dataclass(frozen=True, slots=True)
class EpochRead:
    """The tasks of the epoch have read their input."""

    epoch: int


@dataclass(frozen=True, slots=True)
class EpochFinished:
    """All tasks of the epoch have ended well; it can be committed when its turn comes."""

    epoch: int


ExecutionEvent: TypeAlias = EpochRead | EpochFinished


@dataclass(slots=True)
class Execution:
    """An epoch between its launch and its commit, and when what happened to it."""

    plan: EpochPlan
    started: float
    messages: list[Message] | None = None
    ended: float = 0.0
    read_at: float | None = None
    handed_over: float = 0.0
    committed: float = 0.0
    attempt: int = 1

    @property
    def outcome(self) -> list[Message]:
        """What the tasks said. Only of an epoch that has finished."""
        assert self.messages is not None
        return self.messages

    def reading(self) -> float:
        """The seconds until all input was read."""
        return (self.read_at or self.ended) - self.started

    def busy(self, overlapped: bool) -> float:
        """How long the epoch kept its busier stage at work; both, if they take turns with those of its neighbours."""
        if not overlapped or self.read_at is None:
            return self.ended - max(self.started, self.handed_over)
        return max(self.reading(), self.ended - max(self.read_at, self.handed_over))


class Batches(Protocol):
    """Input that comes in batches from elsewhere, each of which is an epoch: that of batch n is n + 1."""

    def next(self, committed: int) -> int | None:
        """The number of the next batch behind what is `committed`; None if there is none yet."""

    def wait(self, seconds: float) -> None:
        """Until a batch arrives, but no longer than so many seconds."""

    @property
    def ended(self) -> bool:
        """Whether no batch comes any more. Raises if what they come from has failed."""


class Executor(Protocol):
    """Not promised: that tasks run once. They may be tried again, so what they write has names that no other attempt
    uses, and only what a commit names counts."""

    def open(self, program: Program) -> None:
        """Make the program known to the tasks. Before the first launch."""

    def launch(self, epoch: int, plan: EpochPlan, settings: TaskSettings) -> None:
        """Begin an epoch: its tasks read. The `settings` hold for this run of the epoch only."""

    def hand_over(self, epoch: int, handover: HandOver) -> None:
        """The epoch before is committed: assembly may begin, also of an epoch that is launched later."""

    def wait(self, newest: int, *, watch: bool, seconds: float) -> ExecutionEvent | None:
        """Wait until an epoch finishes or, with `watch`, the newest one has read its input. None after so many seconds.
        Raises what kept an epoch from finishing."""

    def look_after(self, epoch: int, *, stopping: bool) -> None:
        """Called often with the oldest epoch in flight, or the next one where none is: if it makes no progress, it is
        tried again or given up. When
        the run is `stopping`, it raises if the epoch cannot end for want of executors."""

    def execution(self, epoch: int) -> Execution:
        """What is known of an epoch in flight."""

    def forget(self, epoch: int) -> None:
        """The epoch is committed, and nothing of it is needed here any more."""

    def finished_within(self, seconds: float) -> dict[int, Execution]:
        """The epochs that have finished, or do within so many seconds. None of them is to be committed."""

    def has_room(self, width: int) -> bool:
        """Whether two epochs of so many tasks per stage can be in flight at a time."""

    @property
    def stands(self) -> bool:
        """Whether there is a crew, and all its workers are there."""

    def kill_worker(self) -> None:
        """Kill a worker of the crew on purpose, for a drill."""

    def end(self) -> None:
        """Cancel what is in flight."""
