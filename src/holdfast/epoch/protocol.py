"""The epoch protocol: which epoch to plan, launch and commit next.

Events in, instructions out, no clock and no I/O. Epochs are planned, launched and committed in their order. At most
two are in flight: epoch e + 1 is launched when the tasks of epoch e have read their input, so that it reads while e
is assembled.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from holdfast.errors import InvalidTransitionError

__all__ = ["Act", "EpochProtocol", "Instruction"]


class Act(Enum):
    PLAN = "plan"
    LAUNCH = "launch"
    COMMIT = "commit"
    FINISH = "finish"


@dataclass(frozen=True, slots=True)
class Instruction:
    act: Act
    epoch: int


@dataclass(slots=True)
class EpochProtocol:
    """`committed` is the last committed epoch, `planned` the last one whose plan is fixed."""

    committed: int
    planned: int
    overlap: bool = True
    launched: int = field(init=False)
    read: int = field(init=False)
    _finished: set[int] = field(default_factory=set)
    _ending: bool = False

    def __post_init__(self) -> None:
        self.launched = self.committed
        self.read = self.committed

    def next(self) -> Instruction | None:
        """What to do now, or None to wait for an event. Asking twice gives the same answer."""
        if self.committed + 1 in self._finished:
            return Instruction(Act.COMMIT, self.committed + 1)
        if self._may_launch():
            if self.planned > self.launched:
                return Instruction(Act.LAUNCH, self.launched + 1)
            if not self._ending:
                return Instruction(Act.PLAN, self.planned + 1)
        if self._ending and self.planned == self.committed:
            return Instruction(Act.FINISH, self.committed)
        return None

    def _may_launch(self) -> bool:
        in_flight = self.launched - self.committed
        if in_flight == 0:
            return True
        return self.overlap and in_flight == 1 and self.read == self.launched

    def on_planned(self, epoch: int) -> None:
        self._expect(epoch == self.planned + 1, "planned", epoch)
        self.planned = epoch

    def on_launched(self, epoch: int) -> None:
        self._expect(epoch == self.launched + 1 and epoch <= self.planned, "launched", epoch)
        self.launched = epoch

    def on_read(self, epoch: int) -> None:
        """The tasks of the epoch have read their input."""
        self._expect(epoch <= self.launched, "read", epoch)
        self.read = max(self.read, epoch)

    def on_finished(self, epoch: int) -> None:
        """The epoch's job has ended well; it can be committed when its turn comes."""
        self._expect(self.committed < epoch <= self.launched and epoch not in self._finished, "finished", epoch)
        self._finished.add(epoch)
        self.read = max(self.read, epoch)

    def on_committed(self, epoch: int) -> None:
        self._expect(epoch == self.committed + 1 and epoch in self._finished, "committed", epoch)
        self._finished.discard(epoch)
        self.committed = epoch

    def end(self) -> None:
        """Plan no more: what is planned is run and committed, then the protocol finishes."""
        self._ending = True

    def _expect(self, holds: bool, event: str, epoch: int) -> None:
        if not holds:
            raise InvalidTransitionError(
                f"epoch {epoch} cannot be {event}: committed {self.committed}, launched {self.launched}, "
                f"planned {self.planned}",
                cure="this is a fault in the program; the store is unharmed, start again",
                epoch=epoch,
            )
