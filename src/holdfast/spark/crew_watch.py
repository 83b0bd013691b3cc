"""Monitoring the workers of a crew: one that is stopped, or silent for too long, is given up.

A separate thread does this several times a second, whatever the driver is busy with: also while a pipeline waits for
input, so that the next row does not have to wait for a new worker. Nothing is changed here: a worker that is given up
is reported as one that has left.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable

from holdfast.spark.crew_roster import CrewMember, CrewRoster
from holdfast.spark.gateway import kill_stopped_workers
from holdfast.spark.worker_process import is_stopped, kill_worker

__all__ = ["CrewWatch"]

_log = logging.getLogger(__name__)
_LOOK_EVERY = 0.25
_UNHEARD_SECONDS = 0.75
"""Three beats: then the process is looked at, if it is on this machine."""
_SILENT_SECONDS = 5.0
"""A worker of another machine is given up after twenty beats: one that waits for a core, or holds Python's lock in a
long call, still lives, and to give it up would make a slow machine slower."""
_HELD_UP_SECONDS = 2.0
"""If the driver itself was away for longer, it knows nothing of its workers' silence."""


class CrewWatch:
    """`cancel` has Spark end the job of a worker that is not on this machine."""

    def __init__(self, roster: CrewRoster, cancel: Callable[[int], None]) -> None:
        self._roster = roster
        self._cancel = cancel
        self._looked = time.monotonic()
        self._over = threading.Event()

    def start(self) -> None:
        threading.Thread(target=self._watch, name="crew-watch", daemon=True).start()

    def close(self) -> None:
        self._over.set()

    def give_up(self, member: CrewMember, why: str, level: int = logging.WARNING) -> None:
        """A worker that does not answer does not see that its channel is closed: on this machine it is killed,
        elsewhere Spark is asked to end its job."""
        _log.log(level, "worker %s, process %d, given up: %s", member.number, member.enrolment.pid, why)
        member.heard = math.inf  # it is given up once, however long it takes until that is heard of
        member.channel.close()
        if not kill_worker(member.enrolment):
            self._cancel(member.enrolment.job)

    def _watch(self) -> None:
        while not self._over.wait(_LOOK_EVERY):
            self.look(time.monotonic())

    def look(self, now: float) -> None:
        if now - self._looked > _HELD_UP_SECONDS:
            self._roster.excuse(now - _UNHEARD_SECONDS)
        self._looked = now
        for member in tuple(self._roster.members):
            unheard = now - member.heard
            if unheard <= _UNHEARD_SECONDS:
                continue
            stopped = is_stopped(member.enrolment)
            if stopped:
                kill_stopped_workers()
                self.give_up(member, f"it is stopped, and was silent for {unheard:.1f} s")
            elif stopped is None and unheard > _SILENT_SECONDS:
                self.give_up(member, f"it was silent for {unheard:.1f} s")
