"""Epochs in flight: between launch and commit. Each one's Spark job is run by a thread of its own."""

from __future__ import annotations

import contextlib
import queue
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from pyspark import InheritableThread
from pyspark.sql import DataFrame, SparkSession

from holdfast.epoch.job import EpochJob, build_job, cancel_jobs, run_job, tagged
from holdfast.epoch.messages import Message
from holdfast.epoch.work import WorkDirectory
from holdfast.errors import JobLostError
from holdfast.store import Tiers

__all__ = ["Flight", "Flights"]

_JOB_ATTEMPTS = 3
_LOOK_EVERY = 0.004
_WAIT_SECONDS = 1.0
_SECONDS_TO_END = 5.0
_CANCEL_EVERY = 0.2


@dataclass(slots=True)
class Flight:
    """An epoch in flight, and when what happened to it."""

    plan: Mapping[str, Any]
    started: float
    messages: list[Message] | None = None
    ended: float = 0.0
    read_at: float | None = None
    handed_over: float = 0.0

    def reading(self) -> float:
        return (self.read_at or self.ended) - self.started

    def busy(self, overlapped: bool) -> float:
        """How long the epoch kept its busier stage at work; both, if they take turns with those of its neighbours."""
        if not overlapped or self.read_at is None:
            return self.ended - max(self.started, self.handed_over)
        return max(self.reading(), self.ended - max(self.read_at, self.handed_over))


class Flights:
    """The flights of one run. `board` and `start` launch an epoch, `wait` tells of it, `land` is for its commit."""

    def __init__(self, spark: SparkSession, work: WorkDirectory, tiers: Tiers, clock: Callable[[], float]) -> None:
        self._spark = spark
        self._work = work
        self._tiers = tiers
        self._clock = clock
        self._flights: dict[int, Flight] = {}
        self._built: dict[int, EpochJob] = {}
        self._events: queue.Queue[tuple[int, list[Message] | BaseException, float]] = queue.Queue()
        self._jobs: dict[int, threading.Thread] = {}
        self._over = False
        self._tag = f"holdfast-{uuid.uuid4().hex}"

    def board(self, epoch: int, plan: Mapping[str, Any], *, silent: bool = False, **more: Any) -> None:
        """Give the plan to the tasks. A `silent` epoch is run for its state only and puts nothing out; what `more` the
        tasks are told is not part of the plan."""
        self._work.write_plan(epoch, {**plan, "silent": silent, **more})
        self._flights[epoch] = Flight(plan, self._clock())

    def start(self, epoch: int) -> None:
        """Run the job of an epoch that has boarded."""
        tasks = self._flights[epoch].plan["tasks"]
        job = self._built.pop(epoch, None)
        if job is None or list(job.tasks) != tasks:
            job = self._build(epoch, tasks)
        self._jobs[epoch] = InheritableThread(target=self._run, args=(job,), name=f"epoch-{epoch}", daemon=True)
        self._jobs[epoch].start()
        # The next epoch's job holds nothing of its plan: build it while this one runs.
        self._built[epoch + 1] = self._build(epoch + 1, tasks)

    def fly(self, epoch: int, rows: DataFrame) -> None:
        """Run the job of an epoch on the rows of a micro-batch, here and now."""
        flight = self._flights[epoch]
        job = build_job(rows.sparkSession, self._work, epoch, flight.plan["tasks"], self._tiers, rows)
        with tagged(self._spark, self._tag_of(epoch)):
            flight.messages, flight.ended = run_job(job), self._clock()

    def handed_over(self, epoch: int) -> None:
        """The assembly tasks of the epoch may begin."""
        if epoch in self._flights:
            self._flights[epoch].handed_over = self._clock()

    def wait(
        self, newest: int, *, watch: bool, most: float = _WAIT_SECONDS
    ) -> tuple[Literal["read", "finished"], int] | None:
        """Wait until a job ends or, with `watch`, until the tasks of the newest one have read their input; None after
        `most` seconds."""
        flight = self._flights.get(newest)
        watched = flight if watch and flight is not None and flight.read_at is None else None
        try:
            epoch, outcome, ended = self._events.get(timeout=most if watched is None else _LOOK_EVERY)
        except queue.Empty:
            if watched is None or self._work.fragments_done(newest) < watched.plan["tasks"][0]:
                return None
            watched.read_at = self._clock()
            return "read", newest
        if isinstance(outcome, BaseException):
            raise outcome
        self._flights[epoch].messages, self._flights[epoch].ended = outcome, ended
        return "finished", epoch

    def peek(self, epoch: int) -> Flight:
        return self._flights[epoch]

    def land(self, epoch: int) -> Flight:
        self._jobs.pop(epoch, None)
        return self._flights.pop(epoch)

    def drain(self, seconds: float) -> dict[int, Flight]:
        """The flights whose jobs have ended, or do within so many seconds; none of them is to be committed."""
        deadline = time.monotonic() + seconds
        while any(flight.messages is None for flight in self._flights.values()) and time.monotonic() < deadline:
            with contextlib.suppress(Exception):  # what has failed has nothing to leave
                self.wait(0, watch=False, most=0.05)
        return {epoch: flight for epoch, flight in self._flights.items() if flight.messages is not None}

    def end(self) -> None:
        """Jobs that are lost from now on are not run again, and those in flight are cancelled: what they work with is
        about to be removed, and a session that outlives this run has better to do."""
        self._over = True
        deadline = time.monotonic() + _SECONDS_TO_END
        while (flying := [epoch for epoch, job in self._jobs.items() if job.is_alive()]) and (
            time.monotonic() < deadline
        ):
            for epoch in flying:  # again and again: a job may have been about to begin
                with contextlib.suppress(Exception):  # the session may be what has failed
                    cancel_jobs(self._spark, self._tag_of(epoch))
            self._jobs[flying[0]].join(_CANCEL_EVERY)

    def _tag_of(self, epoch: int) -> str:
        """What Spark knows the job of an epoch by."""
        return f"{self._tag}-{epoch}"

    def _build(self, epoch: int, tasks: list[int]) -> EpochJob:
        return build_job(self._spark, self._work, epoch, tasks, self._tiers)

    def _run(self, job: EpochJob) -> None:
        """Run a job and post what came of it. An epoch is deterministic and commits once, so a job that was lost with
        its executors is simply run again."""
        try:
            with tagged(self._spark, self._tag_of(job.epoch)):
                messages = self._attempt(job)
        except BaseException as error:  # noqa: BLE001 - carried to the main thread, which raises it
            self._events.put((job.epoch, error, self._clock()))
        else:
            self._events.put((job.epoch, messages, self._clock()))

    def _attempt(self, job: EpochJob) -> list[Message]:
        for _ in range(_JOB_ATTEMPTS - 1):
            try:
                return run_job(job)
            except JobLostError:
                if self._over:
                    raise
                job = self._build(job.epoch, list(job.tasks))
        return run_job(job)
