"""Epochs that stall: their Spark job runs, but makes no progress.

A Python worker may be stopped, or wait for a mount or a response; Spark waits with it. Tasks show that they are working
by signs of life in the work directory. An epoch without a new sign for as long as its deadline allows is given up: its
job is cancelled, its Python workers are killed, and the epoch is tried again.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from pyspark.sql import SparkSession

from holdfast.epoch.deadline import EPOCH, Deadlines
from holdfast.errors import DeadlineError
from holdfast.plan.program import Program
from holdfast.spark.gateway import kill_python_workers
from holdfast.spark.job import cancel_jobs, running_tasks
from holdfast.task.work_directory import WorkDirectory

__all__ = ["Silence", "StallWatch", "stalled"]

_log = logging.getLogger(__name__)
_LOOKS_PER_DEADLINE = 20
_LONGEST_PAUSE = 1.0
_SECONDS_TO_CANCEL = 15.0
_SECONDS_TO_START = 30.0
"""After an attempt that was given up Python workers are restarted, and import what they need."""
_MOST_TIMES = 20
"""What works and works must end after so many deadlines: it may be a loop without an end."""

Signs = tuple[tuple[str, int], ...]
"""What is seen of the tasks of an epoch. Only changes of it mean something."""


@dataclass(slots=True)
class Silence:
    """How long one attempt at an epoch has shown nothing new. Pure."""

    since: float
    began: float
    signs: Signs = ()

    def problem(self, signs: Signs, now: float, allowed: float) -> str | None:
        if signs != self.signs:
            self.signs, self.since = signs, now
        if now - self.since > allowed:
            return f"no progress for {now - self.since:.3g} s"
        if now - self.began > _MOST_TIMES * allowed:
            return f"no end after {now - self.began:.3g} s of work"
        return None


class StallWatch:
    """Looks at the oldest epoch in flight: nothing keeps its tasks waiting but themselves."""

    def __init__(
        self,
        spark: SparkSession,
        work: WorkDirectory,
        program: Program,
        deadlines: Deadlines,
        *,
        waits_for_slots: bool,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`waits_for_slots`: a job without a running task is left alone, for executors may come."""
        self._spark = spark
        self._work = work
        self._program = program
        self._deadlines = deadlines
        self._waits_for_slots = waits_for_slots
        self._clock = clock
        self._silences: dict[tuple[int, int], Silence] = {}
        self._given_up: dict[tuple[int, int], tuple[float, DeadlineError]] = {}
        self._next_look = 0.0

    def look(self, epoch: int, attempt: int, tag: str) -> None:
        """To be called often. Gives an attempt up that is past its deadline; raises if Spark does not let go of it."""
        now = self._clock()
        if now < self._next_look:
            return
        allowed, key = self._deadlines.allowed(EPOCH) + (_SECONDS_TO_START if attempt > 1 else 0.0), (epoch, attempt)
        self._next_look = now + min(_LONGEST_PAUSE, allowed / _LOOKS_PER_DEADLINE)
        if key in self._given_up:
            since, error = self._given_up[key]
            if now > since + _SECONDS_TO_CANCEL:
                raise error
            return
        signs = self._work.signs(epoch)
        problem = self._silences.setdefault(key, Silence(now, now)).problem(signs, now, allowed)
        if problem is None:
            return
        if self._waits_for_slots and self._is_waiting(epoch, tag):
            self._silences[key] = Silence(now, now, signs)
            return
        stages = [int(name.split("-")[1]) for name, _ in signs if name.startswith("sign-")]
        error = stalled(self._program, epoch, problem, min(stages, default=None))
        self._given_up[key] = now, error
        self._work.clear_signs(epoch)
        _log.warning("%s, attempt %d: %s; giving it up", self._program.name, attempt, error.problem)
        threading.Thread(target=self._give_up, args=(tag, attempt), name=f"give-up-{epoch}", daemon=True).start()

    def error_of(self, epoch: int, attempt: int) -> DeadlineError | None:
        """Why an attempt was given up, if it was."""
        return self._given_up.get((epoch, attempt), (0.0, None))[1]

    def finished(self, epoch: int) -> None:
        """The epoch has ended."""
        for silence in [key for key in self._silences if key[0] <= epoch]:
            self._silences.pop(silence)
            self._given_up.pop(silence, None)

    def _is_waiting(self, epoch: int, tag: str) -> bool:
        """Whether no task of the job runs, as far as Spark says."""
        with contextlib.suppress(Exception):
            asked = "Spark, which was asked for its tasks,"
            return self._deadlines.call(self._program.name, epoch, asked, running_tasks, self._spark, tag) == 0
        return False

    def _give_up(self, tag: str, attempt: int) -> None:
        """In a thread of its own: a session that does not answer must not hold up anything."""
        kill_python_workers(and_their_parent=attempt > 1)  # first, so that the next attempt does not get one of them
        with contextlib.suppress(Exception):  # the session may be what has failed
            cancel_jobs(self._spark, tag)


def stalled(program: Program, epoch: int, problem: str, stage: int | None) -> DeadlineError:
    """Names the first operator of the first stage whose tasks have not ended, if any has begun."""
    if stage is None:
        what, names = "no Python worker has begun a task of it", []
    elif stage == 0:
        what, names = "a task that reads", [source.name for source in program.sources]
    else:
        what, names = f"a task of stage {stage}", [operator.name for operator in program.operators_in(stage)]
    return DeadlineError(
        f"{EPOCH} shows {problem} ({what})",
        cure="check whether the machine is overloaded, or a function, a source or a mount waits for something; if it"
        " is only slow, give it more time by deadline=... or --deadline. The epoch is not lost: it comes again",
        operator=names[0] if names else None,
        epoch=epoch,
    )
