"""This process as the executor of epochs: the real tasks, one after the other, without Spark.

For tests, simulation and epochs that are looked at again. Programs, plans and messages are encoded and decoded as they
would be between processes, unless someone is debugging. In which order tasks run, and which attempts are lost, is
decided from outside; the output must not depend on it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from holdfast.epoch.execution import EpochFinished, EpochRead, Execution, ExecutionEvent
from holdfast.epoch.handover import HandOver
from holdfast.epoch.messages import Message, raise_errors, unpack, with_syncing
from holdfast.epoch.plan import EpochPlan, TaskSettings
from holdfast.plan.program import Program
from holdfast.store import Tiers, syncing_seconds
from holdfast.task.assembly_task import AssemblyTask
from holdfast.task.fragment_task import FragmentTask
from holdfast.task.spark_task import sending_errors
from holdfast.task.work_directory import WorkDirectory, load_program

__all__ = ["Attempt", "InProcessExecutor", "first_attempt", "nothing_lost"]


@dataclass(frozen=True, slots=True)
class Attempt:
    """A task of an epoch that could run now."""

    epoch: int
    stage: int
    task: int


@dataclass(slots=True)
class _EpochTasks:
    execution: Execution
    stage: int
    waiting: list[int]
    """Tasks of the stage that have not run."""
    inboxes: list[list[Message]] = field(default_factory=list)
    sent: list[Message] = field(default_factory=list)


def first_attempt(attempts: list[Attempt]) -> Attempt:
    return attempts[0]


def nothing_lost(attempt: Attempt) -> bool:
    return False


class InProcessExecutor:
    """`choose` says which task runs next. `is_lost` is asked after each: what a lost attempt has said is forgotten,
    what it has written stays, and the task runs again. It may also raise, as a task would. To `debug`, the program is
    run as it is, not as a copy, and an error keeps the frames that it was raised in."""

    def __init__(
        self,
        work: WorkDirectory,
        tiers: Tiers,
        clock: Callable[[], float],
        *,
        choose: Callable[[list[Attempt]], Attempt] = first_attempt,
        is_lost: Callable[[Attempt], bool] = nothing_lost,
        overlap: bool = True,
        debug: bool = False,
    ) -> None:
        self._work = work
        self._tiers = tiers
        self._clock = clock
        self._choose = choose
        self._is_lost = is_lost
        self._overlap = overlap
        self._debug = debug
        self._program: Program | None = None
        self._epochs: dict[int, _EpochTasks] = {}
        self._handed_over: set[int] = set()
        self._segments = tiers.open_segments()

    def open(self, program: Program) -> None:
        if self._debug:
            self._program = program.for_tasks()
            return
        self._work.write_program(program)
        self._program = load_program(self._work)

    def launch(self, epoch: int, plan: EpochPlan, settings: TaskSettings) -> None:
        self._work.write_plan(epoch, plan, settings)
        self._epochs[epoch] = _EpochTasks(Execution(plan, self._clock()), 0, list(range(plan.tasks[0])))

    def hand_over(self, epoch: int, handover: HandOver) -> None:
        self._work.write_handover(epoch, handover)
        self._handed_over.add(epoch)
        if epoch in self._epochs:
            self._epochs[epoch].execution.handed_over = self._clock()

    def wait(self, newest: int, *, watch: bool, seconds: float) -> ExecutionEvent | None:
        """Run one task."""
        attempts = [
            Attempt(epoch, running.stage, task)
            for epoch, running in sorted(self._epochs.items())
            if running.stage == 0 or epoch in self._handed_over
            for task in running.waiting
        ]
        if not attempts:
            return None
        attempt = self._choose(attempts)
        running = self._epochs[attempt.epoch]
        messages = self._run(attempt, running)
        if self._is_lost(attempt):
            return None
        running.waiting.remove(attempt.task)
        running.sent += messages
        return None if running.waiting else self._stage_done(attempt.epoch, running)

    def _run(self, attempt: Attempt, running: _EpochTasks) -> list[Message]:
        assert self._program is not None
        if attempt.stage == 0:
            said = FragmentTask(self._work, attempt.epoch, self._segments).run(self._program, attempt.task)
        else:
            task = AssemblyTask(self._work, attempt.epoch, attempt.stage, self._tiers, self._segments)
            # Spark promises no order of arrival: give the tasks the worst there is.
            arrived = reversed(running.inboxes[attempt.task])
            said = task.run(self._program, attempt.task, iter(arrived))
        received = list(said) if self._debug else _received(said)
        before = syncing_seconds()
        self._segments.sync()
        return with_syncing(received, attempt.stage, attempt.task, syncing_seconds() - before)

    def _stage_done(self, epoch: int, running: _EpochTasks) -> ExecutionEvent | None:
        execution, stages = running.execution, running.execution.plan.tasks
        if running.stage == 0:
            execution.read_at = self._clock()
        if running.stage + 1 == len(stages):
            execution.messages, execution.ended = running.sent, self._clock()
            return EpochFinished(epoch)
        running.stage += 1
        width = stages[running.stage]
        running.waiting = list(reversed(range(width)))
        running.inboxes = [[] for _ in range(width)]
        for message in running.sent:
            running.inboxes[message.part % width].append(message)
        running.sent = []
        return EpochRead(epoch) if running.stage == 1 else None

    def look_after(self, epoch: int, *, stopping: bool) -> None:
        """Tasks of this process end, or it does."""

    def execution(self, epoch: int) -> Execution:
        return self._epochs[epoch].execution

    def forget(self, epoch: int) -> None:
        del self._epochs[epoch]
        self._handed_over.discard(epoch)
        self._work.forget(epoch)

    def finished_within(self, seconds: float) -> dict[int, Execution]:
        executions = {epoch: running.execution for epoch, running in self._epochs.items()}
        return {epoch: execution for epoch, execution in executions.items() if execution.messages is not None}

    def has_room(self, width: int) -> bool:
        return self._overlap

    @property
    def stands(self) -> bool:
        return False

    def kill_worker(self) -> None:
        """There is none: tasks run in this process."""

    def end(self) -> None:
        self._epochs.clear()
        self._segments.close()


def _received(messages: Iterator[Message]) -> list[Message]:
    """The messages of a task as the next one gets them; a typed error is raised, as it would be on the driver."""
    received = list(unpack(sending_errors(lambda: messages)))
    raise_errors(received)
    return received
