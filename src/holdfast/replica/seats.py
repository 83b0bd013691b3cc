"""Seats: which host is the primary, which the secondary, and the transactions that change it. Pure.

Whoever takes a seat gets a token that is greater than all earlier ones. From then on the previous holder's token is
worthless, whatever that host still tries. No clock is read here: a seat can only be taken by a host that has seen no
heartbeat of the holder for long enough, and only if the holder has sent none since.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

import msgspec

from holdfast.replica.schemes import Scheme, wheel
from holdfast.replica.schemes.cold_standby import COLD_STANDBY
from holdfast.stored_json import JsonForm

__all__ = [
    "Activate",
    "Beat",
    "Enlist",
    "Member",
    "Resign",
    "SeatHolder",
    "SeatView",
    "Seats",
    "SeatsRequest",
    "Seize",
    "StopReplica",
    "Turn",
]


class SeatHolder(msgspec.Struct, frozen=True, array_like=True):
    host: str
    incarnation: int
    token: int


class Member(msgspec.Struct, frozen=True, array_like=True):
    """A host that beats: its process, how often it has beaten, and the scheme it is ready for."""

    incarnation: int
    beats: int
    ready: Scheme | None


class SeatView(Protocol):
    """What a host looks at to find its seat and to watch the others."""

    @property
    def primary(self) -> SeatHolder | None: ...
    @property
    def secondary(self) -> SeatHolder | None: ...
    @property
    def scheme(self) -> Scheme: ...
    @property
    def members(self) -> Mapping[str, Member]: ...


@dataclass(frozen=True, slots=True)
class Beat:
    """I live. Also carries what the reader has."""

    host: str
    incarnation: int
    delivered: int
    ready: Scheme | None


@dataclass(frozen=True, slots=True)
class Seize:
    """Make me the primary, if `rival` still has the seat and has not beaten since."""

    host: str
    incarnation: int
    rival: SeatHolder | None
    seen: Member | None


@dataclass(frozen=True, slots=True)
class Enlist:
    """Make me the secondary, on the same terms."""

    host: str
    incarnation: int
    rival: SeatHolder | None
    seen: Member | None


@dataclass(frozen=True, slots=True)
class Resign:
    """I give my seat back, the first or the second."""

    token: int


@dataclass(frozen=True, slots=True)
class StopReplica:
    """The output of a replica differs from what was committed for the epoch."""

    token: int
    seat: SeatHolder
    epoch: int


@dataclass(frozen=True, slots=True)
class Turn:
    """Take one step of the wheel, if so many were taken before."""

    turns: int
    to: Scheme


@dataclass(frozen=True, slots=True)
class Activate:
    """Have these hosts process, and no other, if so many such commands were given before; hosts that are not `placed`
    stay away. What is sent twice is done once, and what comes late is not done. None: no host commands any more."""

    orders: int
    active: tuple[str, ...] | None
    placed: tuple[str, ...] | None


SeatsRequest = Beat | Seize | Enlist | Resign | StopReplica | Turn | Activate


@dataclass(slots=True)
class Seats:
    """The transactions about seats, one after the other. Stores of before have no orders."""

    scheme: Scheme = COLD_STANDBY
    turns: int = 0
    token: int = 0
    primary: SeatHolder | None = None
    secondary: SeatHolder | None = None
    members: dict[str, Member] = field(default_factory=dict)
    stopped: tuple[tuple[str, int, int], ...] = ()
    orders: int = 0
    active: tuple[str, ...] | None = None
    """The hosts that were commanded to process; None where no host commands."""
    placed: tuple[str, ...] | None = None

    def change(self, request: SeatsRequest) -> bool:
        """Whether the request was fulfilled; if not, nothing has changed."""
        return bool(getattr(self, _METHODS[type(request)])(request))

    @property
    def secondary_ready(self) -> bool:
        """Whether the secondary is what the scheme says."""
        second = self.secondary
        member = None if second is None else self.members.get(second.host)
        return (
            second is not None
            and member is not None
            and member.incarnation == second.incarnation
            and member.ready is self.scheme
        )

    def stopped_at(self, host: str, incarnation: int) -> int | None:
        """The epoch for which a process was named, if it was: it gets no seat any more."""
        return next((epoch for *named, epoch in self.stopped if named == [host, incarnation]), None)

    def _is_primary(self, token: int) -> bool:
        return self.primary is not None and token == self.primary.token

    def _beat(self, beat: Beat) -> bool:
        before = self.members.get(beat.host)
        if before is not None and before.incarnation > beat.incarnation:
            return False  # a process that was replaced: what it says came late
        beats = before.beats + 1 if before is not None and before.incarnation == beat.incarnation else 1
        self.members[beat.host] = Member(beat.incarnation, beats, beat.ready)
        return True

    def _is_free(self, seat: SeatHolder | None, request: Seize | Enlist) -> bool:
        if seat != request.rival:
            return False
        if seat is None:
            return True
        member = self.members.get(seat.host)
        return member is None or member.incarnation != seat.incarnation or member == request.seen

    def _is_current(self, host: str, incarnation: int) -> bool:
        member = self.members.get(host)
        return member is not None and member.incarnation == incarnation and self.stopped_at(host, incarnation) is None

    def _seize(self, request: Seize) -> bool:
        if not self._is_current(request.host, request.incarnation) or not self._is_free(self.primary, request):
            return False
        self.token += 1
        self.primary = SeatHolder(request.host, request.incarnation, self.token)
        if self.secondary is not None and self.secondary.host == request.host:
            self.secondary = None
        return True

    def _enlist(self, request: Enlist) -> bool:
        if not self._is_current(request.host, request.incarnation) or not self._is_free(self.secondary, request):
            return False
        if self.primary is not None and self.primary.host == request.host:
            return False
        self.token += 1
        self.secondary = SeatHolder(request.host, request.incarnation, self.token)
        return True

    def _resign(self, request: Resign) -> bool:
        if self._is_primary(request.token):
            self.primary = None
        elif self.secondary is not None and request.token == self.secondary.token:
            self.secondary = None
        else:
            return False
        return True

    def _stop(self, request: StopReplica) -> bool:
        """Only a seat that is held can be named, and only by a host that has one itself; never the primary."""
        if self.secondary != request.seat:
            return False
        if not self._is_primary(request.token) and request.token != request.seat.token:
            return False
        current = {(host, member.incarnation) for host, member in self.members.items()}
        kept = (stopped for stopped in self.stopped if stopped[:2] in current)
        self.stopped = (*kept, (request.seat.host, request.seat.incarnation, request.epoch))
        self.secondary = None
        return True

    def _turn(self, request: Turn) -> bool:
        if request.turns != self.turns or not wheel.is_step(self.scheme, request.to):
            return False
        self.scheme = request.to
        self.turns += 1
        return True

    def _activate(self, request: Activate) -> bool:
        if request.orders != self.orders or request.active == ():
            return False
        self.active, self.placed = request.active, request.placed
        self.orders += 1
        if self.secondary is not None and not self._may_stay(self.secondary.host):
            self.secondary = None
        return True

    def _may_stay(self, host: str) -> bool:
        """Whether the second seat is of use to its holder: it is placed there and, while the first one is to change
        hands, to have it next."""
        if self.active is None or self.placed is None:
            return True
        leaves = self.primary is not None and self.primary.host not in self.active
        return host in (self.active if leaves else self.placed)

    # in a store

    def encode(self) -> str:
        return _FORM.encode(self)

    @staticmethod
    def decode(text: str) -> Seats:
        return _FORM.decode(text)


_FORM = JsonForm(Seats, "the seats of a fragment")
_METHODS: Mapping[type, str] = {
    Beat: "_beat",
    Seize: "_seize",
    Enlist: "_enlist",
    Resign: "_resign",
    StopReplica: "_stop",
    Turn: "_turn",
    Activate: "_activate",
}
