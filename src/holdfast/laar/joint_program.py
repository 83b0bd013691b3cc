"""The whole problem in one program, a variable for each replica in each configuration.

Larger than the master problem, and for what that cannot say: completeness if any one host crashes depends on which
replica runs alone, and a placement that is still open on all configurations at once. A replica has a *slot*: its place
in the descriptor's placement, or while the placement is open any host, which has several slots only where there are
fewer hosts than replicas.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from itertools import compress

import numpy as np
from numpy.typing import NDArray

from holdfast.laar.flow import add_flow
from holdfast.laar.milp import TOLERANCE, IntegerProgram, SolverOutcome
from holdfast.laar.model import FailureModel, Model, Phi
from holdfast.laar.strategy import Placement, Strategy

__all__ = ["Joint"]


class Joint:
    """Activations, and the placement if none is given, by one program. Its objective is the cost, scaled."""

    def __init__(
        self, model: Model, placement: Placement | None, failures: FailureModel, penalty: Fraction | None = None
    ) -> None:
        self.model, self.placement = model, placement
        said = model.descriptor
        self.copies = said.replicas if said.hosts < said.replicas else 1  # slots of a host
        anywhere = tuple(host for host in range(said.hosts) for _ in range(self.copies))
        self.hosts: Placement = placement or (anywhere,) * model.n_pes
        self.program = IntegerProgram()
        base = float(sum((p * sum(w) for p, w in zip(model.probs, model.work, strict=True)), Fraction(0)))
        self.scale = base or 1.0
        self.active = [self._activations(c) for c in range(model.n_configs)]
        self.placed = self._places() if placement is None else []
        self.phi: list[list[int]] = []
        short = None
        if penalty is not None:
            short = self.program.variable(float(penalty / said.period) / self.scale)
        if failures is FailureModel.PESSIMISTIC:
            self.phi = [self._replicated(c) for c in range(model.n_configs)]
            self._enough(self.phi, short)
        else:
            for host in range(said.hosts):
                self._enough([self._surviving(c, host) for c in range(model.n_configs)], short)
        for c in range(model.n_configs):
            self._room(c)

    def cost_of(self, objective: float) -> float:
        """An objective as cost in a period."""
        return objective * self.scale * float(self.model.descriptor.period)

    def fix(self, phi: Phi) -> None:
        """Only packing and placement are left open."""
        for variables, on in zip(self.phi, phi, strict=True):
            for variable, active in zip(variables, on, strict=True):
                self.program.row({variable: 1.0}, float(active), float(active))

    def forbid(self, strategy: Strategy) -> None:
        """Not this strategy, nor one with fewer active replicas: for what fractions have refuted."""
        idle = [
            variable
            for variables, active in zip(self.active, strategy.active, strict=True)
            for row, on in zip(variables, self._on(active, strategy.placement), strict=True)
            for slot, variable in enumerate(row)
            if slot not in on
        ]
        self.program.row(dict.fromkeys(idle, 1.0), low=1.0)

    def crowd(self, config: int, host: int, strategy: Strategy) -> None:
        """What a host runs in a strategy is too much by less than the tolerance: not all of it again."""
        crowd = [
            self.active[config][i][slot]
            for i, on in enumerate(self._on(strategy.active[config], strategy.placement))
            for slot in on
            if self.hosts[i][slot] == host and self.model.work[config][i]
        ]
        self.program.row(dict.fromkeys(crowd, 1.0), high=len(crowd) - 1.0)

    def solve(self, time_limit: float, start: Mapping[int, float] | None = None) -> SolverOutcome:
        return self.program.solve(time_limit, start=start)

    def start(self, strategy: Strategy) -> dict[int, float]:
        """A strategy as values to start from."""
        values: dict[int, float] = {}
        for variables, active in zip(self.active, strategy.active, strict=True):
            for row, on in zip(variables, self._on(active, strategy.placement), strict=True):
                values |= {variable: float(slot in on) for slot, variable in enumerate(row)}
        for row, placed in zip(self.placed, strategy.placement, strict=False):
            values |= {variable: float(slot in self._slots(placed)) for slot, variable in enumerate(row)}
        return values

    def strategy(self, values: NDArray[np.float64]) -> Strategy:
        slots = [[slot for slot, v in enumerate(row) if values[v] > 0.5] for row in self.placed]
        if self.placement is not None:
            slots = [list(range(len(hosts))) for hosts in self.hosts]
        active = tuple(
            tuple(
                tuple(int(values[row[slot]] > 0.5) for slot in own) for row, own in zip(variables, slots, strict=True)
            )
            for variables in self.active
        )
        hosts = zip(self.hosts, slots, strict=True)
        return Strategy(active, tuple(tuple(known[slot] for slot in own) for known, own in hosts))

    def _slots(self, placed: Sequence[int]) -> list[int]:
        """Where the replicas of a PE are."""
        if self.placement is not None:
            return list(range(len(placed)))
        return [host * self.copies + placed[:r].count(host) for r, host in enumerate(placed)]

    def _on(self, active: Sequence[Sequence[int]], placement: Placement) -> list[set[int]]:
        """For each PE the slots whose replicas are active."""
        rows = zip(active, placement, strict=True)
        return [{slot for on, slot in zip(row, self._slots(placed), strict=True) if on} for row, placed in rows]

    def _activations(self, config: int) -> list[list[int]]:
        prob, found = float(self.model.probs[config]), []
        for i, hosts in enumerate(self.hosts):
            cost = prob * float(self.model.work[config][i]) / self.scale
            row = [self.program.variable(cost, whole=True) for _ in hosts]
            self.program.row(dict.fromkeys(row, 1.0), low=1.0)
            found.append(row)
        return found

    def _places(self) -> list[list[int]]:
        """Where replicas may run. Hosts that are alike are taken in the order of their numbers."""
        said, found = self.model.descriptor, []
        alike = len(set(said.capacities)) == 1
        for i in range(self.model.n_pes):
            row = [self.program.variable(whole=True) for _ in self.hosts[i]]
            self.program.row(dict.fromkeys(row, 1.0), said.replicas, said.replicas)
            for slot in range(len(row)):
                if slot % self.copies:
                    self.program.row({row[slot]: 1.0, row[slot - 1]: -1.0}, high=0.0)
            for c in range(self.model.n_configs):
                for active, place in zip(self.active[c][i], row, strict=True):
                    self.program.row({active: 1.0, place: -1.0}, high=0.0)
            for host in range((i + 1) * said.replicas, said.hosts if alike else 0):
                self.program.forbid(row[host])
            found.append(row)
        return found

    def _replicated(self, config: int) -> list[int]:
        """φ of the pessimistic failure model: all replicas are active, or one is."""
        extra, found = self.model.descriptor.replicas - 1, []
        for row in self.active[config]:
            phi = self.program.variable(whole=True)
            self.program.row({**dict.fromkeys(row, 1.0), phi: -float(extra)}, 1.0, 1.0)
            if self.placement is not None:
                for replica in row:
                    self.program.row({phi: 1.0, replica: -1.0}, high=0.0)
            found.append(phi)
        return found

    def _surviving(self, config: int, host: int) -> list[int | None]:
        """φ if a host has crashed; none for a PE that has no replica there."""
        found: list[int | None] = []
        for row, hosts in zip(self.active[config], self.hosts, strict=True):
            others = [replica for replica, slot in zip(row, hosts, strict=True) if slot != host]
            if len(others) == len(row):
                found.append(None)
            elif len(others) == 1:
                found.append(others[0])
            else:
                alive = self.program.variable(whole=True)
                self.program.row({alive: 1.0, **dict.fromkeys(others, -1.0)}, high=0.0)
                found.append(alive)
        return found

    def _enough(self, alive: Sequence[Sequence[int | None]], short: int | None) -> None:
        """Completeness reaches the target, or falls short of it at a price."""
        if not self.model.bic:
            return
        parts = [add_flow(self.program, self.model, c, shares) for c, shares in enumerate(alive)]
        if short is None:
            for shares, vital in zip(alive, self.model.vital, strict=True):
                self.program.require(compress(shares, vital))
        terms: dict[int, float] = {} if short is None else {short: 1.0}
        for part in parts:
            for variable, factor in part.terms.items():
                terms[variable] = terms.get(variable, 0.0) + factor
        room = TOLERANCE if short is None else 0.0
        low = float(self.model.descriptor.ic_target) - room - sum(part.constant for part in parts)
        if terms:
            self.program.row(terms, low=low)
        elif low > 0:
            self.program.row({self.program.variable(upper=0.0): 1.0}, low=1.0)

    def _room(self, config: int) -> None:
        """Hosts that all slots together would overload keep within their capacity."""
        for host, capacity in enumerate(self.model.descriptor.capacities):
            terms: dict[int, float] = {}
            needed = Fraction(0)
            for i, hosts in enumerate(self.hosts):
                for variable, slot in zip(self.active[config][i], hosts, strict=True):
                    if slot == host and self.model.work[config][i]:
                        terms[variable] = float(self.model.work[config][i] / capacity)
                        needed += self.model.work[config][i]
            if needed >= capacity:
                self.program.row(terms, high=1 + TOLERANCE)
