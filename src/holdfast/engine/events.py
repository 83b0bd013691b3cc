"""Events: what the loop of a fragment reports to its machine."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import TypeAlias

from holdfast.engine.instructions import News
from holdfast.engine.roles import Seat
from holdfast.epoch.execution import EpochFinished, EpochRead

__all__ = [
    "Began",
    "EpochCommitted",
    "EpochLaunched",
    "EpochPlanned",
    "Event",
    "Leads",
    "LookedBack",
    "LookedUp",
    "Overlap",
    "Reported",
    "Seated",
    "Stopped",
]


@dataclass(frozen=True, slots=True)
class Seated:
    """The seat as it is now."""

    seat: Seat


@dataclass(frozen=True, slots=True)
class Stopped:
    """Plan no more: somebody has asked for it, a limit was reached, or the sources have ended. A run that does not lead
    ends at once; a leader first commits what is planned."""


@dataclass(frozen=True, slots=True)
class Began:
    """State is back as it was `after` an epoch. The store has epochs that are committed up to `committed`, of which the
    `lost` ones are to be made again, and planned up to `planned`."""

    after: int
    committed: int
    planned: int
    lost: Collection[int] = ()


@dataclass(frozen=True, slots=True)
class LookedBack:
    """The primary before has committed epochs up to `committed` and planned them up to `planned`."""

    committed: int
    planned: int


@dataclass(frozen=True, slots=True)
class Leads:
    """The store was taken over."""


@dataclass(frozen=True, slots=True)
class EpochPlanned:
    """The plan of an epoch is fixed; with `committed`, another host has run and committed it already."""

    epoch: int
    committed: bool = False


@dataclass(frozen=True, slots=True)
class EpochLaunched:
    epoch: int


@dataclass(frozen=True, slots=True)
class Overlap:
    """Whether a second epoch may be launched while the first is in flight, from now on."""

    pays: bool


@dataclass(frozen=True, slots=True)
class LookedUp:
    """What the store has of an epoch that was run here: whether another host has committed it, or it is planned."""

    epoch: int
    committed: bool


@dataclass(frozen=True, slots=True)
class EpochCommitted:
    """The epoch is committed, by this run or by another, and the next one begins from it."""

    epoch: int


@dataclass(frozen=True, slots=True)
class Reported:
    """The news was reported."""

    news: News


Event: TypeAlias = (
    Seated
    | Stopped
    | Began
    | LookedBack
    | Leads
    | EpochPlanned
    | EpochLaunched
    | EpochRead
    | EpochFinished
    | Overlap
    | LookedUp
    | EpochCommitted
    | Reported
)
