"""From the current seats to the commanded ones: which hosts process a fragment. Pure.

A command describes the desired result, not a step towards it; each host does its part again and again until the result
is reached. So a command may be lost, sent twice, or found by a process that started later. While the first seat changes
hands, both hosts process and publish, so that at every moment one does.
"""

from __future__ import annotations

from holdfast.replica.schemes import Scheme, wheel
from holdfast.replica.schemes.active_replication import ACTIVE_REPLICATION
from holdfast.replica.schemes.deployed import DEPLOYED
from holdfast.replica.seats import Enlist, Resign, Seats, Seize, Turn

__all__ = ["is_active", "resignation", "settled", "stays_away", "turns"]


def turns(seats: Seats) -> list[Turn]:
    """The steps of the wheel to the scheme that the command needs now; anybody may ask for them."""
    wanted = _scheme(seats)
    if wanted is None:
        return []
    return [Turn(seats.turns + at, to) for at, to in enumerate(wheel.path(seats.scheme, wanted))]


def resignation(seats: Seats, host: str, *, alone: bool) -> Resign | None:
    """Whether this host has to give the first seat away: it is not to process, and the other one has all it needs, and
    lives."""
    first, second = seats.primary, seats.secondary
    if alone or seats.active is None or first is None or first.host != host or host in seats.active:
        return None
    if second is None or second.host not in seats.active or not seats.scheme.both_commit:
        return None
    return Resign(first.token) if seats.secondary_ready else None


def stays_away(seats: Seats, host: str, request: Seize | Enlist, *, alone: bool) -> bool:
    """Whether a seat is not for this host. If there is no other host at all, any will do: `alone` is whether no live
    host has the second seat."""
    if seats.placed is None or seats.active is None:
        return False
    if isinstance(request, Seize):
        return host not in seats.placed and not alone
    leaves = seats.primary is not None and seats.primary.host not in seats.active
    return host not in (seats.active if leaves else seats.placed)


def settled(seats: Seats) -> bool:
    """Whether all is as commanded: the hosts that should process do, and no others."""
    if seats.active is None or seats.primary is None or seats.primary.host not in seats.active:
        return False
    if seats.scheme is not _scheme(seats):
        return False
    if len(seats.active) == 1:
        return True
    if seats.secondary is None or seats.secondary.host not in seats.active:
        return False
    return seats.secondary_ready


def is_active(seats: Seats, host: str) -> bool:
    """Whether a host should process, or must as long as no other does."""
    if seats.primary is not None and seats.primary.host == host:
        return True
    second = seats.secondary is not None and seats.secondary.host == host
    return second and seats.scheme.processes


def _scheme(seats: Seats) -> Scheme | None:
    """Both process if both are to, and while the first seat has to change hands."""
    if seats.active is None:
        return None
    others = [seat.host for seat in (seats.secondary,) if seat is not None and seat.host in seats.active]
    if seats.primary is None:
        # The next host to take it may not be the one that should have it: nothing is changed before that is known.
        return seats.scheme
    return ACTIVE_REPLICATION if others or len(seats.active) > 1 else DEPLOYED
