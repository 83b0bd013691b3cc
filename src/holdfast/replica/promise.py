"""What the user asked for, in figures, and how cautiously the controller keeps it."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from holdfast.errors import DeclarationError
from holdfast.replica.predict import Prices

__all__ = ["Caution", "Delivery", "Promise"]


class Delivery(Enum):
    """Precise recovery replays what was not processed; gap recovery leaves it out, and never has anything twice."""

    EXACTLY_ONCE = "exactly-once"
    GAP = "gap"


@dataclass(frozen=True, slots=True, kw_only=True)
class Promise:
    """`recovery` bounds the seconds of a recovery once the failure is noticed, `budget` the money per hour for the
    secondary. None: no bound."""

    recovery: float | None = None
    delivery: Delivery = Delivery.EXACTLY_ONCE
    budget: float | None = None

    def __post_init__(self) -> None:
        if self.recovery is not None and not self.recovery > 0:
            raise DeclarationError(f"a recovery within {self.recovery:g} s", cure="give a positive duration")
        if self.budget is not None and self.budget < 0:
            raise DeclarationError(f"a budget of {self.budget:g}", cure="give the money per hour, 0 or more")

    @property
    def precise(self) -> bool:
        return self.delivery is Delivery.EXACTLY_ONCE


@dataclass(frozen=True, slots=True, kw_only=True)
class Caution:
    """How the controller looks ahead, and what keeps it from going back and forth.

    Measurements may come `report` seconds late and be wrong by `noise`, and load and state may grow by `growth` per
    second: a scheme must keep the promise until it can be left. A slower scheme is taken when it would have kept the
    promise for `calm` seconds even if all were `slack` times as much, and if it saves at least `saving` of the money.
    """

    report: float = 10.0
    noise: float = 0.05
    growth: float = 0.005
    slack: float = 1.2
    calm: float = 900.0
    saving: float = 0.05
    prices: Prices = field(default_factory=Prices)
