"""What must be so when nothing has failed for a while: the fragment goes on, and has the secondary it should have."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.replica.invariants import ViolationError
from holdfast.replica.schemes import Scheme

if TYPE_CHECKING:
    from holdfast.replica.simulation import World

__all__ = ["check_progress"]

_LATEST_SECONDS = 1.0
_MOST_UNREAD = 4
_MOST_FILES = 60


def check_progress(world: World, end: float) -> None:
    checker = world.checker
    last = max(world.committed_at, default=0.0)
    behind = max(head - read for head, read in zip(world.heads, checker.ends(checker.committed), strict=True))
    if last < end - _LATEST_SECONDS and behind:  # inputs may be silent for as long
        calm = world.scenario.calm_at
        raise ViolationError(f"no epoch was committed after {last:.2f} s, though nothing failed after {calm:g} s")
    if checker.committed - checker.taken > _MOST_UNREAD:
        raise ViolationError(f"the reader has epoch {checker.taken} of {checker.committed}, long after the faults")
    if len(world.outputs) + len(world.checkpoints) > _MOST_FILES:
        raise ViolationError(f"{len(world.outputs)} outputs and {len(world.checkpoints)} checkpoints are kept")
    if behind > world.timing.most_rows:
        raise ViolationError(f"{behind} events of an input are not processed, long after the faults")
    if world.scenario.odd is None:
        _check_secondary(world)
    else:
        _check_stopped(world, end)


def _check_secondary(world: World) -> None:
    scheme, seat = world.ledger.scheme, world.ledger.secondary
    if scheme is Scheme.PASSIVE_REPLICATION:
        if len(world.processes) != 1:
            raise ViolationError(f"{len(world.processes)} hosts run, and passive replication needs one")
        return
    member = None if seat is None else world.ledger.members.get(seat.host)
    if member is None or member.ready is not scheme:
        raise ViolationError(f"long after the faults the secondary is {seat}, {member}, not {scheme.value}")


def _check_stopped(world: World, end: float) -> None:
    """A secondary whose results differ has no seat for long."""
    seat = world.ledger.secondary
    for (incarnation, epoch), (value, at) in world.odd_runs.items():
        if seat is None or incarnation != seat.incarnation:
            continue
        if not world.scenario.calm_at + _LATEST_SECONDS < at < end - _LATEST_SECONDS:
            continue  # what was made before may have been for another seat, and was given up with it
        if epoch < world.checker.committed - 2 * _MOST_UNREAD and world.checker.values[epoch] not in (value, None):
            raise ViolationError(f"{seat.host} made {value} of epoch {epoch}, which differs, and was not stopped")
