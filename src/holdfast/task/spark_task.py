"""A task of an epoch as Spark runs it: it says that it is at work, and sends typed errors instead of raising them.

It is given to `mapInArrow` and runs in Python workers, which are used again for task after task, so what is loaded once
stays.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pyarrow as pa
from pyspark import TaskContext

from holdfast.epoch.messages import Message, error_message, pack, unpack
from holdfast.errors import HoldfastError
from holdfast.plan.program import Program
from holdfast.store import Tiers
from holdfast.task.assembly_task import AssemblyTask
from holdfast.task.fragment_task import FragmentTask
from holdfast.task.lacking_memory import lacked_memory
from holdfast.task.work_directory import WorkDirectory, load_program

__all__ = ["SparkTask", "at_work", "sending_errors"]

Batches = Iterable[pa.RecordBatch]
_SIGN_SECONDS = 0.5
_WORK_SECONDS = 0.005
"""Of CPU time, which a process that only waits does not spend."""


@dataclass(frozen=True, slots=True)
class SparkTask:
    """A task of a stage. Nothing of the epoch's plan is in here: it is found in the work directory."""

    work: WorkDirectory
    epoch: int
    stage: int
    tiers: Tiers

    def __call__(self, batches: Batches) -> Iterator[pa.RecordBatch]:
        program, task = load_program(self.work), _task_number()
        with _signing(self.work, self.epoch, self.stage, task):
            yield from sending_errors(lambda: self._messages(program, task, batches))

    def _messages(self, program: Program, task: int, batches: Batches) -> Iterator[Message]:
        if self.stage > 0:
            return AssemblyTask(self.work, self.epoch, self.stage, self.tiers).run(program, task, unpack(batches))
        fragment = FragmentTask(self.work, self.epoch)
        if program.spark_input is not None:
            return fragment.run_spark(program, task, batches)
        for _ in batches:
            pass
        return fragment.run(program, task)


def sending_errors(messages: Callable[[], Iterator[Message]]) -> Iterator[pa.RecordBatch]:
    """Messages for the next stage. A typed error becomes one; anything else is raised, and Spark tries again."""

    def guarded() -> Iterator[Message]:
        try:
            yield from messages()
        except HoldfastError as error:
            if lacked_memory(error):
                raise  # another process tries it
            yield error_message(error)

    yield from pack(guarded())


def _task_number() -> int:
    context = TaskContext.get()
    assert context is not None
    return context.partitionId()


@contextmanager
def _signing(work: WorkDirectory, epoch: int, stage: int, task: int) -> Iterator[None]:
    """Let the driver see that this task is at work, and when it has come to its end."""
    with at_work(lambda: work.sign(epoch, stage, task)):
        yield
    work.done(epoch, stage, task)


@contextmanager
def at_work(sign: Callable[[], None], every: float = _SIGN_SECONDS) -> Iterator[None]:
    """Give a sign at the beginning, and again while this process spends CPU time. One that is stopped, or waits for an
    answer that never comes, gives none."""
    sign()
    ended = threading.Event()

    def watch() -> None:
        known = time.process_time() - time.thread_time()
        while not ended.wait(every):
            spent = time.process_time() - time.thread_time()
            if spent - known > _WORK_SECONDS:
                known = spent
                sign()

    threading.Thread(target=watch, name="signs", daemon=True).start()
    try:
        yield
    finally:
        ended.set()
