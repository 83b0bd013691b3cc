"""The loop of a fragment: asks the machine what to do, does it, and reports the result to the machine.

The same loop runs a pipeline alone and every role of a replica, on Spark and in one process, in production and in the
simulation. Its parts do the work. Everything durable goes through the meta store, in this order: plan, run, prepare
sinks, commit, publish.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from holdfast.engine import events, instructions
from holdfast.engine.authority import Authority
from holdfast.engine.committer import Committer
from holdfast.engine.machine import Machine
from holdfast.engine.observer import Observer
from holdfast.engine.planner import Planner
from holdfast.engine.roles import Role
from holdfast.engine.standby import Standby
from holdfast.engine.start import Start
from holdfast.epoch.deadline import Deadlines
from holdfast.epoch.execution import Executor
from holdfast.errors import LeaseLostError

__all__ = ["Loop"]

_STANDBY_SECONDS = 0.1


@dataclass(slots=True)
class Loop:
    """`rest` sleeps until there may be new input, but no longer than it is given. `limit_reached` tells whether the run
    has done all it was asked for. `pause` is how long to wait where there is nothing to do, `patience` how long for an
    epoch before looking at anything else."""

    name: str
    machine: Machine
    authority: Authority
    executor: Executor
    start: Start
    standby: Standby
    planner: Planner
    committer: Committer
    observer: Observer
    deadlines: Deadlines
    sleep: Callable[[float], None]
    rest: Callable[[float], None]
    limit_reached: Callable[[], bool]
    pause: float
    patience: float
    stopped: bool = False

    def run(self, before_step: Callable[[], None] = lambda: None) -> bool:
        """Until the fragment has ended, or this run gets a lesser role: then False."""
        while True:
            before_step()
            instruction = self.step()
            if isinstance(instruction, instructions.Finish):
                self.committer.finish()
                self.planner.tables.sweep(now_or_never=True)
                return True
            if instruction is None:
                return False

    def step(self) -> instructions.Instruction | None:
        """Do what is next, and return it; None when this run is no longer needed."""
        self._look_around()
        instruction = self.machine.next()
        if self.machine.begun and not isinstance(instruction, instructions.PlanEpoch | instructions.LaunchEpoch):
            self.committer.chores.do()
        match instruction:
            case instructions.StandBy(Role.COLD) if self.start.opened:  # less is wanted than a crew that stands
                self._let_go()
                return None
            case instructions.StandBy(role):
                self._stand_by(role)
            case instructions.Begin(lead, gap):
                self.machine.on(self.start.begin(lead=lead, gap=gap))
            case instructions.LookBack():
                self.machine.on(self.start.look_back())
            case instructions.Lead():
                self.machine.on(self.start.lead())
            case instructions.PlanEpoch():
                self._plan(instruction)
            case instructions.LaunchEpoch(epoch, silent):
                self.committer.hand_over(epoch)
                self.planner.launch(epoch, silent=silent)
                self.machine.on(events.EpochLaunched(epoch))
            case instructions.LookUp(epoch):
                self.machine.on(self.committer.look_up(epoch))
            case instructions.AwaitCommit(epoch):
                self.authority.ready(self.machine.seat.role)
                self.sleep(self.pause)
                self.machine.on(self.committer.look_up(epoch))
            case instructions.CommitEpoch(epoch, how):
                if not self.committer.commit(epoch, how):
                    self._see_who_was_first(epoch)
            case instructions.Wait():
                self.wait()
            case instructions.Recovered(after, replayed):
                self.start.recovered(after, replayed)
                self.machine.on(events.Reported(instruction))
            case instructions.TookOver(replayed):
                self.observer.took_over(self.name, replayed)
                self.machine.on(events.Reported(instruction))
            case instructions.Finish():
                pass
            case instructions.LetGo():
                self._let_go()
                return None
            case instructions.GiveUp():
                cure = "nothing to do: this host takes a free seat"
                raise LeaseLostError(f"another host runs '{self.name}' now", cure=cure)
        return instruction

    def wait(self) -> None:
        """Wait until an epoch in flight ends, or until the newest one has read its input."""
        event = self.executor.wait(self.machine.launched, watch=self.planner.overlaps, seconds=self.patience)
        if event is not None:
            self.machine.on(event)
        else:
            self.executor.look_after(self.machine.committed + 1, stopping=self.stopped)

    def _see_who_was_first(self, epoch: int) -> None:
        """Nothing was written. If no other run has committed, this run may not: it will soon learn so."""
        found = self.committer.look_up(epoch)
        if not found.committed:
            self.sleep(self.pause)
        self.machine.on(found)

    def _look_around(self) -> None:
        self.authority.renew()
        self.machine.on(events.Seated(self.authority.seat))
        if self.machine.begun:
            self.deadlines.step()
        if self.machine.leading:
            self.committer.publish_due()
        if self.stopped or (self.machine.leading and self.limit_reached()):
            self.machine.on(events.Stopped())

    def _stand_by(self, role: Role) -> None:
        followed = self.standby.follow(hot=role is Role.HOT)
        if followed and role is Role.HOT:
            self.start.open_executor()
            self.executor.wait(0, watch=False, seconds=0.0)  # which have come, and which have gone
            self.executor.look_after(0, stopping=False)
        self.authority.ready(role if followed else None)
        waited = 0.0  # but not while another role is asked for: it may be the first one
        while waited < _STANDBY_SECONDS and self.authority.seat.role is role and not self.stopped:
            self.sleep(self.pause)
            waited += self.pause

    def _plan(self, instruction: instructions.PlanEpoch) -> None:
        event = self.planner.plan(instruction)
        if event is not None:
            self.machine.on(event)
            return
        self.committer.chores.do()
        if self.machine.launched > self.machine.committed:
            self.wait()
        elif self.machine.leading:
            self.committer.idle()
            self.executor.look_after(self.machine.committed + 1, stopping=False)
            self.rest(self.planner.pause())
        else:
            self.sleep(self.pause)

    def _let_go(self) -> None:
        if self.machine.begun:
            self.committer.discard()
        else:
            self.standby.drop()
