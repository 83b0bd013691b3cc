"""The policy `none`: no state is made durable while a pipeline runs. If the volatile tier is lost, what the state was
made of is replayed: what open windows have seen, or everything where state has no end."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from holdfast.graph.policies.checkpoint_policy import (
    CheckpointPolicy,
    FragmentFacts,
    PolicyFigures,
    PricedPolicy,
    ReplayStart,
    ReplayStarts,
)

__all__ = ["NONE", "NonePolicy", "none"]


@dataclass(frozen=True, slots=True)
class NonePolicy(CheckpointPolicy):
    """Begins again with empty state, as late as that leads to the right state."""

    name: ClassVar[str] = "none"
    usage: ClassVar[str] = "'none'"

    def explain(self, fragment: FragmentFacts) -> list[str]:
        return ["state is never made durable: if the volatile tier is lost, its input is replayed;"]

    def replay_start(self, starts: ReplayStarts) -> ReplayStart:
        return "copy" if starts.empty is None else "empty"

    @classmethod
    def priced(cls, figures: PolicyFigures, failures: float, recovery: float | None) -> PricedPolicy | None:
        """Never chosen over an unbounded history: its cost would grow for ever."""
        if figures.history is None:
            return None
        return PricedPolicy(NONE, failures * figures.read * figures.history, figures.history * figures.busy)


NONE = NonePolicy()


def none() -> NonePolicy:
    """State is never made durable. If a host is lost, the input of its state is replayed: the input of open windows, or
    everything where state has no end."""
    return NONE
