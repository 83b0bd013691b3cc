"""A crew as the executor of epochs: one Spark job whose tasks stay, and are told of epochs by messages.

Spark places the workers and starts one again that has died. The driver then raises the generation: when all stand again
they get a new roster, and epochs in flight begin again. What has finished stays, for its state and output are in files.
"""

from __future__ import annotations

import contextlib
import logging
import os
import platform
import queue
import secrets
import signal
import socket
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field

from pyspark import InheritableThread
from pyspark.sql import SparkSession
from pyspark.sql.types import IntegerType, StructField, StructType

from holdfast.epoch.crew_messages import (
    CrewHead,
    End,
    Enrol,
    ForgetEpoch,
    HandedOver,
    Roster,
    RunEpoch,
    SliceRead,
    TaskEnded,
    WorkerBeat,
)
from holdfast.epoch.deadline import EPOCH, Deadlines
from holdfast.epoch.execution import EpochFinished, EpochRead, Execution, ExecutionEvent
from holdfast.epoch.handover import HandOver
from holdfast.epoch.messages import Message, raise_errors
from holdfast.epoch.plan import EpochPlan, TaskSettings
from holdfast.errors import JobLostError, gist
from holdfast.plan.program import Program
from holdfast.spark.job import cancel_jobs, tagged
from holdfast.spark.stall import Silence
from holdfast.store import Tiers
from holdfast.task.channel import Channel, ChannelClosedError, accept, listen, shut
from holdfast.task.crew_worker import unpacked
from holdfast.task.standing_task import StandingTask
from holdfast.task.work_directory import WorkDirectory, encode_plan

__all__ = ["Crew"]

_log = logging.getLogger(__name__)
_SCHEMA = StructType([StructField("nothing", IntegerType(), True)])
_SILENT_SECONDS = 5.0
"""Many beats: on a busy machine a worker may wait for a core."""
_SECONDS_TO_STAND = 60.0
_SECONDS_TO_END = 5.0
_MOST_JOBS = 3
_SECONDS_OF_JOBS = 60.0
"""A job that was lost is followed by another, but not by more than so many in this time."""


@dataclass(slots=True)
class _StandingWorker:
    channel: Channel
    enrolment: Enrol
    heard: float
    spent: float = 0.0


@dataclass(frozen=True, slots=True)
class _WorkerEnrolled:
    channel: Channel
    enrolment: Enrol


@dataclass(frozen=True, slots=True)
class _WorkerSaid:
    head: CrewHead
    body: bytes


@dataclass(frozen=True, slots=True)
class _WorkerLeft:
    channel: Channel


@dataclass(frozen=True, slots=True)
class _JobEnded:
    job: int
    error: Exception | None


@dataclass(slots=True)
class _Flight:
    """An epoch in flight, and what has come of it in this generation."""

    execution: Execution
    plan: bytes
    read: set[int] = field(default_factory=set)
    ended: dict[int, list[Message]] = field(default_factory=dict)


