"""The part that a run has in commits: all that leader, sharer and follower do in different ways when an epoch ends."""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.engine.roles import Role, Seat
from holdfast.epoch.execution import Execution
from holdfast.epoch.facts import EpochFacts
from holdfast.epoch.record import EpochRecord
from holdfast.graph.policies import tier_of
from holdfast.store import Tier

__all__ = ["CommitPart", "LedEpoch", "part_of"]


@dataclass(frozen=True, slots=True)
class CommitPart:
    """It follows from the seat, and from whether the run leads."""

    alone: bool
    """No other host relies on what is committed: a record may hold only what has changed, and files need not be asked
    for before they are published."""
    leads: bool
    """Checkpoints, pace and measurements are this run's. A run that does not lead leaves them as the last record has
    them."""
    commits: bool
    """It may be the first to commit. A run that only follows begins no merges: nothing would refer to their output."""
    publishes_adopted: bool
    """It also publishes what another has committed."""

    def tier(self, checkpoints: Tier, policy: str | None) -> Tier:
        """Where tasks write state: as the `checkpoints` of a leader say, as the last record's `policy` does for a run
        that shares, and to the memory of this host for a run that follows."""
        if self.leads:
            return checkpoints
        return tier_of(policy) if self.commits else "volatile"


@dataclass(frozen=True, slots=True)
class LedEpoch:
    """An epoch that the leader has committed, or found committed if it was not `first`, and continues from."""

    epoch: int
    record: EpochRecord
    facts: EpochFacts
    execution: Execution
    busy: float
    first: bool


def part_of(seat: Seat, *, leading: bool) -> CommitPart:
    return CommitPart(
        alone=not seat.replica,
        leads=leading,
        commits=leading or seat.role is Role.SHARE,
        publishes_adopted=seat.shared,
    )
