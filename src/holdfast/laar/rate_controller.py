"""The HA controller: measured rates in, commands to replicas out.

It keeps to the smallest input configuration whose rates are all at least the measured ones, so that the load is never
underestimated. When the rates grow beyond the configuration in use it moves at once; to a smaller one only after that
would have done for the mean of several measurements. A single one is noisy: input comes in pieces, and where a machine
is busy the epochs that take it begin early and late. Clock and network are the caller's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import fsum

import numpy as np

from holdfast.laar.descriptor import Descriptor
from holdfast.laar.strategy import Strategy

__all__ = ["ON_HOSTS", "ActivationCommand", "ConfigIndex", "Hysteresis", "RateController"]


@dataclass(frozen=True, slots=True)
class ActivationCommand:
    """A replica is to become active, or idle."""

    pe: int
    replica: int
    active: bool


@dataclass(frozen=True, slots=True)
class Hysteresis:
    """What keeps the controller from moving to and fro."""

    tolerance: float = 0.0
    """Rates this part above those of the configuration in use are still taken for it, and half of it above those of a
    smaller one for that: the noise of measuring."""
    measurements: int = 3
    """The mean of so many a smaller configuration must do for before it is trusted."""
    patience: int | None = None
    """So often in a row rates may be above those of the configuration in use, within the tolerance, before that is no
    noise: a deployment that is just overloaded takes no more than it can. None: as often as they like."""


ON_HOSTS = Hysteresis(tolerance=0.1, measurements=5, patience=5)
"""Of hosts, which count a measurement every two seconds: ten seconds in all before replicas are activated again, so
that a rate that wavers does not move them to and fro."""


class ConfigIndex:
    """Finds the smallest configuration that dominates some rates, in microseconds for hundreds of them."""

    def __init__(self, descriptor: Descriptor) -> None:
        self._rates = np.array([[float(rate) for rate in config.rates] for config in descriptor.configs])
        # By total rates, so that among equally near ones the first is the smallest.
        self._order = np.argsort(self._rates.sum(axis=1), kind="stable")
        self._sorted = np.ascontiguousarray(self._rates[self._order])
        self.greatest = int(self._order[-1])

    def smallest(self, rates: Sequence[float]) -> int:
        """The nearest configuration with no rate below the measured one; the greatest if there is none."""
        above = self._sorted - np.asarray(rates, dtype=np.float64)
        distance = np.where((above >= 0).all(axis=1), np.einsum("ij,ij->i", above, above), np.inf)
        nearest = int(distance.argmin())
        return int(self._order[nearest]) if distance[nearest] < np.inf else self.greatest

    def dominates(self, config: int, rates: Sequence[float]) -> bool:
        return bool((self._rates[config] >= np.asarray(rates, dtype=np.float64)).all())


class RateController:
    """Follows the input rates through the configurations of a strategy."""

    def __init__(
        self,
        descriptor: Descriptor,
        strategy: Strategy,
        hysteresis: Hysteresis | None = None,
        config: int | None = None,
        recent: Sequence[Sequence[float]] = (),
        above: int = 0,
    ) -> None:
        """`config`, `recent` and `above` are where another controller has left off."""
        self._index = ConfigIndex(descriptor)
        self._strategy = strategy
        self._hysteresis = hysteresis or Hysteresis()
        self.recent: list[Sequence[float]] = list(recent)
        """The last measurements that count."""
        self.above = above
        """How many of them in a row were above the rates of the configuration in use, within the tolerance."""
        self.config = self._index.greatest if config is None else config
        """The configuration in use. At the start it is the greatest, which overloads nothing, or the one given."""

    def start(self) -> list[ActivationCommand]:
        """What makes the replicas what they are in the first configuration, whatever they were."""
        rows = enumerate(self._strategy.active[self.config])
        return sorted(
            (ActivationCommand(i, r, bool(on)) for i, row in rows for r, on in enumerate(row)),
            key=lambda command: not command.active,
        )

    def measured(self, rates: Sequence[float], *, counts: bool = True) -> list[ActivationCommand]:
        """A measurement of each source's rate; the commands it leads to, activations first, so that no PE is without
        an active replica in between. One that has much in common with the one before does not count: it can only lead
        to a configuration for higher rates."""
        tolerance, most, patience = self._hysteresis.tolerance, self._hysteresis.measurements, self._hysteresis.patience
        if not self._index.dominates(self.config, [rate / (1 + tolerance) for rate in rates]):
            return self._move(self._index.smallest(rates))
        if not counts:
            return []
        near = [rate / (1 + tolerance / 2) for rate in rates]
        if not self._index.dominates(self.config, near):
            self.recent, self.above = [], self.above + 1
            return self._move(self._index.smallest(near)) if patience is not None and self.above >= patience else []
        self.recent, self.above = [*self.recent, rates][-most:], 0
        return self._move(self._wanted()) if len(self.recent) == most else []

    def _wanted(self) -> int:
        """The smallest configuration that does for the mean of the last measurements."""
        if not self.recent:
            return self.config
        # Of equal rates the mean is no larger, whatever rounding says.
        means = [min(max(rates), fsum(rates) / len(rates)) for rates in zip(*self.recent, strict=True)]
        return self._index.smallest([mean / (1 + self._hysteresis.tolerance / 2) for mean in means])

    def _move(self, config: int) -> list[ActivationCommand]:
        if config == self.config:
            return []
        before, after = self._strategy.active[self.config], self._strategy.active[config]
        self.config, self.recent, self.above = config, [], 0
        changes = [
            ActivationCommand(i, r, bool(new))
            for i, (olds, news) in enumerate(zip(before, after, strict=True))
            for r, (old, new) in enumerate(zip(olds, news, strict=True))
            if old != new
        ]
        return sorted(changes, key=lambda command: not command.active)
