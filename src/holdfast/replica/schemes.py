"""The six schemes of keeping a secondary, and the wheel on which one is turned into another while running.

The wheel is an arc: each scheme has at most two neighbours, and the fastest and the cheapest one are its ends. A step
adds one ability to the secondary or takes one away, and each step's actions are in such an order that at every moment
between them the secondary is worth at least as much as in the slower of the two schemes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from holdfast.errors import InvalidTransitionError

__all__ = ["EQUIPMENT", "RECOVERY", "Change", "Equipment", "Scheme", "Step", "changes", "direct", "path"]


class Scheme(Enum):
    """In the order of recovery time, the fastest first."""

    ACTIVE_REPLICATION = "active replication"
    ACTIVE_STANDBY = "active standby"
    PASSIVE_STANDBY_HOT = "passive standby hot"
    PASSIVE_STANDBY_COLD = "passive standby cold"
    DEPLOYED = "deployed"
    PASSIVE_REPLICATION = "passive replication"

    @property
    def rank(self) -> int:
        """0 for the scheme that recovers fastest."""
        return _RANK[self]

    @property
    def equipment(self) -> Equipment:
        return EQUIPMENT[self]

    @property
    def recovery(self) -> tuple[Step, ...]:
        return RECOVERY[self]

    # Members are compared by identity and looked up all the time; the enum's own hash is that of the name.
    __hash__ = object.__hash__


_RANK = {scheme: rank for rank, scheme in enumerate(Scheme)}


@dataclass(frozen=True, slots=True)
class Equipment:
    """What a secondary has and does. The program and the state belong to one pipeline; a warm session does not, so
    that a host which is only deployed can serve any of them."""

    process: bool = False
    session: bool = False
    program: bool = False
    state: bool = False
    input: bool = False
    processes: bool = False
    publishes: bool = False


def _first(number: int) -> Equipment:
    return Equipment(*(place < number for place in range(7)))


EQUIPMENT: Mapping[Scheme, Equipment] = {
    Scheme.ACTIVE_REPLICATION: _first(7),
    Scheme.ACTIVE_STANDBY: _first(6),
    Scheme.PASSIVE_STANDBY_HOT: _first(5),
    Scheme.PASSIVE_STANDBY_COLD: _first(4),
    Scheme.DEPLOYED: _first(2),
    Scheme.PASSIVE_REPLICATION: _first(0),
}


class Step(Enum):
    """What a recovery does, after the failure was noticed."""

    DEPLOY = "start a process"
    SESSION = "open a session"
    PROGRAM = "load the program"
    CONNECT_DOWNSTREAM = "take the lease and connect to readers"
    CONNECT_UPSTREAM = "connect to the inputs"
    LOAD_STATE = "read the checkpoint"
    REPLAY_QUEUE = "process the input that is in the queue"
    REPLAY_UPSTREAM = "have the input sent again and process it"
    PUBLISH = "publish what was withheld"


_RESTORE = (Step.CONNECT_DOWNSTREAM, Step.CONNECT_UPSTREAM, Step.LOAD_STATE, Step.REPLAY_UPSTREAM)

RECOVERY: Mapping[Scheme, tuple[Step, ...]] = {
    Scheme.ACTIVE_REPLICATION: (),
    Scheme.ACTIVE_STANDBY: (Step.CONNECT_DOWNSTREAM, Step.PUBLISH),
    Scheme.PASSIVE_STANDBY_HOT: (Step.CONNECT_DOWNSTREAM, Step.REPLAY_QUEUE),
    Scheme.PASSIVE_STANDBY_COLD: (Step.CONNECT_DOWNSTREAM, Step.CONNECT_UPSTREAM, Step.REPLAY_UPSTREAM),
    Scheme.DEPLOYED: (Step.PROGRAM, *_RESTORE),
    Scheme.PASSIVE_REPLICATION: (Step.DEPLOY, Step.SESSION, Step.PROGRAM, *_RESTORE),
}


class Change(Enum):
    """What is done to a secondary on a step of the wheel."""

    START_PROCESS = "start a process"
    STOP_PROCESS = "stop the process"
    OPEN_SESSION = "open a session"
    CLOSE_SESSION = "close the session"
    LOAD_PROGRAM = "load the program"
    DROP_PROGRAM = "drop the program"
    FETCH_STATE = "fetch the state"
    DROP_STATE = "drop the state"
    START_SYNC = "follow the primary's state"
    STOP_SYNC = "stop following the primary's state"
    SUBSCRIBE = "receive the input"
    UNSUBSCRIBE = "stop receiving the input"
    START_PROCESSING = "process from its own state on"
    STOP_PROCESSING = "stop processing"
    START_PUBLISHING = "publish from the next epoch on"
    STOP_PUBLISHING = "withhold output"


_UP: Mapping[Scheme, tuple[Change, ...]] = {
    Scheme.PASSIVE_REPLICATION: (Change.START_PROCESS, Change.OPEN_SESSION),
    Scheme.DEPLOYED: (Change.LOAD_PROGRAM, Change.FETCH_STATE, Change.START_SYNC),
    Scheme.PASSIVE_STANDBY_COLD: (Change.SUBSCRIBE,),
    # The state is followed until its own is as new: there is no moment without one.
    Scheme.PASSIVE_STANDBY_HOT: (Change.START_PROCESSING, Change.STOP_SYNC),
    Scheme.ACTIVE_STANDBY: (Change.START_PUBLISHING,),
}
"""By the scheme that is left for the next faster one."""

_DOWN: Mapping[Scheme, tuple[Change, ...]] = {
    Scheme.ACTIVE_REPLICATION: (Change.STOP_PUBLISHING,),
    Scheme.ACTIVE_STANDBY: (Change.START_SYNC, Change.STOP_PROCESSING),
    Scheme.PASSIVE_STANDBY_HOT: (Change.UNSUBSCRIBE,),
    Scheme.PASSIVE_STANDBY_COLD: (Change.STOP_SYNC, Change.DROP_STATE, Change.DROP_PROGRAM),
    Scheme.DEPLOYED: (Change.CLOSE_SESSION, Change.STOP_PROCESS),
}
"""By the scheme that is left for the next slower one."""


def direct(scheme: Scheme, to: Scheme) -> bool:
    """Whether the wheel has a step from the one to the other."""
    return abs(scheme.rank - to.rank) == 1


def path(scheme: Scheme, to: Scheme) -> tuple[Scheme, ...]:
    """The schemes to pass from the one to the other, the last being `to`; empty if it is the same."""
    order = tuple(Scheme)
    if scheme.rank < to.rank:
        return order[scheme.rank + 1 : to.rank + 1]
    return order[to.rank : scheme.rank][::-1]


def changes(scheme: Scheme, to: Scheme) -> tuple[Change, ...]:
    """What one step of the wheel does to the secondary, in order."""
    if not direct(scheme, to):
        raise InvalidTransitionError(
            f"there is no step from {scheme.value} to {to.value} on the wheel",
            cure=f"it is {to.value} already"
            if scheme is to
            else f"go {' → '.join(each.value for each in (scheme, *path(scheme, to)))}",
        )
    return _UP[scheme] if to.rank < scheme.rank else _DOWN[scheme]
