"""Roles: what a run of a fragment is asked to do."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

__all__ = ["Role", "Seat"]


class Role(Enum):
    """What a replica of a fragment does."""

    NONE = "nothing"
    COLD = "keeps the state"
    HOT = "keeps the state and the input"
    FOLLOW = "processes"
    SHARE = "processes and publishes along with the primary"
    LEAD = "is the primary"

    @property
    def stands_by(self) -> bool:
        return self in (Role.COLD, Role.HOT)

    @property
    def processes(self) -> bool:
        return self in (Role.FOLLOW, Role.SHARE, Role.LEAD)


@dataclass(frozen=True, slots=True)
class Seat:
    """What is asked of a run now."""

    role: Role = Role.LEAD
    shared: bool = False
    """Whether primary and secondary both commit."""
    precise: bool = True
    """Whether a recovery replays what was not processed, or leaves it out."""
    replica: bool = False
    """Whether other hosts may have seats for the same fragment."""
