"""The policy `delta`: each epoch's changes of state are on the stable tier before the epoch is committed, so that
nothing is ever replayed but what was not committed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from holdfast.graph.policies.checkpoint_policy import CheckpointPolicy, FragmentFacts, PolicyFigures, PricedPolicy
from holdfast.store import Tier

__all__ = ["DELTA", "DeltaPolicy", "delta"]


@dataclass(frozen=True, slots=True)
class DeltaPolicy(CheckpointPolicy):
    """Copies only what another policy has left on the volatile tier, and that at once."""

    name: ClassVar[str] = "delta"
    usage: ClassVar[str] = "'delta'"
    tier: ClassVar[Tier] = "stable"

    def explain(self, fragment: FragmentFacts) -> list[str]:
        return ["each epoch's state changes are p-units on stable storage before the epoch is committed;"]

    def copy_due(self, seconds: float, epochs: int) -> bool:
        return True

    @classmethod
    def priced(cls, figures: PolicyFigures, failures: float, recovery: float | None) -> PricedPolicy:
        return PricedPolicy(DELTA, figures.written, 0.0)


DELTA = DeltaPolicy()


def delta() -> DeltaPolicy:
    """All state is durable with each epoch: recovery continues with the next one."""
    return DELTA
