"""FT-Search: the paper's depth-first search for a replica activation strategy, kept as the baseline.

One level of the tree is a PE in a configuration, the most expensive configurations first and PEs in topological order.
A level tries all replicas active, then each single replica. Four prunings, each counted: CPU (a host would be
overloaded), COMPL (the completeness that is still possible is below the target), COST (no cheaper than the best), DOM
(no predecessor is fully replicated, so that replication adds nothing). Bounds are floats that err on the safe side;
what is found is verified in fractions.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from fractions import Fraction

from holdfast.laar.model import Model
from holdfast.laar.solution import Solution, Status
from holdfast.laar.strategy import Strategy

__all__ = ["SearchStats", "ft_search"]

_SLACK = 1e-12
_NODES_PER_LOOK = 256  # at the clock


@dataclass(slots=True)
class SearchStats:
    """How a search went. `pruned` counts values of a level that were cut off, `depth` the sum of their levels."""

    nodes: int = 0
    pruned: dict[str, int] = field(default_factory=lambda: dict.fromkeys(("CPU", "COMPL", "COST", "DOM"), 0))
    depth: dict[str, int] = field(default_factory=lambda: dict.fromkeys(("CPU", "COMPL", "COST", "DOM"), 0))
    first_cost: Fraction | None = None
    first_seconds: float | None = None
    best_seconds: float | None = None


def ft_search(
    model: Model, time_limit: float, clock: Callable[[], float] = time.monotonic
) -> tuple[Solution, SearchStats]:
    """The cheapest strategy for the descriptor's placement, or what was found within the time limit."""
    search = _FtSearch(model, clock, clock() + time_limit)
    started = clock()
    finished = search.run()
    found = search.best is not None
    if finished:
        status = Status.OPTIMAL if found else Status.INFEASIBLE
    else:
        status = Status.FEASIBLE if found else Status.UNKNOWN
    cost, ic = (search.best_cost, model.guaranteed(search.best)) if search.best is not None else (None, None)
    bound = float(cost) if finished and cost is not None else None if finished else search.least
    return Solution(status, cost, ic, bound, clock() - started, search.best), search.stats


@dataclass(slots=True)
class _Level:
    """A PE in a configuration, and what its values change."""

    config: int
    pe: int
    cost: float
    work: float
    prob: float
    sources: float
    """Tuples per second from sources, which never fail."""
    inflows: list[tuple[int, float]]
    """Levels of the predecessors, and selectivities."""
    from_sources: float
    rate: float
    outgoing: int
    values: list[tuple[int, ...]]
    """All replicas first, then single ones; as replica numbers."""


