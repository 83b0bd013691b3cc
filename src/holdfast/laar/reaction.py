"""How fast a controller reacts: input that changes over time, and what comes before the change is seen."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise

from holdfast.laar.model import Model

__all__ = ["AT_ONCE", "HOSTS", "TURN_SECONDS", "RateTrace", "Reaction", "expected_trace", "reaction_share"]

TURN_SECONDS = 150.0
"""From one peak of the paper's input to the next."""


@dataclass(frozen=True, slots=True)
class RateTrace:
    """The input: configurations by number, one after the other, and how long each holds."""

    parts: tuple[tuple[int, float], ...]

    def at(self, seconds: float) -> int:
        for config, length in self.parts:
            if seconds < length:
                return config
            seconds -= length
        return self.parts[-1][0]

    @property
    def seconds(self) -> float:
        return sum(length for _, length in self.parts)


@dataclass(frozen=True, slots=True)
class Reaction:
    """How long the controller takes to see a change: rates are looked at every so many seconds, and lower ones must be
    seen so often in a row."""

    every: float = 1.0
    measurements: int = 1

    @property
    def up(self) -> float:
        """Seconds to higher rates, at most."""
        return self.every

    @property
    def down(self) -> float:
        return self.every * self.measurements


AT_ONCE = Reaction()
"""As in the paper."""
HOSTS = Reaction(3.5, 4)
"""As hosts do it: the rate is taken over two seconds and known an epoch and half a second later; it must have been
lower for ten seconds more (`rate_controller.ON_HOSTS`)."""


def reaction_share(model: Model, trace: RateTrace, reaction: Reaction = AT_ONCE) -> Fraction:
    """The part of all tuples that comes while the controller has not yet seen that the input has changed: what is lost
    of them at most, whatever the strategies are."""
    inputs = [
        sum((model.rates[c][e.node] for pe in model.inflows for e in pe), Fraction(0)) for c in range(model.n_configs)
    ]
    total = sum((inputs[config] * Fraction(seconds) for config, seconds in trace.parts), Fraction(0))
    unseen = Fraction(0)
    for (before, _), (after, seconds) in pairwise(trace.parts):
        if before != after:
            higher = any(model.rates[after][s] > model.rates[before][s] for s in range(model.n_sources))
            unseen += inputs[after] * min(Fraction(seconds), Fraction(reaction.up if higher else reaction.down))
    return unseen / total if total else Fraction(0)


def expected_trace(model: Model) -> RateTrace:
    """What a descriptor says, in turns as the paper's trace has them, from the least demanding configuration up."""
    order = sorted(range(model.n_configs), key=lambda c: sum(model.work[c]))
    probs = [config.prob for config in model.descriptor.configs]
    return RateTrace(tuple((c, float(probs[c]) * TURN_SECONDS) for c in order if probs[c]) * 2)
