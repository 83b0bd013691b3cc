"""The HA controller: measured rates in, commands to replicas out.

It keeps to the smallest input configuration whose rates are all at least the measured ones, so that the load is never
underestimated. When the rates grow beyond the configuration in use it moves at once; to a smaller one only after that
would have done for several measurements in a row. Clock and network are the caller's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from holdfast.completeness.descriptor import Descriptor
from holdfast.completeness.strategy import Strategy

__all__ = ["ON_HOSTS", "Command", "ConfigIndex", "Controller", "Hysteresis"]


@dataclass(frozen=True, slots=True)
class Command:
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
    """So often in a row a smaller configuration must do before it is trusted."""
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


class Controller:
    """Follows the input rates through the configurations of a strategy."""

    def __init__(
        self,
        descriptor: Descriptor,
        strategy: Strategy,
        hysteresis: Hysteresis | None = None,
        config: int | None = None,
        counted: tuple[int, int] = (0, 0),
    ) -> None:
        """`config` and `counted` are where another controller has left off."""
        self._index = ConfigIndex(descriptor)
        self._strategy = strategy
        self._hysteresis = hysteresis or Hysteresis()
        self._calm, self._above = counted
        self.config = self._index.greatest if config is None else config
        """The configuration in use. At the start it is the greatest, which overloads nothing, or the one given."""

    @property
    def counted(self) -> tuple[int, int]:
        """How many measurements in a row have spoken for a smaller configuration, and how many for a greater one."""
        return self._calm, self._above

    def start(self) -> list[Command]:
        """What makes the replicas what they are in the first configuration, whatever they were."""
        rows = enumerate(self._strategy.active[self.config])
        return sorted(
            (Command(i, r, bool(on)) for i, row in rows for r, on in enumerate(row)), key=lambda each: not each.active
        )

    def measured(self, rates: Sequence[float], *, counts: bool = True) -> list[Command]:
        """A measurement of each source's rate; the commands it leads to, activations first, so that no PE is without
        an active replica in between. One that has much in common with the one before does not count: it can only lead
        to a configuration for higher rates."""
        tolerance, most, patience = self._hysteresis.tolerance, self._hysteresis.measurements, self._hysteresis.patience
        if not self._index.dominates(self.config, [rate / (1 + tolerance) for rate in rates]):
            return self._move(self._index.smallest(rates))
        if not counts:
            return []
        near = [rate / (1 + tolerance / 2) for rate in rates]
        wanted = self._index.smallest(near)
        if not self._index.dominates(self.config, near):
            self._calm, self._above = 0, self._above + 1
            return self._move(wanted) if patience is not None and self._above >= patience else []
        self._above = 0
        self._calm = 0 if wanted == self.config else self._calm + 1
        return self._move(wanted) if self._calm >= most else []

    def _move(self, config: int) -> list[Command]:
        if config == self.config:
            return []
        before, after = self._strategy.active[self.config], self._strategy.active[config]
        self.config, self._calm, self._above = config, 0, 0
        changes = [
            Command(i, r, bool(new))
            for i, (olds, news) in enumerate(zip(before, after, strict=True))
            for r, (old, new) in enumerate(zip(olds, news, strict=True))
            if old != new
        ]
        return sorted(changes, key=lambda each: not each.active)
