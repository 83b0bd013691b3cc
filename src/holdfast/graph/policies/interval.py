"""The policy `interval(c)`: every c seconds the state is copied to the stable tier, in the background. If the volatile
tier is lost, the last copy is restored and the epochs since are replayed."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from holdfast.errors import DeclarationError
from holdfast.graph.policies.checkpoint_policy import CheckpointPolicy, FragmentFacts, PolicyFigures, PricedPolicy
from holdfast.spans import Duration, parse_duration

__all__ = ["IntervalPolicy", "interval"]

_SHORTEST = 0.5
"""Seconds between checkpoints that are chosen: below that, `delta` does as well."""


@dataclass(frozen=True, slots=True)
class IntervalPolicy(CheckpointPolicy):
    """`seconds` is the c of interval(c)."""

    name: ClassVar[str] = "interval"
    usage: ClassVar[str] = "'interval(5s)' with your seconds"
    seconds: float

    def __str__(self) -> str:
        return f"interval({self.seconds:g} s)"

    @classmethod
    def parsed(cls, arguments: str | None) -> IntervalPolicy:
        if not arguments:
            raise ValueError(arguments)
        return interval(arguments)

    def explain(self, fragment: FragmentFacts) -> list[str]:
        return [
            f"state is copied to stable storage every {self.seconds:g} s, in the background;",
            "if the volatile tier is lost, the last copy is restored and the epochs since are replayed;",
        ]

    @property
    def strictness(self) -> tuple[float, ...]:
        return (self.seconds,)

    def copy_due(self, seconds: float, epochs: int) -> bool:
        return seconds >= self.seconds

    @property
    def copy_seconds(self) -> float:
        return self.seconds

    @classmethod
    def priced(cls, figures: PolicyFigures, failures: float, recovery: float | None) -> PricedPolicy:
        """With the longest interval that is replayed in time. Its copies hold what is left of several epochs' state; a
        shorter interval than the one that was measured has more of it."""
        seconds = figures.seconds
        if recovery is not None:
            seconds = max(_SHORTEST, min(seconds, figures.replayed_in(recovery)))
            seconds = math.floor(10 * seconds) / 10  # figures are noisy: not another interval for each of them
        fresh = min(max(figures.written, figures.fresh), figures.fresh * figures.seconds / seconds)
        cost = fresh + failures * figures.read * seconds / 2
        return PricedPolicy(IntervalPolicy(seconds), cost, seconds * figures.busy)


def interval(seconds: Duration) -> IntervalPolicy:
    """State is made durable at intervals, in the background. If a host is lost in between, the epochs since the last
    checkpoint are replayed, so the sources must still have their input."""
    length = parse_duration(seconds) / 1e9
    if length <= 0:
        raise DeclarationError(f"a checkpoint interval of {length:g} s", cure="give a positive duration, e.g. '5s'")
    return IntervalPolicy(length)
