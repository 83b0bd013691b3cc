"""What a simulated host has and does, by the abilities of its scheme."""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.replica.keeper import Keeper
from holdfast.replica.schemes import Scheme
from holdfast.replica.schemes.abilities import HAS_PROGRAM, HAS_STATE, PROCESSES, PUBLISHES, RECEIVES_INPUT
from holdfast.replica.seats import SeatView

__all__ = ["Equipment", "equipment_of", "wanted"]


@dataclass(frozen=True, slots=True)
class Equipment:
    program: bool = False
    state: bool = False
    input: bool = False
    processes: bool = False
    publishes: bool = False


def equipment_of(scheme: Scheme) -> Equipment:
    parts = (HAS_PROGRAM, HAS_STATE, RECEIVES_INPUT, PROCESSES, PUBLISHES)
    return Equipment(*(part in scheme.abilities for part in parts))


def wanted(keeper: Keeper, view: SeatView) -> Equipment:
    """What a host should have and do: everything as the primary, nothing without a seat."""
    if keeper.seat is None:
        return Equipment()
    return Equipment(True, True, True, True, True) if keeper.is_primary else equipment_of(view.scheme)
