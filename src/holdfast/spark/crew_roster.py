"""The members of a crew: workers with a number, which run tasks, and spares, which replace a lost worker.

Events of workers in, the assignment of numbers out.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field

from holdfast.epoch.crew_messages import Enrol
from holdfast.task.channel import Channel

__all__ = ["CrewMember", "CrewRoster"]


@dataclass(slots=True, eq=False)
class CrewMember:
    """A worker that has enrolled, when it was heard of last, and the CPU time it has spent by then."""

    channel: Channel
    enrolment: Enrol
    heard: float
    spent: float = 0.0
    number: int | None = None
    """None of a spare."""
    doubted: bool = False
    """Whether its connection to a fellow has failed since an epoch has ended."""


@dataclass(slots=True)
class CrewRoster:
    """`wanted` workers are to have a number; meanwhile `size` of them do, when all of those stand."""

    wanted: int
    size: int = 0
    members: list[CrewMember] = field(default_factory=list)

    @property
    def stands(self) -> bool:
        return 0 < self.size == len(self.numbered)

    @property
    def needed(self) -> int:
        return self.size or self.wanted

    @property
    def found(self) -> str:
        return f"{len(self.members)} of {self.needed}"

    @property
    def changes(self) -> bool:
        """Whether another size is wanted, and possible now."""
        return self.size != self.wanted <= len(self.members)

    @property
    def numbered(self) -> dict[int, CrewMember]:
        return {member.number: member for member in self.members if member.number is not None}

    @property
    def spares(self) -> Iterator[CrewMember]:
        return (member for member in self.members if member.number is None)

    def of(self, channel: Channel) -> CrewMember | None:
        return next((member for member in self.members if member.channel is channel), None)

    def of_job(self, job: int) -> list[CrewMember]:
        return [member for member in self.members if member.enrolment.job == job]

    def heard(self, channel: Channel, spent: float) -> None:
        """A worker gives a sign of life. Called by the threads that listen."""
        member = self.of(channel)
        if member is not None:
            member.heard, member.spent = time.monotonic(), spent

    def excuse(self, since: float) -> None:
        """Nobody is to blame for having been silent before."""
        for member in self.members:
            member.heard = max(member.heard, since)

    def trust(self) -> None:
        """An epoch has ended: all have reached each other."""
        for member in self.members:
            member.doubted = False

    def regroup(self) -> bool:
        """Assign numbers again, if there are enough workers: as many as are wanted or, short of those, as had one
        before. Who has a number keeps it, if it still exists: the state of its partitions is in its memory."""
        size = self.wanted if len(self.members) >= self.wanted else self.size
        if not 0 < size <= len(self.members):
            return False
        for member in self.members:
            if member.number is not None and member.number >= size:
                member.number = None
        taken = self.numbered
        free = list(self.spares)
        for number in range(size):
            if number not in taken:
                free.pop(0).number = number
        self.size = size
        return True
