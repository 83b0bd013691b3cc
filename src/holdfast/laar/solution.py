"""What a search for a strategy comes back with."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction

import msgspec

from holdfast.laar.descriptor import Descriptor
from holdfast.laar.strategy import NamedActivations, Placement, Strategy
from holdfast.stored_json import encode_json

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

    def encode(self, descriptor: Descriptor) -> str:
        """As `holdfast laar solve --json` prints it."""
        found = self.strategy
        moved = found is not None and found.placement != descriptor.placement
        return encode_json(
            _ToldSolution(
                status=str(self.status),
                cost=None if self.cost is None else float(self.cost),
                ic=None if self.ic is None else float(self.ic),
                bound=self.bound,
                seconds=self.seconds,
                strategy=None if found is None else found.named(descriptor),
                penalty=float(self.penalty) or None,
                placement=found.placement if found is not None and moved else None,
            )
        )


class _ToldSolution(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    status: str
    cost: float | None
    ic: float | None
    bound: float | None
    seconds: float
    strategy: NamedActivations | None
    penalty: float | None = None
    placement: Placement | None = None
