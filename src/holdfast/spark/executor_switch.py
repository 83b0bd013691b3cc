"""The executor of a run that starts with a crew: if the crew is lost, Spark jobs replace it until another crew stands.

Both switches happen between two epochs. When a crew is lost, finished epochs are committed, and those in flight are
launched again as jobs, as they were planned. After a pause a new crew is made ready beside the jobs, and takes over
when no epoch is in flight. The pause doubles each time that this does not help. The output is the same.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from holdfast.epoch.execution import Execution, ExecutionEvent, Executor
from holdfast.epoch.handover import HandOver
from holdfast.epoch.plan import EpochPlan, TaskSettings
from holdfast.plan.program import Program
from holdfast.spark.crew import Crew, CrewLostError

__all__ = ["ExecutorSwitch"]

_PAUSE, _LONGEST_PAUSE = 30.0, 600.0
_SECONDS_TO_GET_SLOTS = 3.0
"""Workers that wait for slots get them before the epochs' jobs do."""


@dataclass(slots=True)
class _Launched:
    plan: EpochPlan
    settings: TaskSettings
    handover: HandOver | None


class ExecutorSwitch:
    """`crew` makes a crew, if there is room for one, and `jobs` the executor that takes over from it; `switched` is
    called with the reason, and with None when a crew has taken over again."""

    def __init__(
        self,
        first: Crew,
        crew: Callable[[], Crew | None],
        jobs: Callable[[], Executor],
        switched: Callable[[str | None], None],
    ) -> None:
        self.current: Executor = first
        self._crew = crew
        self._jobs = jobs
        self._switched = switched
        self._program: Program | None = None
        self._launched: dict[int, _Launched] = {}
        self._handovers: dict[int, HandOver] = {}
        self._finished: dict[int, Execution] = {}
        """Of the executor before, what may still be asked for."""
        self.coming: Crew | None = None
        """While epochs are jobs: the crew that is to take over."""
        self._since = time.monotonic()
        """When it began to come, or when the current executor took over."""
        self._pause = _PAUSE

    def open(self, program: Program) -> None:
        self._program = program
        self.current.open(program)

    def launch(self, epoch: int, plan: EpochPlan, settings: TaskSettings) -> None:
        self._return_to_crew()
        self._launched[epoch] = _Launched(plan, settings, self._handovers.pop(epoch, None))
        self.current.launch(epoch, plan, settings)

    def hand_over(self, epoch: int, handover: HandOver) -> None:
        if epoch in self._launched:
            self._launched[epoch].handover = handover
        else:
            self._handovers[epoch] = handover
        if epoch not in self._finished:
            self.current.hand_over(epoch, handover)

    def wait(self, newest: int, *, watch: bool, seconds: float) -> ExecutionEvent | None:
        try:
            return self.current.wait(newest, watch=watch, seconds=seconds)
        except CrewLostError as error:
            self._switch(str(error))
            return None

    def look_after(self, epoch: int, *, stopping: bool) -> None:
        try:
            self.current.look_after(epoch, stopping=stopping)
        except CrewLostError as error:
            self._switch(str(error))
        self._return_to_crew()

    def execution(self, epoch: int) -> Execution:
        return self._finished[epoch] if epoch in self._finished else self.current.execution(epoch)

    def forget(self, epoch: int) -> None:
        self._launched.pop(epoch)
        if self._finished.pop(epoch, None) is None:
            self.current.forget(epoch)

    def finished_within(self, seconds: float) -> dict[int, Execution]:
        return {**self._finished, **self.current.finished_within(seconds)}

    def has_room(self, width: int) -> bool:
        """Not while a crew waits for the last epoch that runs as a job."""
        return (self.coming is None or not self.coming.stands) and self.current.has_room(width)

    @property
    def stands(self) -> bool:
        return self.current.stands

    def kill_worker(self) -> None:
        self.current.kill_worker()

    def end(self) -> None:
        self._send_away()
        self.current.end()

    def _return_to_crew(self) -> None:
        """While epochs are jobs: make a crew ready, and let it take over as soon as it can."""
        if isinstance(self.current, Crew):
            return
        if self.coming is None:
            if time.monotonic() - self._since < self._pause or (crew := self._crew()) is None:
                return
            assert self._program is not None
            self.coming, self._since = crew, time.monotonic()
            crew.open(self._program)
        try:
            self.coming.look_after(0, stopping=False)
        except CrewLostError:
            self._put_off()
            return
        if self.coming.stands:
            finished = self.finished_within(0.0)
            if self._launched.keys() <= finished.keys():
                self._finished = finished
                self._take_over(self.coming)
        elif time.monotonic() - self._since > _SECONDS_TO_GET_SLOTS and self.coming.lacks_slots:
            self._put_off()

    def _take_over(self, crew: Crew) -> None:
        self.current.end()
        self.current, self.coming, self._since = crew, None, time.monotonic()
        for epoch, handover in self._handovers.items():
            crew.hand_over(epoch, handover)
        self._switched(None)

    def _put_off(self) -> None:
        self._send_away()
        self._since, self._pause = time.monotonic(), min(2 * self._pause, _LONGEST_PAUSE)

    def _send_away(self) -> None:
        if self.coming is not None:
            self.coming.end()
            self.coming = None

    def _switch(self, why: str) -> None:
        assert self._program is not None
        stood = time.monotonic() - self._since
        self._since, self._pause = time.monotonic(), _PAUSE if stood > _LONGEST_PAUSE else 2 * self._pause
        self._switched(why)
        self._finished = self.current.finished_within(0.0)
        self.current.end()
        self.current = self._jobs()
        self.current.open(self._program)
        for epoch, given in sorted(self._launched.items()):
            if epoch not in self._finished:
                self.current.launch(epoch, given.plan, given.settings)
                if given.handover is not None:
                    self.current.hand_over(epoch, given.handover)
        for epoch, handover in self._handovers.items():
            self.current.hand_over(epoch, handover)
