"""The machine of a fragment: decides what its run does next, in every role.

Events in, instructions out; no clock and no I/O. The loop (`engine/loop.py`) carries out what `next` returns and
reports the result. Production, simulation and tests run this same machine.

A run *stands by* (keeps the state up to date, with `hot` also the input), *follows* (runs every epoch as planned, and
adopts what the primary has committed), *shares* (also commits: the first one wins) or *leads*. Its `Seat` says which of
these it should do, and may change at any moment; a lease that is held alone is a seat that always leads. A takeover is
a change of role while epochs are in flight: the run first adopts what the previous primary has committed, then it
leads. A run is only ever promoted. To demote it, it is ended, and another run begins.

Epochs are planned, launched and committed in order. At most two are in flight: epoch e + 1 is launched when the tasks
of epoch e have read their input, so that it reads while e is assembled.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from holdfast.engine.events import (
    Began,
    EpochCommitted,
    EpochLaunched,
    EpochPlanned,
    Event,
    Leads,
    LookedBack,
    LookedUp,
    Overlap,
    Reported,
    Seated,
    Stopped,
)
from holdfast.engine.instructions import (
    AwaitCommit,
    Begin,
    CommitEpoch,
    Finish,
    GiveUp,
    How,
    Instruction,
    LaunchEpoch,
    Lead,
    LetGo,
    LookBack,
    LookUp,
    News,
    PlanEpoch,
    Recovered,
    StandBy,
    TookOver,
    Wait,
)
from holdfast.engine.roles import Role, Seat
from holdfast.epoch.execution import EpochFinished, EpochRead
from holdfast.errors import InvalidTransitionError

__all__ = ["Machine"]


@dataclass(slots=True)
class Machine:
    """`committed` is the last epoch that is committed and whose state is here, `planned` the last one whose plan is
    fixed, `launched` the last one that was launched."""

    seat: Seat = field(default_factory=Seat)
    overlap: bool = False
    """Whether a second epoch may be launched while the first is in flight."""
    committed: int = 0
    planned: int = 0
    launched: int = 0
    leading: bool = False
    lost: set[int] = field(default_factory=set)
    """Epochs that were committed before they were run here."""
    begun: bool = False
    """Whether state is back, so that epochs can run."""
    began: int = 0
    """The epoch after which this run began."""
    _stopped: bool = False
    _read: int = 0
    _finished: set[int] = field(default_factory=set)
    _replay_until: int | None = None
    _found: LookedBack | None = None
    _looked_up: LookedUp | None = None
    """What the store has of the next epoch to be committed, as far as it was asked for."""
    _owed: int | None = None
    """The last epoch that was planned before this run took over; output resumes when it is committed."""
    _news: deque[News] = field(default_factory=deque)

    # what to do

    def next(self) -> Instruction:
        """What to do now. Asking twice gives the same answer."""
        if not self.begun:
            return self._before()
        if self.leading and self.seat.role is not Role.LEAD:
            return GiveUp()
        if not self.leading and (not self.seat.role.processes or self._stopped):
            return LetGo()
        if self._news:
            return self._news[0]
        if not self.leading and self.seat.role is Role.LEAD:
            if self._found is None:
                return LookBack()
            if self.committed >= self._found.committed:
                return Lead()
        return self._next_of_epochs()

    def _before(self) -> Instruction:
        role = self.seat.role
        if (self._stopped and self.seat.replica) or role is Role.NONE:
            return LetGo()
        if role.stands_by:
            return StandBy(role)
        lead = role is Role.LEAD
        return Begin(lead, gap=lead and not self.seat.precise)

    def _next_of_epochs(self) -> Instruction:
        epoch = self.committed + 1
        if epoch in self._finished:
            return self._commit(epoch)
        if self._may_launch():
            if self.planned > self.launched:
                return LaunchEpoch(self.launched + 1, silent=self.launched + 1 in self.lost)
            if not self._stopped:
                found = 0 if self._found is None else self._found.planned
                look = not self.leading or self.seat.shared or self.planned < found
                return PlanEpoch(self.planned + 1, look=look, make=self.leading or self.seat.role is Role.SHARE)
        if self._stopped and self.planned == self.committed:
            return Finish()
        return Wait()

    def _commit(self, epoch: int) -> Instruction:
        if self.leading:
            return CommitEpoch(epoch, How.AGAIN if epoch in self.lost else How.OWN)
        if self._looked_up is None:
            return LookUp(epoch)
        if self._looked_up.committed:
            return CommitEpoch(epoch, How.ADOPTED)
        return CommitEpoch(epoch, How.SHARED) if self.seat.role is Role.SHARE else AwaitCommit(epoch)

    def _may_launch(self) -> bool:
        in_flight = self.launched - self.committed
        return in_flight == 0 or (self.overlap and in_flight == 1 and self._read == self.launched)

    @property
    def replaying(self) -> bool:
        """Whether epochs are run that were planned before the start."""
        return self._replay_until is not None

    # what has happened

    def on(self, event: Event) -> None:
        match event:
            case Seated(seat):
                self.seat = seat
            case Stopped():
                self._stopped = True
            case Began():
                self._on_began(event)
            case LookedBack():
                if self.seat.shared and self._found is None:  # both have emitted: output has not stopped
                    self._news.append(TookOver(0))
                self._found = event
            case Leads():
                self._expect(self._found is not None and not self.leading, event)
                assert self._found is not None
                self.leading = True
                if not self.seat.shared:
                    self._owed = max(self._found.planned, self._found.committed)
                    self._output_goes_on()
            case EpochPlanned(epoch, committed):
                self._expect(epoch == self.planned + 1, event)
                self.planned = epoch
                if committed:
                    self.lost.add(epoch)
            case EpochLaunched(epoch):
                self._expect(epoch == self.launched + 1 and epoch <= self.planned, event)
                self.launched = epoch
            case EpochRead(epoch):
                self._expect(epoch <= self.launched, event)
                self._read = max(self._read, epoch)
            case EpochFinished(epoch):
                in_flight = self.committed < epoch <= self.launched
                self._expect(in_flight and epoch not in self._finished, event)
                self._finished.add(epoch)
                self._read = max(self._read, epoch)
            case Overlap(pays):
                self.overlap = pays
            case LookedUp(epoch):
                self._expect(epoch == self.committed + 1 and epoch in self._finished, event)
                self._looked_up = event
            case EpochCommitted(epoch):
                self._expect(epoch == self.committed + 1 and epoch in self._finished, event)
                self._on_committed(epoch)
            case Reported(news):
                self._expect(bool(self._news) and self._news[0] == news, event)
                self._news.popleft()

    def _on_began(self, event: Began) -> None:
        self._expect(not self.begun, event)
        self.begun = True
        self.leading = self.seat.role is Role.LEAD
        self.committed = self.launched = self._read = self.began = event.after
        self.planned = event.planned
        self.lost = set(event.lost)
        self._replay_until = event.planned
        self._recovered()

    def _on_committed(self, epoch: int) -> None:
        self._finished.discard(epoch)
        self.lost.discard(epoch)
        self._looked_up = None
        self.committed = epoch
        self._recovered()
        self._output_goes_on()

    def _recovered(self) -> None:
        if self._replay_until is None or self.committed < self._replay_until:
            return
        replayed = self._replay_until - self.began
        self._replay_until = None
        self._news.append(Recovered(self.began, replayed))
        if self.leading and self.seat.replica and self._owed is None and self._found is None:
            self._news.append(TookOver(replayed))

    def _output_goes_on(self) -> None:
        if self._owed is not None and self.committed >= self._owed:
            self._owed = None
            self._news.append(TookOver(0))

    def _expect(self, holds: bool, event: Event) -> None:
        if not holds:
            raise InvalidTransitionError(
                f"{event} is not possible now: committed {self.committed}, launched {self.launched},"
                f" planned {self.planned}",
                cure="this is a bug in Holdfast; the store is intact, start again",
                epoch=getattr(event, "epoch", None),
            )
