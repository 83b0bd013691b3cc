"""What every task of an epoch does: it says that it is at work, and sends typed errors instead of raising them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

import pyarrow as pa
from pyspark import TaskContext

from holdfast.epoch.messages import Message, error_message, pack
from holdfast.errors import HoldfastError
from holdfast.task.work_directory import WorkDirectory

__all__ = ["Batches", "at_work", "sending_errors", "signing", "task_number"]

Batches = Iterable[pa.RecordBatch]
_SIGN_SECONDS = 0.5
_WORK_SECONDS = 0.005
"""Of CPU time, which a process that only waits does not spend."""


def sending_errors(messages: Callable[[], Iterator[Message]]) -> Iterator[pa.RecordBatch]:
    """Messages for the next stage. A typed error becomes one; anything else is raised, and Spark tries again."""

    def guarded() -> Iterator[Message]:
        try:
            yield from messages()
        except HoldfastError as error:
            yield error_message(error)

    yield from pack(guarded())


def task_number() -> int:
    context = TaskContext.get()
    assert context is not None
    return context.partitionId()


@contextmanager
def signing(work: WorkDirectory, epoch: int, stage: int, task: int) -> Iterator[None]:
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
