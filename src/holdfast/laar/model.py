"""LAAR's model, exactly: rates, load, internal completeness and cost of a strategy.

Everything is in fractions, so that a strategy that passes here is right whatever found it. What a search needs often
is there as NumPy arrays too: the nodes are the sources followed by the PEs.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction
from functools import cached_property
from graphlib import TopologicalSorter

import numpy as np
from numpy.typing import NDArray

from holdfast.laar.descriptor import Descriptor
from holdfast.laar.strategy import Placement, Strategy

__all__ = ["Evaluation", "FailureModel", "Inflow", "Model"]

Phi = tuple[tuple[bool, ...], ...]
_ZERO = Fraction(0)


class FailureModel(StrEnum):
    """What is assumed to fail when completeness is guaranteed."""

    PESSIMISTIC = "pessimistic"
    """All replicas of a PE but one fail, and the one that is left is idle unless all were active."""
    HOST_CRASH = "host-crash"
    """Any one host fails with all its replicas; what is guaranteed holds for the worst one."""


@dataclass(frozen=True, slots=True)
class Inflow:
    """An edge by numbers: the node it comes from, selectivity and cost."""

    node: int
    selectivity: Fraction
    cost: Fraction


@dataclass(frozen=True, slots=True)
class Evaluation:
    """A strategy measured: its cost, the internal completeness it guarantees, and what it violates."""

    cost: Fraction
    ic: Fraction
    problems: tuple[str, ...]

    @property
    def valid(self) -> bool:
        return not self.problems


class Model:
    """The quantities of one descriptor that do not depend on the strategy."""

    def __init__(self, descriptor: Descriptor) -> None:
        self.descriptor = descriptor
        self.n_sources = len(descriptor.sources)
        self.n_pes = len(descriptor.pes)
        self.n_configs = len(descriptor.configs)
        names = {name: i for i, name in enumerate((*descriptor.sources, *descriptor.pes))}
        inflows: list[list[Inflow]] = [[] for _ in descriptor.pes]
        graph: TopologicalSorter[int] = TopologicalSorter(dict.fromkeys(range(self.n_pes), ()))
        for edge in descriptor.edges:
            node, pe = names[edge.origin], names[edge.target] - self.n_sources
            inflows[pe].append(Inflow(node, edge.selectivity, edge.cost))
            if node >= self.n_sources:
                graph.add(pe, node - self.n_sources)
        self.inflows = tuple(tuple(flows) for flows in inflows)
        self.order = tuple(graph.static_order())
        self.probs = tuple(config.prob for config in descriptor.configs)
        everything = tuple((True,) * self.n_pes for _ in descriptor.configs)
        self.rates = tuple(self._rates(c, everything[c]) for c in range(self.n_configs))
        """`rates[c][node]`: tuples per second without failures."""
        self.work = tuple(
            tuple(sum((rates[e.node] * e.cost for e in self.inflows[i]), _ZERO) for i in range(self.n_pes))
            for rates in self.rates
        )
        """`work[c][i]`: cycles per second of one active replica."""
        self.bic = self.processed(everything)

    @cached_property
    def work_floats(self) -> NDArray[np.float64]:
        return np.array([[float(cycles) for cycles in row] for row in self.work])

    @cached_property
    def rate_floats(self) -> NDArray[np.float64]:
        return np.array([[float(rate) for rate in row] for row in self.rates])

    @cached_property
    def inflow_floats(self) -> tuple[tuple[tuple[int, float], ...], ...]:
        """For each PE the nodes before it, and selectivities."""
        return tuple(tuple((edge.node, float(edge.selectivity)) for edge in inflows) for inflows in self.inflows)

    @cached_property
    def successors(self) -> tuple[tuple[int, ...], ...]:
        """PEs that each node feeds."""
        found: list[list[int]] = [[] for _ in range(self.n_sources + self.n_pes)]
        for pe, inflows in enumerate(self.inflows):
            for edge in inflows:
                found[edge.node].append(pe)
        return tuple(tuple(nodes) for nodes in found)

    @cached_property
    def vital(self) -> Phi:
        """PEs that must work in a configuration: if one alone does not, the target is not kept, by however little."""
        allowed = (1 - self.descriptor.ic_target) * self.bic / self.descriptor.period
        brings = [_ZERO] * (self.n_sources + self.n_pes)  # processed further on, for each tuple of a node
        for i in reversed(self.order):
            for edge in self.inflows[i]:
                brings[edge.node] += 1 + edge.selectivity * brings[self.n_sources + i]
        lost = (
            (sum((rates[e.node] * (1 + e.selectivity * brings[self.n_sources + i]) for e in inflows), _ZERO)
             for i, inflows in enumerate(self.inflows))
            for rates in self.rates
        )  # fmt: skip
        return tuple(tuple(prob * share > allowed for share in row) for prob, row in zip(self.probs, lost, strict=True))

    def _rates(self, config: int, phi: tuple[bool, ...]) -> tuple[Fraction, ...]:
        rates = [*self.descriptor.configs[config].rates, *(_ZERO for _ in range(self.n_pes))]
        for i in self.order:
            if phi[i]:
                rates[self.n_sources + i] = sum((e.selectivity * rates[e.node] for e in self.inflows[i]), _ZERO)
        return tuple(rates)

    def processed(self, phi: Phi) -> Fraction:
        """Tuples that PEs process in a period if PE i works in configuration c where `phi[c][i]`: FIC, and BIC."""
        total = _ZERO
        for c, alive in enumerate(phi):
            rates = self._rates(c, alive)
            inputs = (rates[e.node] for i in range(self.n_pes) if alive[i] for e in self.inflows[i])
            total += self.probs[c] * sum(inputs, _ZERO)
        return self.descriptor.period * total

    def completeness(self, phi: Phi) -> Fraction:
        """IC. Where nothing is ever processed nothing is lost."""
        return self.processed(phi) / self.bic if self.bic else Fraction(1)

    def working(self, strategy: Strategy, crashed: int | None = None) -> Phi:
        """φ: which PEs work under the pessimistic failure model, or if a host has crashed."""
        if crashed is None:
            return tuple(tuple(all(pe) for pe in active) for active in strategy.active)
        return tuple(
            tuple(
                any(on and host != crashed for on, host in zip(pe, hosts, strict=True))
                for pe, hosts in zip(active, strategy.placement, strict=True)
            )
            for active in strategy.active
        )

    def guaranteed(self, strategy: Strategy, failures: FailureModel = FailureModel.PESSIMISTIC) -> Fraction:
        """The IC that a strategy guarantees."""
        if failures is FailureModel.PESSIMISTIC:
            return self.completeness(self.working(strategy))
        hosts = range(self.descriptor.hosts)
        return min(self.completeness(self.working(strategy, crashed=host)) for host in hosts)

    def cost(self, strategy: Strategy) -> Fraction:
        """CPU cycles in a period."""
        total = _ZERO
        for prob, work, active in zip(self.probs, self.work, strategy.active, strict=True):
            total += prob * sum((sum(pe) * cycles for pe, cycles in zip(active, work, strict=True)), _ZERO)
        return self.descriptor.period * total

    def load(self, config: int, active: tuple[tuple[int, ...], ...], placement: Placement) -> list[Fraction]:
        """Cycles per second that each host needs."""
        loads = [_ZERO] * self.descriptor.hosts
        for pe, hosts, cycles in zip(active, placement, self.work[config], strict=True):
            for on, host in zip(pe, hosts, strict=True):
                if on:
                    loads[host] += cycles
        return loads

    def overloaded(self, config: int, active: tuple[tuple[int, ...], ...], placement: Placement) -> list[int]:
        """Hosts whose load is not below their capacity."""
        loads = self.load(config, active, placement)
        return [h for h, (load, most) in enumerate(zip(loads, self.descriptor.capacities, strict=True)) if load >= most]

    def evaluate(self, strategy: Strategy, failures: FailureModel = FailureModel.PESSIMISTIC) -> Evaluation:
        """Cost and IC, and every constraint that is violated, in words."""
        said = self.descriptor
        problems: list[str] = []
        for c, (config, active) in enumerate(zip(said.configs, strategy.active, strict=True)):
            loads = self.load(c, active, strategy.placement)
            problems += [
                f"{config.name}: host {h} needs {float(loads[h]):.10g} of {float(said.capacities[h]):.10g} cycles/s"
                for h in self.overloaded(c, active, strategy.placement)
            ]
            problems += [
                f"{config.name}: no replica of '{name}' is active"
                for name, pe in zip(said.pes, active, strict=True)
                if not any(pe)
            ]
        ic = self.guaranteed(strategy, failures)
        if ic < said.ic_target:
            problems.append(f"the internal completeness is {float(ic):.10g}, below {float(said.ic_target):.10g}")
        return Evaluation(self.cost(strategy), ic, tuple(problems))
