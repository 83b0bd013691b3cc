"""Whether a replica and the committed epochs have the same history, and what a secondary's record adopts from the
commit.

A recovery that leaves a gap changes the state after epochs that a secondary may already have run and adopted. What the
secondary computes from its old state is then no output of the fragment, so it starts again.
"""

from __future__ import annotations

from holdfast.epoch.record import EpochRecord
from holdfast.epoch.record_change import record_of
from holdfast.errors import EpochFailedError
from holdfast.graph.policies import tier_of
from holdfast.meta import MetaStore
from holdfast.store import Tiers

__all__ = ["all_stable", "base_ahead", "cannot_go_on", "check_history", "inherited", "is_stable"]


def cannot_go_on(fragment: str, epoch: int, why: str) -> EpochFailedError:
    return EpochFailedError(
        f"this replica of '{fragment}' cannot continue: {why}",
        cure="it restarts from the last checkpoint",
        epoch=epoch,
    )


def check_history(fragment: str, epoch: int, stored: EpochRecord, mine: EpochRecord) -> None:
    """Refuse to continue with epoch `epoch` if what this replica has does not belong to what the store has."""
    if stored.gaps != mine.gaps:
        raise cannot_go_on(fragment, epoch, "epochs were left out that it has run")


def inherited(
    fragment: str, epoch: int, record: EpochRecord, last: int, before: EpochRecord, *, stable: bool
) -> EpochRecord:
    """The record of a secondary's commit of `epoch`, where `last` is the last one that is committed."""
    if last == epoch - 1:  # else the primary was first
        check_history(fragment, epoch, before, record)
    return record.after(last, before, stable=stable)


def base_ahead(meta: MetaStore, fragment: str, epoch: int) -> set[int]:
    """Where the last commit would begin again, if a secondary is ahead of `epoch`: it has that from the commits before
    it, as they were then, and nothing of it may go until they are behind."""
    last = meta.last_commit(fragment)
    base = None if last is None or last.epoch <= epoch else record_of(last).base
    return set() if base is None else {base.epoch}


def is_stable(tiers: Tiers, record: EpochRecord) -> bool:
    """Whether others find the state of a record."""
    return (record.base is None and tier_of(record.policy) == "stable") or all_stable(tiers, record)


def all_stable(tiers: Tiers, record: EpochRecord) -> bool:
    return all(tiers.stable_only.found(name) is not None for name in record.files())
