"""Which replica runs alone: single replicas are packed onto the hosts that could be overloaded.

A PE with a replica on a host that is never overloaded in a configuration, even with everything active, runs there. The
others are packed: greedily at first, and by a small program if that fails. Where not even parts of replicas can be
packed, a set of hosts is named that has too little room.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from holdfast.laar.milp import TOLERANCE, IntegerProgram, SolverEnd
from holdfast.laar.model import Model
from holdfast.laar.strategy import Placement

__all__ = ["Packer", "Rows"]

Rows = tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class _Item:
    """A PE whose replicas are all on critical hosts: how much it needs, and a replica for each of them."""

    pe: int
    work: float
    replica_on: dict[int, int]


class Packer:
    """Packs single replicas in one configuration of a placed application."""

    def __init__(self, model: Model, config: int, placement: Placement) -> None:
        self.model, self.config, self.placement = model, config, placement
        said = model.descriptor
        everything = tuple((1,) * said.replicas for _ in said.pes)
        self.critical = frozenset(model.overloaded(config, everything, placement))
        self.capacities = [float(capacity) for capacity in said.capacities]
        work = model.work_floats[config]
        self.items = []
        self.home: dict[int, int] = {}  # PE: replica that has a host with room for all
        for i, hosts in enumerate(placement):
            free = [r for r, host in enumerate(hosts) if host not in self.critical]
            if free:
                self.home[i] = free[0]
            else:
                replica_on = {host: r for r, host in reversed(list(enumerate(hosts)))}
                self.items.append(_Item(i, float(work[i]), replica_on))

    def needs(self, hosts: frozenset[int]) -> dict[int, int]:
        """How many replicas of each PE are on some hosts."""
        counts = {i: sum(host in hosts for host in placed) for i, placed in enumerate(self.placement)}
        return {i: count for i, count in counts.items() if count}

    def crowded(self, phi: NDArray[np.float64]) -> frozenset[int] | None:
        """A set of hosts without enough room, even if single replicas could be cut up; φ may be fractional."""
        program, rows = self._program(phi, whole=False)
        outcome = program.solve(math.inf, relaxed=True)
        if outcome.duals is None or outcome.objective <= 10 * TOLERANCE:
            return None
        return frozenset(host for host, row in rows.items() if outcome.duals[row] < -0.5) or None

    def pack(self, phi: Sequence[bool], left: Callable[[], float]) -> Rows | None:
        """Activations of the configuration; none if there is no packing, or if it was not found in the time."""
        return self.greedy(phi) or self._exact(phi, left)

    def _active(self, phi: Sequence[bool], alone: dict[int, int]) -> Rows:
        replicas = self.model.descriptor.replicas
        chosen = {**self.home, **alone}
        return tuple(tuple(int(on or chosen[i] == r) for r in range(replicas)) for i, on in enumerate(phi))

    def _loads(self, phi: NDArray[np.float64]) -> dict[int, float]:
        """What fully replicated PEs take of the critical hosts."""
        loads = dict.fromkeys(self.critical, 0.0)
        work = self.model.work_floats[self.config]
        for i, hosts in enumerate(self.placement):
            for host in hosts:
                if host in loads:
                    loads[host] += phi[i] * work[i]
        return loads

    def greedy(self, phi: Sequence[bool]) -> Rows | None:
        """Activations at once, or none: the largest first, to where the most room is left."""
        loads = self._loads(np.array(phi, dtype=np.float64))
        room = {host: self.capacities[host] - load for host, load in loads.items()}
        alone: dict[int, int] = {}
        for item in sorted(self.items, key=lambda item: -item.work):
            if not phi[item.pe]:
                host = max(item.replica_on, key=lambda h: room[h])
                room[host] -= item.work
                alone[item.pe] = item.replica_on[host]
            else:
                alone[item.pe] = 0
        active = self._active(phi, alone)
        return None if self.model.overloaded(self.config, active, self.placement) else active

    def _program(self, phi: NDArray[np.float64], whole: bool) -> tuple[IntegerProgram, dict[int, int]]:
        """Packing, of parts with the least overflow; host: its row. Variables come item by item, host by host."""
        program = IntegerProgram()
        terms: dict[int, dict[int, float]] = {host: {} for host in sorted(self.critical)}
        for item in self.items:
            size = (1 - phi[item.pe]) * item.work
            choices = {}
            for host in item.replica_on:
                choices[host] = program.variable(whole=whole)
                terms[host][choices[host]] = size / self.capacities[host]
            program.row(dict.fromkeys(choices.values(), 1.0), 1.0, 1.0)
        loads = self._loads(phi)
        rows = {}
        for host, row in terms.items():
            if not whole:
                row[program.variable(1.0, upper=math.inf)] = -1.0
            rows[host] = program.row(row, high=1 + TOLERANCE - loads[host] / self.capacities[host])
        return program, rows

    def _exact(self, phi: Sequence[bool], left: Callable[[], float]) -> Rows | None:
        """By a program; what it overfills by less than its tolerance is forbidden, and it is asked again."""
        program, _ = self._program(np.array(phi, dtype=np.float64), whole=True)
        variables: dict[tuple[int, int], int] = {}
        for item in self.items:
            for host in item.replica_on:
                variables[item.pe, host] = len(variables)
        while True:
            outcome = program.solve(left())
            if outcome.values is None:
                if outcome.end is SolverEnd.TIME:
                    raise TimeoutError
                return None
            on = {key for key, variable in variables.items() if outcome.values[variable] > 0.5}
            hosts = dict(on)
            alone = {item.pe: item.replica_on[hosts[item.pe]] for item in self.items}
            active = self._active(phi, alone)
            full = self.model.overloaded(self.config, active, self.placement)
            if not full:
                return active
            for host in full:
                crowd = [variables[i, h] for i, h in on if h == host and not phi[i] and self.model.work[self.config][i]]
                program.row(dict.fromkeys(crowd, 1.0), high=len(crowd) - 1.0)
