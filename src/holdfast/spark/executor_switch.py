"""The executor of a run that starts with a crew: if the crew is lost for good, Spark jobs replace it.

The switch happens between two epochs: finished epochs are committed, and those in flight are launched again as jobs, as
they were planned. The output is the same.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from holdfast.epoch.execution import Execution, ExecutionEvent, Executor
from holdfast.epoch.handover import HandOver
from holdfast.epoch.plan import EpochPlan, TaskSettings
from holdfast.plan.program import Program
from holdfast.spark.crew import Crew, CrewLostError

__all__ = ["ExecutorSwitch"]


@dataclass(slots=True)
class _Launched:
    plan: EpochPlan
    settings: TaskSettings
    handover: HandOver | None


class ExecutorSwitch:
    """`jobs` makes the executor that takes over, `switched` is called with the reason."""

    def __init__(self, crew: Crew, jobs: Callable[[], Executor], switched: Callable[[str], None]) -> None:
        self.current: Executor = crew
        self._jobs = jobs
        self._switched = switched
        self._program: Program | None = None
        self._launched: dict[int, _Launched] = {}
        self._handovers: dict[int, HandOver] = {}
        self._finished: dict[int, Execution] = {}
        """Of the crew that was lost, what is not committed yet."""

    def open(self, program: Program) -> None:
        self._program = program
        self.current.open(program)

    def launch(self, epoch: int, plan: EpochPlan, settings: TaskSettings) -> None:
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

    def execution(self, epoch: int) -> Execution:
        return self._finished[epoch] if epoch in self._finished else self.current.execution(epoch)

    def forget(self, epoch: int) -> None:
        self._launched.pop(epoch)
        if self._finished.pop(epoch, None) is None:
            self.current.forget(epoch)

    def finished_within(self, seconds: float) -> dict[int, Execution]:
        return {**self._finished, **self.current.finished_within(seconds)}

    def has_room(self, width: int) -> bool:
        return self.current.has_room(width)

    @property
    def stands(self) -> bool:
        return self.current.stands

    def kill_worker(self) -> None:
        self.current.kill_worker()

    def end(self) -> None:
        self.current.end()

    def _switch(self, why: str) -> None:
        assert self._program is not None
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
