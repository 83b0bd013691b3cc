"""How a shadow follows: the state to begin with becomes its own, it goes on with what it makes of every epoch, and that
is compared with what was committed.
"""

from __future__ import annotations

from holdfast.engine.delivery import SinkDelivery
from holdfast.engine.replica_history import check_history
from holdfast.engine.run_context import RunContext
from holdfast.epoch.record import EpochRecord
from holdfast.pstream.punit import copy_punit
from holdfast.store import Tiers

__all__ = ["copy_state", "look_at"]


def copy_state(tiers: Tiers, record: EpochRecord) -> None:
    """Bring the state of a record into the volatile tier: others replace it, and remove what nothing else needs."""
    local = tiers.at("volatile").alone
    for unit in record.units():
        copy_punit(tiers.at("stable"), unit, local)


def look_at(
    run: RunContext, delivery: SinkDelivery, epoch: int, winner: EpochRecord, mine: EpochRecord, *, silent: bool
) -> EpochRecord:
    """What to continue with after an epoch. A `silent` one is run for its state only; the output of another one goes
    when it was looked at."""
    assert run.shadow is not None
    check_history(run.program.name, epoch, winner, mine)
    if not silent:
        run.shadow.compared(epoch, winner, mine, run.program, run.tiers)
        delivery.discard(epoch, mine)
    return mine
