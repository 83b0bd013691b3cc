"""Spark jobs as the executor of epochs: one job for each, run by its own thread.

The plan and the hand-over reach the tasks through small files in the work directory. So the job of the next epoch can
be built before its plan is known, and assembly can wait for a commit without another job.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time
import uuid
from collections.abc import Callable
from functools import partial

from pyspark import InheritableThread
from pyspark.sql import DataFrame, SparkSession

from holdfast.epoch.deadline import Deadlines
from holdfast.epoch.execution import EpochFinished, EpochRead, Execution, ExecutionEvent
from holdfast.epoch.handover import HandOver
from holdfast.epoch.messages import Message
from holdfast.epoch.plan import EpochPlan, TaskSettings
from holdfast.errors import ClusterError, JobLostError
from holdfast.plan.program import Program
from holdfast.spark.batches import SparkBatches
from holdfast.spark.executor_watch import ExecutorWatch
from holdfast.spark.job import EpochJob, build_job, cancel_jobs, run_job, tagged
from holdfast.spark.session import slots
from holdfast.spark.stall import StallWatch
from holdfast.store import Tiers
from holdfast.task.work_directory import WorkDirectory

__all__ = ["JOB_ATTEMPTS", "SparkJobs"]

JOB_ATTEMPTS = 3
_LOOK_EVERY = 0.004
_SECONDS_TO_END = 5.0
_CANCEL_EVERY = 0.2


class SparkJobs:
    """The jobs of one run of a fragment."""

    def __init__(
        self,
        spark: SparkSession,
        work: WorkDirectory,
        tiers: Tiers,
        clock: Callable[[], float],
        deadlines: Deadlines,
        stalls: StallWatch,
        tries_of_stalled: int = JOB_ATTEMPTS,
        other_runs: int = 0,
        batches: SparkBatches | None = None,
    ) -> None:
        """A job that is lost is tried again, and so is one that was given up because it stalled, but only so often.
        `other_runs` share the session with this one. Where Structured Streaming cuts the epochs, jobs run on its
        `batches`."""
        self._other_runs = other_runs
        self._batches = batches
        self._executors = ExecutorWatch(spark)
        self._deadlines = deadlines
        self._stalls = stalls
        self._tries_of_stalled = tries_of_stalled
        self._spark = spark
        self._work = work
        self._tiers = tiers
        self._clock = clock
        self._executions: dict[int, Execution] = {}
        self._built: dict[int, EpochJob] = {}
        self._outcomes: queue.Queue[tuple[int, list[Message] | BaseException, float]] = queue.Queue()
        self._jobs: dict[int, threading.Thread] = {}
        self._over = False
        self._tag = f"holdfast-{uuid.uuid4().hex}"

    def open(self, program: Program) -> None:
        self._work.write_program(program)

    def launch(self, epoch: int, plan: EpochPlan, settings: TaskSettings) -> None:
        self._work.write_plan(epoch, plan, settings)
        self._executions[epoch] = Execution(plan, self._clock())
        if self._batches is not None and self._batches.runs(epoch, partial(self._run_batch, epoch)):
            return
        tasks = plan.tasks
        job = self._built.pop(epoch, None)
        if job is None or job.tasks != tasks:
            job = self._build(epoch, tasks)
        self._jobs[epoch] = InheritableThread(
            target=self._run, args=(epoch, lambda: self._build(epoch, tasks), job), name=f"epoch-{epoch}", daemon=True
        )
        self._jobs[epoch].start()
        # The next epoch's job holds nothing of its plan: build it while this one runs.
        self._built[epoch + 1] = self._build(epoch + 1, tasks)

    def _run_batch(self, epoch: int, rows: DataFrame) -> None:
        plan = self._executions[epoch].plan
        given = rows.limit(0) if plan.passed else rows
        self._run(epoch, lambda: build_job(rows.sparkSession, self._work, epoch, plan.tasks, self._tiers, given))

    def look_after(self, epoch: int, *, stopping: bool) -> None:
        if not self._executions:
            return
        if self._executors.missing() and stopping:
            raise ClusterError(
                f"stopped while there was no executor from {self._executors.master} to finish the epoch",
                cure="nothing is lost: the epoch is run again at the next start",
                epoch=epoch,
            )
        execution = self._executions.get(epoch)
        if execution is not None and execution.messages is None:
            self._stalls.look(epoch, execution.attempt, self._tag_of(epoch))

    def hand_over(self, epoch: int, handover: HandOver) -> None:
        if epoch in self._executions:
            self._executions[epoch].handed_over = self._clock()
        self._work.write_handover(epoch, handover)

    def wait(self, newest: int, *, watch: bool, seconds: float) -> ExecutionEvent | None:
        execution = self._executions.get(newest)
        watched = execution if watch and execution is not None and execution.read_at is None else None
        try:
            epoch, outcome, ended = self._outcomes.get(timeout=seconds if watched is None else _LOOK_EVERY)
        except queue.Empty:
            if watched is None or self._work.fragments_done(newest) < watched.plan.tasks[0]:
                return None
            watched.read_at = self._clock()
            return EpochRead(newest)
        if isinstance(outcome, BaseException):
            raise outcome
        self._finished(epoch, outcome, ended)
        return EpochFinished(epoch)

    def _finished(self, epoch: int, messages: list[Message], ended: float) -> None:
        execution = self._executions[epoch]
        execution.messages, execution.ended = messages, ended
        self._deadlines.took(ended - max(execution.started, execution.handed_over))
        self._stalls.finished(epoch)

    def execution(self, epoch: int) -> Execution:
        return self._executions[epoch]

    def forget(self, epoch: int) -> None:
        self._jobs.pop(epoch, None)
        self._executions.pop(epoch)
        self._work.forget(epoch)
        if self._batches is not None:
            self._batches.committed(epoch)

    def finished_within(self, seconds: float) -> dict[int, Execution]:
        deadline = time.monotonic() + seconds
        while (
            any(execution.messages is None for execution in self._executions.values()) and time.monotonic() < deadline
        ):
            with contextlib.suppress(Exception):  # what has failed has nothing to leave
                self.wait(0, watch=False, seconds=0.05)
        return {epoch: execution for epoch, execution in self._executions.items() if execution.messages is not None}

    def has_room(self, width: int) -> bool:
        """Assembly tasks of the second epoch wait in slots that those of the first may need: there must be room, also
        after executors were lost."""
        return slots(self._spark) >= 2 * width * (1 + self._other_runs)

    @property
    def stands(self) -> bool:
        return False

    def kill_worker(self) -> None:
        """There is none: the tasks of a job are Spark's."""

    def end(self) -> None:
        """Jobs that are lost from now on are not run again, and those in flight are cancelled: what they work with is
        about to be removed, and a session that outlives this run has better to do."""
        self._over = True
        deadline = time.monotonic() + _SECONDS_TO_END
        while (running := [epoch for epoch, job in self._jobs.items() if job.is_alive()]) and (
            time.monotonic() < deadline
        ):
            for epoch in running:  # again and again: a job may have been about to begin
                with contextlib.suppress(Exception):  # the session may be what has failed
                    cancel_jobs(self._spark, self._tag_of(epoch))
            self._jobs[running[0]].join(_CANCEL_EVERY)
        if self._batches is not None:
            self._batches.stop()

    def _tag_of(self, epoch: int) -> str:
        """What Spark knows the job of an epoch by."""
        return f"{self._tag}-{epoch}"

    def _build(self, epoch: int, tasks: tuple[int, ...]) -> EpochJob:
        return build_job(self._spark, self._work, epoch, tasks, self._tiers)

    def _run(self, epoch: int, build: Callable[[], EpochJob], job: EpochJob | None = None) -> None:
        """Run a job and post what came of it. An epoch is deterministic and commits once, so a job that was lost with
        its executors is simply built and run again."""
        try:
            with tagged(self._spark, self._tag_of(epoch)):
                messages = self._attempt(epoch, build, job)
        except BaseException as error:  # noqa: BLE001 - carried to the main thread, which raises it
            self._outcomes.put((epoch, error, self._clock()))
        else:
            self._outcomes.put((epoch, messages, self._clock()))

    def _attempt(self, epoch: int, build: Callable[[], EpochJob], job: EpochJob | None = None) -> list[Message]:
        execution = self._executions[epoch]
        while True:
            try:
                return run_job(job or build())
            except JobLostError as error:
                stalled = self._stalls.error_of(epoch, execution.attempt)
                tries = JOB_ATTEMPTS if stalled is None else self._tries_of_stalled
                if self._over or execution.attempt >= tries:
                    raise stalled or error from error
            job = None
            execution.attempt += 1
