"""The Spark jobs of a crew: one for each worker, with a single long-running task.

Spark places the task and retries it when its Python worker dies. Because each worker has its own job, the others are
not affected when Spark gives one up, and a crew grows by starting further jobs.
"""

from __future__ import annotations

import contextlib
import threading
import time
import uuid
from collections.abc import Callable

from pyspark import InheritableThread
from pyspark.sql import SparkSession
from pyspark.sql.types import IntegerType, StructField, StructType

from holdfast.spark.job import cancel_jobs, lacks_slots, tagged
from holdfast.task.standing_task import StandingTask

__all__ = ["WorkerJobs"]

_SCHEMA = StructType([StructField("nothing", IntegerType(), True)])
_CANCEL_EVERY = 0.2


class WorkerJobs:
    """`task` makes the task of a job of that number; `ended` is called by the job's thread when it has ended, with the
    reason, if not well."""

    def __init__(
        self,
        spark: SparkSession,
        task: Callable[[int], StandingTask],
        ended: Callable[[int, Exception | None], None],
    ) -> None:
        self._spark = spark
        self._task = task
        self._ended = ended
        self._tag = f"holdfast-crew-{uuid.uuid4().hex}"
        self._last = 0
        self._threads: dict[int, threading.Thread] = {}

    def __len__(self) -> int:
        return len(self._threads)

    def __contains__(self, job: int) -> bool:
        return job in self._threads

    def start(self) -> None:
        self._last += 1
        thread = InheritableThread(target=self._run, args=(self._last,), name=f"crew-{self._last}", daemon=True)
        self._threads[self._last] = thread
        thread.start()

    def _run(self, job: int) -> None:
        error: Exception | None = None
        try:
            frame = self._spark.range(0, 1, 1, 1).mapInArrow(self._task(job), _SCHEMA)
            with tagged(self._spark, self._tag_of(job)):
                frame.toArrow()
        except Exception as found:  # noqa: BLE001 - reported to the main thread
            error = found
        self._ended(job, error)

    def waiting(self) -> int:
        """How many workers wait for a slot."""
        return sum(lacks_slots(self._spark, self._tag_of(job)) for job in self._threads)

    def forget(self, job: int) -> bool:
        """A job has ended, or is to end: whether it was one of those that stay."""
        return self._threads.pop(job, None) is not None

    def cancel(self, job: int) -> None:
        """Have Spark end a job whose worker does not answer."""
        with contextlib.suppress(Exception):  # the session may be what has failed
            cancel_jobs(self._spark, self._tag_of(job))

    def end(self, asked: set[int], patience: float, most: float) -> None:
        """Wait for the workers of jobs that were `asked` to end; after `patience` seconds these are cancelled, and at
        once those whose worker has not come yet. A session that does not answer is left alone after `most` seconds."""
        began = time.monotonic()
        for job in [job for job in self._threads if job not in asked]:
            self.cancel(job)
        for job, thread in sorted(self._threads.items(), key=lambda one: one[0] in asked):
            thread.join(max(0.0, began + patience - time.monotonic()) if job in asked else _CANCEL_EVERY)
            while thread.is_alive() and time.monotonic() < began + most:
                self.cancel(job)
                thread.join(_CANCEL_EVERY)

    def _tag_of(self, job: int) -> str:
        return f"{self._tag}-{job}"
