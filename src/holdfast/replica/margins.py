"""The safety margins of the controller."""

from __future__ import annotations

from dataclasses import dataclass, field

from holdfast.replica.prediction import Prices

__all__ = ["ControllerMargins"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerMargins:
    """How the controller looks ahead, and what keeps it from going back and forth.

    Measurements may come `report` seconds late and be wrong by `noise`, load and state may grow by `growth` per second,
    and every part of the gap in the output, as noticing the failure or the time between two epochs, may be longer than
    usual by `deviations` of its standard deviations: a scheme must keep the guarantee until it can be left. A slower
    scheme is taken when it would have kept the guarantee for `calm` seconds even if all were `slack` times as much, and
    if it saves at least `saving` of the money.
    """

    report: float = 10.0
    noise: float = 0.05
    growth: float = 0.005
    deviations: float = 2.0
    slack: float = 1.2
    calm: float = 900.0
    saving: float = 0.05
    prices: Prices = field(default_factory=Prices)
