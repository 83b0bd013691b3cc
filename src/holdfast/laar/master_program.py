"""The problem without the question which replica runs alone.

Cost and completeness depend on φ only: which PEs are fully replicated in which configuration. Where a PE is not, one
replica runs, and which one matters for the hosts alone. So the master problem is in φ; that there is room on the hosts
is kept by a row per set of hosts: a PE whose replicas are all on the set needs room there for one of them at least, and
each further one of a fully replicated PE counts too. Such rows are added as they are found missing, and so are cuts
that forbid what fractions or packing have refuted.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Collection, Mapping
from fractions import Fraction
from itertools import compress
from threading import Event

import numpy as np
from numpy.typing import NDArray

from holdfast.laar.flow import Sum, add_flow
from holdfast.laar.milp import TOLERANCE, IntegerProgram, SolverOutcome
from holdfast.laar.model import Model, Phi
from holdfast.laar.replica_packer import Packer
from holdfast.laar.strategy import Strategy

__all__ = ["Master"]


class Master:
    """A relaxation of the problem that grows tighter; its objective is the cost above that of single replicas."""

    def __init__(self, model: Model, penalty: Fraction | None = None) -> None:
        self.model = model
        self.program = IntegerProgram()
        self.base = float(sum((p * sum(w) for p, w in zip(model.probs, model.work, strict=True)), Fraction(0)))
        self.scale = self.base or 1.0
        extra = model.descriptor.replicas - 1
        self.phi: list[list[int]] = []
        ic: dict[int, float] = {}
        for c in range(model.n_configs):
            prob = float(model.probs[c])
            costs = prob * model.work_floats[c] * extra / self.scale
            phi = [self.program.variable(cost, whole=True) for cost in costs]
            found = add_flow(self.program, model, c, phi)
            ic.update(found.terms)
            for i, variable in enumerate(phi):
                if not prob or not any(model.rates[c][edge.node] for edge in model.inflows[i]):
                    self.program.forbid(variable)  # nothing to gain
            if penalty is None:
                self.program.require(compress(phi, model.vital[c]))
            self.phi.append(phi)
        low = float(model.descriptor.ic_target)
        if penalty is None:
            low -= TOLERANCE
        else:
            price = float(penalty / model.descriptor.period) / self.scale
            ic[self.program.variable(price)] = 1.0
        if model.bic:
            self.program.row(ic, low=low)
        self._rows: set[tuple[int, frozenset[int]]] = set()
        self._runs: dict[tuple[int, int, int], int] = {}  # configuration, PE, host

    def cost_of(self, objective: float) -> float:
        """An objective as cost in a period."""
        return (objective * self.scale + self.base) * float(self.model.descriptor.period)

    def room(self, config: int, hosts: Collection[int], needs: Mapping[int, int]) -> bool:
        """The row of a set of hosts; `needs[i]` is how many replicas of PE i are on them. False if it is there."""
        key = (config, frozenset(hosts))
        if key in self._rows:
            return False
        self._rows.add(key)
        replicas, work = self.model.descriptor.replicas, self.model.work_floats[config]
        room = float(sum(self.model.descriptor.capacities[h] for h in hosts)) * (1 + TOLERANCE)
        terms: dict[int, float] = {}
        most = 0.0
        for i, count in needs.items():
            alone = int(count == replicas)
            room -= alone * work[i]
            if count > alone and work[i]:
                terms[self.phi[config][i]] = (count - alone) * work[i]
                most += (count - alone) * work[i]
        if most > room:
            size = max(terms.values())
            self.program.row({v: factor / size for v, factor in terms.items()}, high=room / size)
        return True

    def twin(self) -> Master:
        """A copy that can grow on its own."""
        twin = copy.copy(self)
        twin.program, twin._rows = copy.deepcopy(self.program), set(self._rows)
        twin._runs = dict(self._runs)
        return twin

    def split(self, packer: Packer, least: float = 0.0) -> None:
        """Makes the packing of one configuration part of the problem. PEs that need less than `least` of a host may be
        cut up: they mostly fit anyway, and are what a search would lose its time with."""
        config, work = packer.config, self.model.work_floats[packer.config]
        terms: dict[int, Sum] = {host: Sum() for host in packer.critical}
        for i, hosts in enumerate(packer.placement):
            phi = self.phi[config][i]
            runs: dict[int, int] = {}
            if i not in packer.home:
                for host in set(hosts):
                    large = bool(work[i] >= least * packer.capacities[host])
                    runs[host] = self._runs[config, i, host] = self.program.variable(whole=large)
                    if len(set(hosts)) > 2:
                        self.program.row({phi: 1.0, runs[host]: -1.0}, high=0.0)
                self.program.row({**dict.fromkeys(runs.values(), 1.0), phi: 1.0 - len(runs)}, 1.0, 1.0)
            for host in hosts:
                if host in terms:
                    terms[host].add(runs.pop(host, phi), work[i] / packer.capacities[host])
        for load in terms.values():
            self.program.row(load.terms, high=1 + TOLERANCE)

    def uncut(self) -> None:
        """Nothing may be cut up any more."""
        self.program.make_whole(self._runs.values())

    def more_than(self, phi: Phi) -> None:
        """Something beyond φ must be replicated: φ was too little, and so is every part of it."""
        rows = zip(self.phi, phi, strict=True)
        missing = {v: 1.0 for variables, on in rows for v, active in zip(variables, on, strict=True) if not active}
        self.program.row(missing, low=1.0)

    def less_than(self, config: int, replicated: Collection[int]) -> None:
        """These PEs cannot all be replicated in the configuration."""
        self.program.row({self.phi[config][i]: 1.0 for i in replicated}, high=len(replicated) - 1.0)

    @property
    def packs(self) -> bool:
        """Whether packing is part of the problem."""
        return bool(self._runs)

    def solve(
        self,
        time_limit: float,
        relaxed: bool = False,
        start: Strategy | None = None,
        gap: float = TOLERANCE,
        stop: Event | None = None,
    ) -> SolverOutcome:
        """Asks the solver, which may start from a strategy."""
        values: dict[int, float] = {}
        if start is not None:
            for c, active in enumerate(start.active):
                values |= {self.phi[c][i]: float(all(row)) for i, row in enumerate(active)}
            for (c, i, host), variable in self._runs.items():
                rows = zip(start.active[c][i], start.placement[i], strict=True)
                values[variable] = float(any(on and at == host for on, at in rows))
        return self.program.solve(time_limit, relaxed=relaxed, start=values, gap=gap, stop=stop)

    def shares(self, values: NDArray[np.float64], config: int) -> NDArray[np.float64]:
        """φ of one configuration, as far as the relaxation has decided it."""
        return np.clip(values[self.phi[config]], 0.0, 1.0)

    def chosen(self, values: NDArray[np.float64]) -> Phi:
        return tuple(
            tuple(bool(active) for active in self.shares(values, c) > 0.5) for c in range(self.model.n_configs)
        )

    def least(self, outcome: SolverOutcome) -> float:
        """The cost below which there is no strategy, by an outcome."""
        return self.cost_of(max(outcome.bound, 0.0)) if math.isfinite(outcome.bound) else self.cost_of(0.0)
