"""What a search for a strategy comes back with."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction
from typing import Any

from holdfast.laar.descriptor import Descriptor
from holdfast.laar.strategy import Strategy

__all__ = ["Solution", "Status"]


class Status(StrEnum):
    """What is known about a problem at the end of a search."""

    OPTIMAL = "optimal"
    """No strategy is cheaper: this was proven."""
    FEASIBLE = "feasible"
    """The time was over: there may be a cheaper strategy, but not below the bound."""
    INFEASIBLE = "infeasible"
    """There is no strategy: this was proven."""
    UNKNOWN = "unknown"
    """The time was over before anything was found or proven."""


@dataclass(frozen=True, slots=True)
class Solution:
    """The best strategy found, verified in fractions, and a lower bound of every strategy's cost."""

    status: Status
    cost: Fraction | None
    ic: Fraction | None
    bound: float | None
    seconds: float
    strategy: Strategy | None
    penalty: Fraction = Fraction(0)
    """What completeness below the target costs, where that is allowed; `bound` is of cost and penalty."""

    def to_json(self, descriptor: Descriptor) -> dict[str, Any]:
        said: dict[str, Any] = {
            "status": str(self.status),
            "cost": None if self.cost is None else float(self.cost),
            "ic": None if self.ic is None else float(self.ic),
            "bound": self.bound,
            "seconds": self.seconds,
            "strategy": None if self.strategy is None else self.strategy.to_json(descriptor),
        }
        if self.penalty:
            said["penalty"] = float(self.penalty)
        if self.strategy is not None and self.strategy.placement != descriptor.placement:
            said["placement"] = [list(hosts) for hosts in self.strategy.placement]
        return said