class _FtSearch:
    def __init__(self, model: Model, clock: Callable[[], float], until: float) -> None:
        assert model.descriptor.placement is not None
        self.model, self.clock, self.until = model, clock, until
        self.placement = model.descriptor.placement
        self.levels = _levels(model)
        self.stats = SearchStats()
        self.best: Strategy | None = None
        self.best_cost: Fraction | None = None
        period = float(model.descriptor.period)
        self.least = period * sum(level.cost for level in self.levels)
        self.limit = float("inf")
        self.period = period
        self.needed = (float(model.descriptor.ic_target) - _SLACK) * float(model.bic / model.descriptor.period)
        self.capacities = [float(capacity) * (1 + _SLACK) for capacity in model.descriptor.capacities]
        self.loads = [[0.0] * model.descriptor.hosts for _ in range(model.n_configs)]
        self.started = clock()

    def run(self) -> bool:
        """Whether the whole tree was seen."""
        levels, stats = self.levels, self.stats
        count = len(levels)
        choice = [-1] * count
        rates = [0.0] * count  # under failures
        before: list[list[float]] = [[]] * count  # the loads, put back as they were: no rounding piles up
        possible = [float(self.model.bic / self.model.descriptor.period)] * (count + 1)
        costs = [self.least / self.period] * (count + 1)
        at = 0
        while at >= 0:
            if at == count:
                self._leaf(choice)
                at -= 1
                continue
            level, loads = levels[at], self.loads[levels[at].config]
            if choice[at] >= 0:
                loads[:] = before[at]
            choice[at] += 1
            if choice[at] >= len(level.values):
                choice[at] = -1
                at -= 1
                continue
            stats.nodes += 1
            if stats.nodes % _NODES_PER_LOOK == 0 and self.clock() > self.until:
                return False
            before[at] = loads.copy()
            hosts = [self.placement[level.pe][replica] for replica in level.values[choice[at]]]
            for host in hosts:
                loads[host] += level.work
            full = choice[at] == 0
            inputs, output = level.sources, level.from_sources
            for origin, selectivity in level.inflows:
                inputs += rates[origin]
                output += selectivity * rates[origin]
            rates[at] = output if full else 0.0
            lost = level.outgoing * (level.rate - rates[at]) + (0.0 if full else inputs)
            possible[at + 1] = possible[at] - level.prob * lost
            costs[at + 1] = costs[at] + (level.cost * (len(level.values[0]) - 1) if full else 0.0)
            reason = None
            if full and inputs <= 0.0 and len(level.values) > 1:
                reason = "DOM"
            elif any(loads[host] >= self.capacities[host] for host in hosts):
                reason = "CPU"
            elif possible[at + 1] < self.needed:
                reason = "COMPL"
            elif costs[at + 1] * self.period >= self.limit:
                reason = "COST"
            if reason is None:
                at += 1
            else:
                stats.pruned[reason] += 1
                stats.depth[reason] += at
        return True

    def _leaf(self, choice: list[int]) -> None:
        """A strategy that passed all bounds: taken if fractions agree."""
        replicas = self.model.descriptor.replicas
        active = [[(0,) * replicas] * self.model.n_pes for _ in range(self.model.n_configs)]
        for level, value in zip(self.levels, choice, strict=True):
            running = level.values[value]
            active[level.config][level.pe] = tuple(int(r in running) for r in range(replicas))
        strategy = Strategy(tuple(tuple(rows) for rows in active), self.placement)
        measured = self.model.evaluate(strategy)
        if not measured.valid or (self.best_cost is not None and measured.cost >= self.best_cost):
            return
        seconds = self.clock() - self.started
        if self.best is None:
            self.stats.first_cost, self.stats.first_seconds = measured.cost, seconds
        self.stats.best_seconds = seconds
        self.best, self.best_cost = strategy, measured.cost
        self.limit = float(measured.cost) * (1 - _SLACK)


def _levels(model: Model) -> list[_Level]:
    """All PEs in all configurations in the order of the search."""
    replicas, sources = model.descriptor.replicas, model.n_sources
    placement = model.descriptor.placement or ()
    hungry = sorted(range(model.n_configs), key=lambda c: -sum(model.work[c]))
    levels: list[_Level] = []
    for c in hungry:
        rates, prob = model.rate_floats[c], float(model.probs[c])
        number = {sources + pe: len(levels) + at for at, pe in enumerate(model.order)}
        for pe in model.order:
            inflows = model.inflows[pe]
            fed = [edge for edge in inflows if edge.node < sources]
            # Single replicas on one host are the same to every bound.
            singles = {placement[pe][r]: (r,) for r in reversed(range(replicas))}
            work = float(model.work[c][pe])
            levels.append(
                _Level(
                    config=c,
                    pe=pe,
                    cost=prob * work,
                    work=work,
                    prob=prob,
                    sources=float(sum(rates[edge.node] for edge in fed)),
                    inflows=[(number[e.node], float(e.selectivity)) for e in inflows if e.node >= sources],
                    from_sources=float(sum(rates[edge.node] * float(edge.selectivity) for edge in fed)),
                    rate=float(rates[sources + pe]),
                    outgoing=len(model.successors[sources + pe]),
                    values=[tuple(range(replicas)), *(singles.values() if replicas > 1 else ())],
                )
            )
    return levels
