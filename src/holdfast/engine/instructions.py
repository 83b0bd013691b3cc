"""Instructions: what the machine of a fragment can ask its loop to do next."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias

from holdfast.engine.roles import Role

__all__ = [
    "AwaitCommit",
    "Begin",
    "CommitEpoch",
    "Finish",
    "GiveUp",
    "How",
    "Instruction",
    "LaunchEpoch",
    "Lead",
    "LetGo",
    "LookBack",
    "LookUp",
    "News",
    "PlanEpoch",
    "Recovered",
    "StandBy",
    "TookOver",
    "Wait",
]


class How(Enum):
    """How an epoch that was run here is committed."""

    OWN = "as the primary"
    AGAIN = "as the primary; it was committed before, and its state was lost"
    SHARED = "as the secondary, unless the primary was first"
    ADOPTED = "by the primary; this run continues with what was committed"


@dataclass(frozen=True, slots=True)
class StandBy:
    """Fetch what is new of the state, for a hot standby also of the input, and wait a little."""

    role: Role


@dataclass(frozen=True, slots=True)
class LetGo:
    """This run is no longer needed: discard what only it knows of, and end."""


@dataclass(frozen=True, slots=True)
class GiveUp:
    """Another host leads now: end at once."""


@dataclass(frozen=True, slots=True)
class Begin:
    """Bring the state back; as the leader also take over the store. With `gap`, what would be replayed is left out."""

    lead: bool
    gap: bool


@dataclass(frozen=True, slots=True)
class LookBack:
    """See how far the primary before has come."""


@dataclass(frozen=True, slots=True)
class Lead:
    """All that the primary before has committed was adopted: take over the store."""


@dataclass(frozen=True, slots=True)
class PlanEpoch:
    """Fix the input of an epoch. With `look`, another host may have planned it; without `make`, only another may."""

    epoch: int
    look: bool
    make: bool


@dataclass(frozen=True, slots=True)
class LaunchEpoch:
    """Run an epoch. A `silent` one is run for its state only: it was committed before."""

    epoch: int
    silent: bool


@dataclass(frozen=True, slots=True)
class LookUp:
    """See whether another host has committed an epoch that was run here."""

    epoch: int


@dataclass(frozen=True, slots=True)
class AwaitCommit:
    """The primary has not committed the epoch yet: wait a little, and look up again."""

    epoch: int


@dataclass(frozen=True, slots=True)
class CommitEpoch:
    epoch: int
    how: How


@dataclass(frozen=True, slots=True)
class Wait:
    """Wait for what is in flight."""


@dataclass(frozen=True, slots=True)
class Finish:
    """The sources have ended, or the run was stopped: end cleanly."""


@dataclass(frozen=True, slots=True)
class Recovered:
    """Tell that all that was planned before the start is committed."""

    after: int
    replayed: int


@dataclass(frozen=True, slots=True)
class TookOver:
    """Report that output continues under this primary."""

    replayed: int


News: TypeAlias = Recovered | TookOver
Instruction: TypeAlias = (
    StandBy
    | LetGo
    | GiveUp
    | Begin
    | LookBack
    | Lead
    | PlanEpoch
    | LaunchEpoch
    | LookUp
    | AwaitCommit
    | CommitEpoch
    | Wait
    | Finish
    | Recovered
    | TookOver
)