class Crew:
    """The workers of one run of a fragment: `size` of them."""

    def __init__(
        self,
        spark: SparkSession,
        work: WorkDirectory,
        tiers: Tiers,
        clock: Callable[[], float],
        deadlines: Deadlines,
        size: int,
    ) -> None:
        self._spark = spark
        self._work = work
        self._tiers = tiers
        self._clock = clock
        self._deadlines = deadlines
        self._size = size
        self._secret = secrets.token_bytes(32)
        self._tag = f"holdfast-crew-{uuid.uuid4().hex}"
        self._door: socket.socket | None = None
        self._events: queue.SimpleQueue[_WorkerEnrolled | _WorkerSaid | _WorkerLeft | _JobEnded] = queue.SimpleQueue()
        self._workers: dict[int, _StandingWorker] = {}
        self._generation = 0
        self._standing = False
        self._asked = 0.0
        self._flights: dict[int, _Flight] = {}
        self._handovers: dict[int, HandOver] = {}
        self._silences: dict[int, Silence] = {}
        self._jobs = 0
        self._starts: list[float] = []
        self._job: threading.Thread | None = None
        self._over = False

    @property
    def workers(self) -> list[int]:
        """The process ids of those that stand."""
        return [worker.enrolment.pid for worker in self._workers.values()]

    # epochs

    def open(self, program: Program) -> None:
        self._work.write_program(program)
        host = self._spark.conf.get("spark.driver.host", "127.0.0.1") or "127.0.0.1"
        self._door = listen(host)
        threading.Thread(target=self._open_door, args=(self._door,), name="crew-door", daemon=True).start()
        self._start_job()

    def launch(self, epoch: int, plan: EpochPlan, settings: TaskSettings) -> None:
        flight = _Flight(Execution(plan, self._clock()), encode_plan(plan, settings))
        self._flights[epoch] = flight
        if self._standing:
            self._begin(epoch, flight)

    def hand_over(self, epoch: int, handover: HandOver) -> None:
        self._handovers[epoch] = handover
        if epoch in self._flights:
            self._flights[epoch].execution.handed_over = self._clock()
            if self._standing:
                self._tell_all(HandedOver(self._generation, epoch), handover.encode().encode())

    def wait(self, newest: int, *, watch: bool, seconds: float) -> ExecutionEvent | None:
        deadline = time.monotonic() + seconds
        while True:
            try:
                event = self._events.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                return None
            found = self._hear(event)
            if found is not None and (watch or isinstance(found, EpochFinished)):
                return found

    def execution(self, epoch: int) -> Execution:
        return self._flights[epoch].execution

    def forget(self, epoch: int) -> None:
        self._flights.pop(epoch)
        self._handovers.pop(epoch, None)
        self._silences.pop(epoch, None)
        self._tell_all(ForgetEpoch(epoch))

    def finished_within(self, seconds: float) -> dict[int, Execution]:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and any(
            flight.execution.messages is None for flight in self._flights.values()
        ):
            with contextlib.suppress(Exception):  # what has failed has nothing to leave
                self.wait(0, watch=False, seconds=0.05)
        ended = [epoch for epoch, flight in self._flights.items() if flight.execution.messages is not None]
        return {epoch: self._flights[epoch].execution for epoch in ended}

    def has_room(self, width: int) -> bool:
        return True

    def look_after(self, epoch: int, *, stopping: bool) -> None:
        """Give up workers that are silent or hang: Spark starts them again."""
        now = time.monotonic()
        if not self._standing:
            if now - self._asked > _SECONDS_TO_STAND:
                raise JobLostError(
                    f"only {len(self._workers)} of {self._size} workers stand after {_SECONDS_TO_STAND:g} s",
                    cure="give Spark more slots, or run with executor='jobs'",
                    epoch=epoch,
                )
            return
        for worker in list(self._workers.values()):
            if now - worker.heard > _SILENT_SECONDS:
                self._give_up(worker, f"silent for {now - worker.heard:.1f} s")
        if epoch in self._flights and self._flights[epoch].execution.messages is None:
            signs = tuple((str(number), round(worker.spent * 1000)) for number, worker in self._workers.items())
            silence = self._silences.setdefault(epoch, Silence(now, now))
            problem = silence.problem(signs, now, self._deadlines.allowed(EPOCH))
            if problem is not None:
                del self._silences[epoch]
                for worker in list(self._workers.values()):
                    self._give_up(worker, problem)

    def end(self) -> None:
        """Workers end when they are told, or when their channel closes; a job that goes on is cancelled."""
        self._over = True
        self._tell_all(End())
        deadline = time.monotonic() + _SECONDS_TO_END
        if self._job is not None:
            self._job.join(_SECONDS_TO_END / 2)
            while self._job.is_alive() and time.monotonic() < deadline:
                with contextlib.suppress(Exception):  # the session may be what has failed
                    cancel_jobs(self._spark, self._tag)
                self._job.join(0.2)
        for worker in self._workers.values():
            worker.channel.close()
        if self._door is not None:
            shut(self._door)

    # what happens

    def _hear(self, event: _WorkerEnrolled | _WorkerSaid | _WorkerLeft | _JobEnded) -> ExecutionEvent | None:
        match event:
            case _WorkerEnrolled(channel, enrolment):
                self._enrolled(channel, enrolment)
            case _WorkerLeft(channel):
                self._left(channel)
            case _JobEnded(job, error):
                self._job_ended(job, error)
            case _WorkerSaid(head, body):
                return self._said(head, body)
        return None

    def _enrolled(self, channel: Channel, enrolment: Enrol) -> None:
        before = self._workers.get(enrolment.worker)
        if before is not None:
            before.channel.close()  # a copy that nobody wants any more
        self._workers[enrolment.worker] = _StandingWorker(channel, enrolment, time.monotonic())
        self._standing = False
        if len(self._workers) == self._size:
            self._generation += 1
            fellows = [self._workers[number].enrolment for number in range(self._size)]
            self._standing = True
            self._tell_all(Roster(self._generation, tuple((fellow.host, fellow.port) for fellow in fellows)))
            for epoch, flight in sorted(self._flights.items()):
                if flight.execution.messages is None:
                    flight.read.clear()
                    flight.ended.clear()
                    self._begin(epoch, flight)

    def _left(self, channel: Channel) -> None:
        gone = [number for number, worker in self._workers.items() if worker.channel is channel]
        for number in gone:
            del self._workers[number]
            if self._standing:
                self._asked = time.monotonic()
            self._standing = False

    def _job_ended(self, job: int, error: Exception | None) -> None:
        if self._over or job != self._jobs:
            return
        now = time.monotonic()
        self._starts = [start for start in self._starts if now - start < _SECONDS_OF_JOBS]
        if len(self._starts) >= _MOST_JOBS:
            raise JobLostError(
                f"the workers' Spark job was lost {len(self._starts)} times in a minute:"
                f" {gist(error) if error else 'it ended'}",
                cure="see Spark's log; nothing is lost, epochs that were not committed are run again at the next start",
            ) from error
        for worker in self._workers.values():
            worker.channel.close()
        self._workers.clear()
        self._standing = False
        self._start_job()

    def _said(self, head: CrewHead, body: bytes) -> ExecutionEvent | None:
        if isinstance(head, SliceRead) and head.generation == self._generation and head.epoch in self._flights:
            flight = self._flights[head.epoch]
            flight.read.add(head.task)
            if len(flight.read) == flight.execution.plan.tasks[0] and flight.execution.read_at is None:
                flight.execution.read_at = self._clock()
                return EpochRead(head.epoch)
        if isinstance(head, TaskEnded) and head.generation == self._generation and head.epoch in self._flights:
            messages = unpacked(body)
            raise_errors(messages)
            flight = self._flights[head.epoch]
            flight.ended[head.task] = messages
            if len(flight.ended) == flight.execution.plan.tasks[-1]:
                return self._finished(head.epoch, flight)
        return None

    def _finished(self, epoch: int, flight: _Flight) -> EpochFinished:
        execution = flight.execution
        execution.messages = [message for _, said in sorted(flight.ended.items()) for message in said]
        execution.ended = self._clock()
        self._deadlines.took(execution.ended - max(execution.started, execution.handed_over))
        return EpochFinished(epoch)

    # telling

    def _begin(self, epoch: int, flight: _Flight) -> None:
        self._tell_all(RunEpoch(self._generation, epoch), flight.plan)
        handover = self._handovers.get(epoch)
        if handover is not None:
            flight.execution.handed_over = self._clock()
            self._tell_all(HandedOver(self._generation, epoch), handover.encode().encode())

    def _tell_all(self, head: CrewHead, body: bytes = b"") -> None:
        """Who is gone is heard of by itself."""
        for worker in self._workers.values():
            with contextlib.suppress(ChannelClosedError):
                worker.channel.send(head, body)

    def _give_up(self, worker: _StandingWorker, why: str) -> None:
        """A worker that does not answer does not see that its channel is closed: on this machine it is killed,
        elsewhere the job is ended, and another one begins."""
        _log.warning("%s: worker %d is given up: %s", self._tag, worker.enrolment.worker, why)
        worker.channel.close()
        if worker.enrolment.machine == platform.node():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(worker.enrolment.pid, signal.SIGKILL)
        else:
            with contextlib.suppress(Exception):
                cancel_jobs(self._spark, self._tag)
        self._left(worker.channel)

    # the job and the channels

    def _start_job(self) -> None:
        assert self._door is not None
        self._jobs += 1
        self._asked = time.monotonic()
        self._starts.append(self._asked)
        host, port = self._door.getsockname()[:2]
        task = StandingTask(self._work, self._tiers, host, port, self._secret)
        frame = self._spark.range(0, self._size, 1, self._size).mapInArrow(task, _SCHEMA)

        def run(job: int) -> None:
            error: Exception | None = None
            try:
                with tagged(self._spark, self._tag):
                    frame.toArrow()
            except Exception as found:  # noqa: BLE001 - told to the main thread
                error = found
            self._events.put(_JobEnded(job, error))

        self._job = InheritableThread(target=run, args=(self._jobs,), name=f"crew-{self._jobs}", daemon=True)
        self._job.start()

    def _open_door(self, door: socket.socket) -> None:
        while True:
            try:
                link, _ = door.accept()
            except OSError:
                return
            threading.Thread(target=self._receive, args=(link,), name="crew-worker", daemon=True).start()

    def _receive(self, link: socket.socket) -> None:
        try:
            channel = accept(link, self._secret)
            head, _ = channel.receive()
        except ChannelClosedError:
            return
        if not isinstance(head, Enrol) or not 0 <= head.worker < self._size:
            channel.close()
            return
        self._events.put(_WorkerEnrolled(channel, head))
        try:
            while True:
                said, body = channel.receive()
                if isinstance(said, WorkerBeat):
                    worker = self._workers.get(head.worker)
                    if worker is not None and worker.channel is channel:
                        worker.heard, worker.spent = time.monotonic(), said.spent
                else:
                    self._events.put(_WorkerSaid(said, body))
        except ChannelClosedError:
            channel.close()
            self._events.put(_WorkerLeft(channel))
