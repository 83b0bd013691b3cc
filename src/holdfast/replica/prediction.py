"""Predictions, from measurements: how long a recovery takes under each scheme, and what the scheme costs. Pure.

Recovery time is the gap in the output in the worst case: from the last epoch before the failure to the first one after
it. That is the usual time between two epochs, the time to detect the failure, and the phases of the recovery; the
failure happens just before the next commit, checkpoint or copy of the state. If both hosts publish, there is nothing to
detect. A factor per scheme, which follows the measured gaps, corrects the predictions.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

from holdfast.replica.fragment_metrics import FragmentMetrics
from holdfast.replica.schemes import Scheme, wheel
from holdfast.replica.schemes.abilities import Usage
from holdfast.replica.schemes.phases import Replay

__all__ = [
    "Cost",
    "LinearPrediction",
    "Prices",
    "RecoveryCalibration",
    "costs",
    "recovery_cost",
    "recovery_seconds",
    "recovery_spread",
    "transition_seconds",
    "unseen_seconds",
]

_GIGABYTE = 1e9
_HOUR = 3600.0


@dataclass(frozen=True, slots=True)
class Prices:
    """Money for a CPU and for a gigabyte of memory by the hour, and for each gigabyte sent or written."""

    cpu_hour: float = 0.04
    memory_hour: float = 0.005
    network: float = 0.01
    disk: float = 0.002


@dataclass(frozen=True, slots=True)
class Cost:
    """What the secondary uses: CPUs, bytes of memory, bytes per second on the network and to the disk, and all of it
    as money per hour."""

    cpus: float
    memory: float
    network: float
    disk: float
    money: float


def unseen_seconds(scheme: Scheme, metrics: FragmentMetrics) -> float:
    """The part of the gap before a recovery begins: what passes between two commits, and noticing the failure."""
    return metrics.rhythm_seconds + (0.0 if scheme.both_commit else metrics.detection_seconds)


def recovery_seconds(
    scheme: Scheme, metrics: FragmentMetrics, *, precise: bool = True, epochs: float | None = None
) -> float:
    """The gap in the output: the time before the recovery begins, its phases, and the first commit after them. At worst
    or, afterwards, with as many `epochs` as were replayed."""
    replay = Replay(precise, epochs)
    phases = sum(phase(metrics, replay) for phase in scheme.recovery)
    return unseen_seconds(scheme, metrics) + metrics.commit_seconds + phases


def recovery_spread(scheme: Scheme, metrics: FragmentMetrics, *, precise: bool = True) -> float:
    """By how much the gap varies, from how its parts do. A busy machine makes all of them longer at once, so they are
    added up."""
    usual = recovery_seconds(scheme, metrics, precise=precise)
    total = 0.0
    for name, spread in metrics.spreads.items():
        longer = replace(metrics, **{name: getattr(metrics, name) + spread})
        total += max(0.0, recovery_seconds(scheme, longer, precise=precise) - usual)
    return total


def transition_seconds(scheme: Scheme, to: Scheme, metrics: FragmentMetrics) -> float:
    """How long the steps from one scheme to another take; a step down takes no time worth counting."""
    total = 0.0
    for before, after in pairwise((scheme, *wheel.path(scheme, to))):
        if wheel.rank(after) < wheel.rank(before):
            gained = [ability for ability in after.abilities if ability not in before.abilities]
            total += metrics.connect_seconds + sum(ability.gain_seconds(metrics) for ability in gained)
    return total


def recovery_cost(scheme: Scheme, metrics: FragmentMetrics, prices: Prices) -> Cost:
    """What the secondary uses while nothing fails; checkpoints are written under every scheme."""
    usage = sum((ability.usage(metrics) for ability in scheme.abilities), start=Usage())
    disk = metrics.written_bytes_per_second(metrics.checkpoint_seconds)
    money = (
        usage.cpus * prices.cpu_hour
        + usage.memory / _GIGABYTE * prices.memory_hour
        + usage.network * _HOUR / _GIGABYTE * prices.network
        + disk * _HOUR / _GIGABYTE * prices.disk
    )
    return Cost(usage.cpus, usage.memory, usage.network, disk, money)


@dataclass(frozen=True, slots=True)
class LinearPrediction:
    """A figure as a function of how many times the present state and load there is: `fixed` + n · `growing`."""

    fixed: float
    growing: float

    def at(self, times: float) -> float:
        return self.fixed + times * self.growing


@dataclass(frozen=True, slots=True)
class RecoveryCalibration:
    """By how much recoveries took longer than predicted, smoothed: 1 if there was none yet. `variances` say how far
    single ones were from that."""

    factors: Mapping[Scheme, float] = field(default_factory=dict)
    variances: Mapping[Scheme, float] = field(default_factory=dict)
    weight: float = 0.3

    def seconds(
        self, metrics: FragmentMetrics, *, precise: bool = True, deviations: float = 0.0
    ) -> dict[Scheme, LinearPrediction]:
        """Every scheme's recovery time. A scheme with fewer phases is never predicted to be slower: a factor that was
        learned in a bad hour must not turn the wheel around.

        With `deviations`, all parts of the gap are longer than usual by so many of their standard deviations, and the
        factor by half as many of its own, since it is a mean: chance alone makes no recovery shorter."""
        made: dict[Scheme, LinearPrediction] = {}
        nothing = replace(metrics, state_bytes=0.0, rows_per_second=0.0)
        fixed = growing = 0.0
        for scheme in wheel.SCHEMES:
            factor = self.factors.get(scheme, 1.0)
            factor += deviations / 2 * math.sqrt(self.variances.get(scheme, 0.0))
            least = recovery_seconds(scheme, nothing, precise=precise)
            more = recovery_seconds(scheme, metrics, precise=precise) - least
            if deviations and metrics.spreads:
                least += deviations * recovery_spread(scheme, metrics, precise=precise)
            fixed, growing = max(fixed, factor * least), max(growing, factor * more)
            made[scheme] = LinearPrediction(fixed, growing)
        return made

    def observed(self, scheme: Scheme, predicted: float, took: float) -> RecoveryCalibration:
        """After a recovery that was predicted, with no correction, to take `predicted` seconds."""
        if predicted <= 0:
            return self
        before = self.factors.get(scheme)
        ratio = min(10.0, max(0.1, took / predicted))
        if before is not None:
            off = ratio - before
            factor = before + self.weight * off
            variance = (1 - self.weight) * (self.variances.get(scheme, 0.0) + self.weight * off * off)
        else:
            # One recovery is chance as much as the prediction is: but that it was too slow is believed at once.
            factor = ratio if ratio > 1 else (1 + ratio) / 2
            variance = (ratio - factor) ** 2
        return replace(self, factors={**self.factors, scheme: factor}, variances={**self.variances, scheme: variance})

    def to_json(self) -> dict[str, list[float]]:
        """Factor and variance by the names of the schemes."""
        return {scheme.name: [factor, self.variances.get(scheme, 0.0)] for scheme, factor in self.factors.items()}

    @classmethod
    def from_json(cls, value: Mapping[str, float | Sequence[float]]) -> RecoveryCalibration:
        """Earlier versions stored the factor alone."""
        factors: dict[Scheme, float] = {}
        variances: dict[Scheme, float] = {}
        for scheme in wheel.SCHEMES:
            known = value.get(scheme.name)
            if isinstance(known, Sequence):
                factors[scheme], variances[scheme] = known
            elif known is not None:
                factors[scheme] = known
        return cls(factors, variances)


def costs(metrics: FragmentMetrics, prices: Prices) -> dict[Scheme, LinearPrediction]:
    """Every scheme's money per hour."""
    nothing = replace(
        metrics,
        state_bytes=0.0,
        rows_per_second=0.0,
        utilisation=0.0,
        output_bytes_per_second=0.0,
        changed_bytes_per_second=None if metrics.changed_bytes_per_second is None else 0.0,
    )
    made = {}
    for scheme in wheel.SCHEMES:
        least = recovery_cost(scheme, nothing, prices).money
        made[scheme] = LinearPrediction(least, recovery_cost(scheme, metrics, prices).money - least)
    return made
