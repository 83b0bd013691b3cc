"""Synthetic applications, as the paper's evaluation draws them. The same seed and sizes give the same application.

A graph is a random tree from the sources, so that everything is reached, and then random edges up to the average
out-degree. A PE that feeds no other feeds a sink; that edge counts, but is not in the descriptor, since sinks cost
nothing. Costs are scaled last: with all replicas active no host is overloaded at the lowest rates, and some host is at
the highest. As far as that leaves a choice, they are kept so low that single replicas have room at the highest.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import random
from dataclasses import dataclass
from fractions import Fraction

from holdfast.laar.descriptor import Descriptor, DescriptorEdge, InputConfiguration
from holdfast.laar.model import Model
from holdfast.laar.strategy import Placement, static_strategy

__all__ = ["Sizes", "generate"]

_OUT_DEGREE = (1.5, 3.0)
_SELECTIVITY = (0.5, 1.5)
_RATE = (1.0, 20.0)
_COST = (0.2, 1.0)  # before scaling
_HIGHEST_SHARE = Fraction(1, 3)
_SINGLE_ROOM = 1.8  # load of the fullest host, all active at the highest rates, that single replicas still fit
_SCALE_DIGITS = 6


@dataclass(frozen=True, slots=True)
class Sizes:
    """How large an application is to be."""

    hosts: int
    pes_per_host: int
    sources: int = 1
    levels: int = 2
    """Rates of each source; configurations are all their combinations."""
    replicas: int = 2


def generate(seed: int, sizes: Sizes, ic_target: Fraction) -> Descriptor:
    """An application of the given sizes, and the target it is to reach."""
    rng = random.Random(f"{seed} {sizes}")
    sources = tuple(f"source{i}" for i in range(sizes.sources))
    pes = tuple(f"pe{i}" for i in range(sizes.hosts * sizes.pes_per_host))
    names = (*sources, *pes)
    edges = tuple(
        DescriptorEdge(names[j], names[i], _drawn(rng, _SELECTIVITY, 4), _drawn(rng, _COST, 4))
        for j, i in _graph(rng, len(sources), len(pes))
    )
    drawn = Descriptor(
        name=f"generated-{seed}-{sizes.hosts}x{sizes.pes_per_host}",
        sources=sources,
        pes=pes,
        configs=_configs(rng, sizes),
        edges=edges,
        capacities=(Fraction(1),) * sizes.hosts,
        replicas=sizes.replicas,
        placement=_placement(rng, len(pes), sizes),
        period=Fraction(1),
        ic_target=ic_target,
    )
    return _scaled(rng, drawn)


def _graph(rng: random.Random, sources: int, pes: int) -> list[tuple[int, int]]:
    """Edges between nodes: sources come first, and edges lead to later nodes only."""
    nodes = sources + pes
    edges = {(i - sources if i - sources < sources else rng.randrange(i), i) for i in range(sources, nodes)}
    wanted = round(rng.uniform(*_OUT_DEGREE) * nodes)
    possible = pes * (pes - 1) // 2 + sources * pes
    feeding = {j for j, _ in edges}
    while len(edges) < possible and len(edges) + sum(i not in feeding for i in range(nodes)) < wanted:
        i = rng.randrange(sources, nodes)
        j = rng.randrange(sources) if i == sources else rng.randrange(i)
        edges.add((j, i))
        feeding.add(j)
    return sorted(edges, key=lambda edge: (edge[1], edge[0]))


def _configs(rng: random.Random, sizes: Sizes) -> tuple[InputConfiguration, ...]:
    """All combinations of the sources' rates; the highest of each source holds a third of the time."""
    levels = [sorted(_distinct(rng, sizes.levels)) for _ in range(sizes.sources)]
    rest = (1 - _HIGHEST_SHARE) / max(1, sizes.levels - 1)
    shares = [rest] * (sizes.levels - 1) + [_HIGHEST_SHARE if sizes.levels > 1 else Fraction(1)]
    names = ["Low", "High"] if sizes.levels == 2 else [f"{level + 1}" for level in range(sizes.levels)]
    configs = []
    for chosen in itertools.product(range(sizes.levels), repeat=sizes.sources):
        name = "-".join(names[level] for level in chosen)
        prob = math.prod((shares[level] for level in chosen), start=Fraction(1))
        configs.append(InputConfiguration(name, prob, tuple(levels[s][level] for s, level in enumerate(chosen))))
    return tuple(configs)


def _distinct(rng: random.Random, count: int) -> set[Fraction]:
    rates: set[Fraction] = set()
    while len(rates) < count:
        rates.add(_drawn(rng, _RATE, 2))
    return rates


def _placement(rng: random.Random, pes: int, sizes: Sizes) -> Placement:
    """As many replicas on each host, and those of a PE on different hosts where there are enough."""
    hosts, replicas = sizes.hosts, sizes.replicas
    shuffled = rng.sample(range(pes), pes)
    placed: list[tuple[int, ...]] = [()] * pes
    for first in range(0, pes, hosts):
        enough = hosts >= replicas
        shifts = [0, *rng.sample(range(1, hosts), replicas - 1)] if enough else list(range(replicas))
        for at, pe in enumerate(shuffled[first : first + hosts]):
            placed[pe] = tuple((at + shift) % hosts for shift in shifts)
    return tuple(placed)


def _scaled(rng: random.Random, drawn: Descriptor) -> Descriptor:
    """The same with costs such that the hosts are overloaded at the highest rates only."""
    assert drawn.placement is not None
    model, everything = Model(drawn), static_strategy(drawn, drawn.placement)
    low, high = (max(model.load(c, everything.active[c], drawn.placement)) for c in (0, -1))
    least, most = 1 / float(high), 1 / float(low)
    if len(drawn.configs) > 1:
        most = max(min(most, _SINGLE_ROOM / float(high)), least + (most - least) / 4)
    # Away from both ends by more than the rounding.
    scale = least + (most - least) * rng.uniform(0.02, 0.98)
    digits = _SCALE_DIGITS - math.floor(math.log10(scale))
    factor = Fraction(round(scale * 10**digits), 10**digits)
    edges = tuple(dataclasses.replace(edge, cost=edge.cost * factor) for edge in drawn.edges)
    return dataclasses.replace(drawn, edges=edges)


def _drawn(rng: random.Random, bounds: tuple[float, float], digits: int) -> Fraction:
    return Fraction(round(rng.uniform(*bounds) * 10**digits), 10**digits)
