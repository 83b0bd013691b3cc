"""A crew as the executor of epochs: long-running workers, which are tasks of Spark jobs and receive epochs as messages.

Spark places the workers and restarts one that has died. Meanwhile a spare takes its number: the driver increments the
generation, all workers receive a new roster, and epochs in flight start again. Tasks that have finished are not
repeated, because their state and output are in files. A crew that never becomes complete, or loses workers again and
again without finishing an epoch, gives up with a `CrewLostError`; its owner continues with Spark jobs.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import time
from collections.abc import Callable

from pyspark.sql import SparkSession

from holdfast.epoch.crew_messages import (
    CrewHead,
    Die,
    End,
    FellowLost,
    ForgetEpoch,
    HandedOver,
    Roster,
    RunEpoch,
    SliceRead,
    TaskEnded,
)
from holdfast.epoch.deadline import EPOCH, Deadlines
from holdfast.epoch.execution import EpochFinished, EpochRead, Execution, ExecutionEvent
from holdfast.epoch.handover import HandOver
from holdfast.epoch.messages import raise_errors, unpacked
from holdfast.epoch.plan import EpochPlan, TaskSettings
from holdfast.errors import JobLostError, gist
from holdfast.plan.executor_choice import CrewSize
from holdfast.plan.program import Program
from holdfast.spark.crew_door import CrewDoor, CrewEvent, WorkerEnrolled, WorkerJobEnded, WorkerLeft, WorkerSaid
from holdfast.spark.crew_flight import CrewFlight
from holdfast.spark.crew_roster import CrewMember, CrewRoster
from holdfast.spark.crew_watch import CrewWatch
from holdfast.spark.session import is_lost
from holdfast.spark.stall import Silence, stalled
from holdfast.spark.worker_jobs import WorkerJobs
from holdfast.store import Tiers
from holdfast.task.channel import ChannelClosedError
from holdfast.task.standing_task import StandingTask
from holdfast.task.work_directory import WorkDirectory, encode_plan

__all__ = ["Crew", "CrewLostError"]

_log = logging.getLogger(__name__)
_SECONDS_TO_GET_SLOTS, _SECONDS_TO_STAND = 20.0, 60.0
"""A task that Spark has started may have to import its libraries: 3 to 8 s on a machine with nothing else to do, and
many times that on a busy one."""
_MOST_FRUITLESS, _FRUITLESS_SECONDS = 3, 30.0
_MOST_STARTS, _STARTS_SECONDS = 4, 60.0  # of Spark jobs for each worker
_SECONDS_TO_END, _MOST_SECONDS_TO_END = 2.5, 15.0


class CrewLostError(Exception):
    """The crew cannot continue. What is in flight can be run by another executor."""


class Crew:
    """The workers of one run of a fragment. `size` says how many there may be now, None if there is room for none. An
    epoch that shows no progress for as long as its deadline allows is tried `tries_of_stalled` times."""

    def __init__(
        self,
        spark: SparkSession,
        work: WorkDirectory,
        tiers: Tiers,
        clock: Callable[[], float],
        deadlines: Deadlines,
        size: Callable[[], CrewSize | None],
        tries_of_stalled: int,
    ) -> None:
        self._spark = spark
        self._work = work
        self._tiers = tiers
        self._clock = clock
        self._deadlines = deadlines
        self._size_now = size
        self._size = size() or CrewSize(1, 1, 0)
        self._tries_of_stalled = tries_of_stalled
        self._program: Program | None = None
        self._events: queue.SimpleQueue[CrewEvent] = queue.SimpleQueue()
        self._door: CrewDoor | None = None
        self._jobs = WorkerJobs(spark, self._task, lambda job, error: self._events.put(WorkerJobEnded(job, error)))
        self._roster = CrewRoster(self._size.first)
        self._watch = CrewWatch(self._roster, self._jobs.cancel)
        self._width = 0
        self._generation = 0
        self._asked = 0.0
        self._flights: dict[int, CrewFlight] = {}
        self._handovers: dict[int, bytes] = {}
        self._fruitless: list[float] = []
        """When generations began since an epoch has finished."""
        self._starts: list[float] = []
        self._over = False

    @property
    def workers(self) -> list[int]:
        """The process ids of those that have a number."""
        return [member.enrolment.pid for _, member in sorted(self._roster.numbered.items())]

    @property
    def spares(self) -> list[int]:
        """The process ids of those that wait for one."""
        return [member.enrolment.pid for member in self._roster.spares]

    @property
    def stands(self) -> bool:
        return self._roster.stands

    @property
    def lacks_slots(self) -> bool:  # of workers that are needed
        return len(self._jobs) - self._jobs.waiting() < self._roster.needed

    @property
    def _busy(self) -> bool:
        return not all(flight.finished for flight in self._flights.values())

    # epochs

    def open(self, program: Program) -> None:
        self._program = program
        self._work.write_program(program)
        host = self._spark.conf.get("spark.driver.host", "127.0.0.1") or "127.0.0.1"
        self._door = CrewDoor(host, self._work.key, self._events, self._roster.heard, self._work.sealed_program)
        self._asked = time.monotonic()
        self._hire()
        self._watch.start()

    def launch(self, epoch: int, plan: EpochPlan, settings: TaskSettings) -> None:
        self._resize(max(plan.tasks))
        flight = CrewFlight(
            Execution(plan, self._clock()), encode_plan(plan, settings), self._handovers.pop(epoch, None)
        )
        self._flights[epoch] = flight
        if self._roster.stands:
            self._begin(epoch, flight)

    def hand_over(self, epoch: int, handover: HandOver) -> None:
        said = handover.encode().encode()
        if epoch not in self._flights:
            self._handovers[epoch] = said
            return
        flight = self._flights[epoch]
        flight.handover, flight.execution.handed_over = said, self._clock()
        if self._roster.stands:
            self._tell(flight, HandedOver(self._generation, epoch), said)

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
        self._tell(self._flights.pop(epoch), ForgetEpoch(epoch))

    def finished_within(self, seconds: float) -> dict[int, Execution]:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and self._busy:
            with contextlib.suppress(Exception):  # what has failed has nothing to leave
                self.wait(0, watch=False, seconds=0.05)
        return {epoch: flight.execution for epoch, flight in self._flights.items() if flight.finished}

    def has_room(self, width: int) -> bool:
        """Not while another size is wanted and possible: it is changed when no epoch is in flight."""
        return not self._roster.changes

    def look_after(self, epoch: int, *, stopping: bool) -> None:
        """Give up workers that hang: Spark starts them again. While nothing is in flight, too, those that were lost are
        replaced."""
        now = time.monotonic()
        if not self._busy:
            self.wait(epoch, watch=False, seconds=0.0)
        if not self._roster.stands:
            waited = now - self._asked
            if waited > _SECONDS_TO_STAND or (waited > _SECONDS_TO_GET_SLOTS and self.lacks_slots):
                raise CrewLostError(f"only {self._roster.found} workers were ready after {waited:.0f} s")
        elif epoch in self._flights and not self._flights[epoch].finished:
            self._look_for_stall(epoch, self._flights[epoch], now)

    def kill_worker(self) -> None:
        _send(self._roster.numbered[0], Die())

    def end(self) -> None:
        """Workers end on request, or when their channel closes; a job that keeps running is cancelled."""
        self._over = True
        self._watch.close()
        while not self._events.empty():
            if isinstance(event := self._events.get(), WorkerEnrolled):
                self._roster.members.append(CrewMember(event.channel, event.enrolment, time.monotonic()))
        for member in self._roster.members:
            _send(member, End())
        asked = {member.enrolment.job for member in self._roster.members}
        self._jobs.end(asked, _SECONDS_TO_END, _MOST_SECONDS_TO_END)
        for member in self._roster.members:
            member.channel.close()
        if self._door is not None:
            self._door.close()

    # what happens

    def _hear(self, event: CrewEvent) -> ExecutionEvent | None:
        match event:
            case WorkerEnrolled(channel, enrolment):
                self._enrolled(CrewMember(channel, enrolment, time.monotonic()))
            case WorkerLeft(channel):
                if (member := self._roster.of(channel)) is not None:
                    self._left(member)
            case WorkerJobEnded(job, error):
                self._job_ended(job, error)
            case WorkerSaid(head, body):
                return self._said(head, body)
        return None

    def _said(self, head: CrewHead, body: bytes) -> ExecutionEvent | None:
        match head:
            case SliceRead(generation, epoch, task) if generation == self._generation and epoch in self._flights:
                flight = self._flights[epoch]
                flight.read.add(task)
                if len(flight.read) == flight.execution.plan.tasks[0] and flight.execution.read_at is None:
                    flight.execution.read_at = self._clock()
                    return EpochRead(epoch)
            case TaskEnded(generation, epoch, _, task) if generation == self._generation and epoch in self._flights:
                messages = unpacked(body)
                raise_errors(messages)
                flight = self._flights[epoch]
                flight.ended[task] = messages
                if len(flight.ended) == flight.execution.plan.tasks[-1]:
                    return self._finished(epoch, flight)
            case FellowLost(generation, fellow, why, number) if generation == self._generation and self._roster.stands:
                # Most often the first sign of a worker that is ending, and its end says why: no warning. Of two that
                # have lost each other either may be deaf, and is the one that cannot be reached again.
                member = self._roster.numbered[fellow]
                if member.doubted:  # a new connection has not helped
                    self._give_up(member, f"another worker cannot reach it: {why}", logging.INFO)
                else:
                    _log.info("the connection to worker %d failed: %s", fellow, why)
                    member.doubted = self._roster.numbered[number].doubted = True
                    self._regroup()
            case _:
                pass  # of a generation that is over
        return None

    def _finished(self, epoch: int, flight: CrewFlight) -> EpochFinished:
        execution = flight.execution
        execution.messages = [message for _, said in sorted(flight.ended.items()) for message in said]
        execution.ended = self._clock()
        self._fruitless.clear()
        self._roster.trust()
        self._deadlines.took(execution.ended - max(execution.started, execution.handed_over))
        return EpochFinished(epoch)

    def _look_for_stall(self, epoch: int, flight: CrewFlight, now: float) -> None:
        signs = tuple((str(number), round(one.spent * 1000)) for number, one in self._roster.numbered.items())
        flight.silence = flight.silence or Silence(now, now)
        problem = flight.silence.problem(signs, now, self._deadlines.allowed(EPOCH))
        if problem is None:
            return
        flight.silence = None
        flight.stalls += 1
        if flight.stalls >= self._tries_of_stalled:
            assert self._program is not None
            stage = 0 if len(flight.read) < flight.execution.plan.tasks[0] else 1
            raise stalled(self._program, epoch, problem, stage)
        self._fruitless.clear()  # a stall is counted by itself
        for member in list(self._roster.numbered.values()):
            self._give_up(member, problem)

    # workers

    def _enrolled(self, member: CrewMember) -> None:
        """Of two copies of a worker the later one counts. The other one gets no message, so that it fails: if it ended
        well, Spark would take their job for done, and end the one that is wanted."""
        job, attempt = member.enrolment.job, member.enrolment.attempt
        if job not in self._jobs:  # it was dismissed, but has died before it could end
            _send(member, End())
            return
        copies = self._roster.of_job(job)
        if any(copy.enrolment.attempt > attempt for copy in copies):
            member.channel.close()
            return
        for copy in copies:
            copy.channel.close()
            self._roster.members.remove(copy)
        self._roster.members.append(member)
        if not self._roster.stands:
            self._regroup()

    def _left(self, member: CrewMember) -> None:
        stood = self._roster.stands
        self._roster.members.remove(member)
        if stood and not self._roster.stands:
            self._asked = time.monotonic()
            self._regroup()

    def _regroup(self) -> None:
        """Begin a generation with those that stand, if they are enough: epochs in flight begin again."""
        if self._over or not self._roster.regroup():
            return
        now = time.monotonic()
        if self._busy:  # a worker lost while nothing is in flight has cost no epoch
            self._fruitless = [*(at for at in self._fruitless if now - at < _FRUITLESS_SECONDS), now]
        if len(self._fruitless) > _MOST_FRUITLESS:
            raise CrewLostError(f"workers were lost {_MOST_FRUITLESS} times without a finished epoch in between")
        self._generation += 1
        numbered = sorted(self._roster.numbered.items())
        fellows = tuple((member.enrolment.host, member.enrolment.port) for _, member in numbered)
        for number, member in numbered:
            _send(member, Roster(self._generation, number, fellows))
        for epoch, flight in sorted(self._flights.items()):
            if not flight.finished:
                flight.read.clear()
                flight.ended.clear()
                flight.silence = None
                self._begin(epoch, flight)

    def _resize(self, width: int) -> None:
        """As many workers as the widest stage has tasks. More are made ready next to those that are there; the change
        is made when no epoch is in flight."""
        if width != self._width:
            self._width, self._size = width, self._size_now() or self._size
            self._roster.wanted = min(max(width, self._size.first), self._size.most)
            self._hire()
        if self._roster.stands and self._roster.changes and not self._busy:
            self._regroup()
            for spare in list(self._roster.spares)[self._size.spares :]:
                self._dismiss(spare)
                self._jobs.forget(spare.enrolment.job)

    def _hire(self) -> None:
        while len(self._jobs) < self._roster.wanted + self._size.spares:
            self._starts.append(time.monotonic())
            self._jobs.start()

    def _dismiss(self, member: CrewMember) -> None:
        _send(member, End())
        member.channel.close()
        self._roster.members.remove(member)

    def _job_ended(self, job: int, error: Exception | None) -> None:
        """Spark has given a worker up. Another job is started for another one, but not again and again."""
        for member in self._roster.of_job(job):
            member.channel.close()
            self._left(member)
        if self._over or not self._jobs.forget(job):
            return
        if is_lost(self._spark):
            raise JobLostError(
                f"the Java process of Spark has ended: {gist(error) if error else 'for an unknown reason'}",
                cure="see Spark's log, then start again: nothing is lost, epochs that were not committed are run again",
            ) from error
        now = time.monotonic()
        self._starts = [start for start in self._starts if now - start < _STARTS_SECONDS]
        if len(self._starts) >= _MOST_STARTS * (self._roster.wanted + self._size.spares):
            raise CrewLostError(f"Spark has repeatedly given up workers: {gist(error) if error else 'they ended'}")
        self._hire()

    def _give_up(self, member: CrewMember, why: str, level: int = logging.WARNING) -> None:
        self._watch.give_up(member, why, level)
        self._left(member)

    def _task(self, job: int) -> StandingTask:
        assert self._door is not None
        return StandingTask(job, self._tiers, self._door.host, self._door.port, self._work.key)

    # telling

    def _begin(self, epoch: int, flight: CrewFlight) -> None:
        self._tell(flight, RunEpoch(self._generation, epoch), flight.plan)
        if flight.handover is not None:
            flight.execution.handed_over = self._clock()
            self._tell(flight, HandedOver(self._generation, epoch), flight.handover)

    def _tell(self, flight: CrewFlight, head: CrewHead, body: bytes = b"") -> None:
        """Those that have tasks of the epoch; others are not woken for it."""
        for member in self._roster.members:
            if member.number is not None and member.number < max(flight.execution.plan.tasks):
                _send(member, head, body)


def _send(member: CrewMember, head: CrewHead, body: bytes = b"") -> None:
    """Who is gone is heard of by itself."""
    with contextlib.suppress(ChannelClosedError):
        member.channel.send(head, body)
