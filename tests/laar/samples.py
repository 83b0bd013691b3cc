"""The paper's example, tiny applications for property tests, and an oracle that tries every strategy."""

from __future__ import annotations

import copy
import itertools
from fractions import Fraction
from typing import Any

from hypothesis import strategies as st

from holdfast.laar import Descriptor, FailureModel, Model, Strategy, read_descriptor
from holdfast.laar.strategy import Placement

_FIGURE_1: dict[str, Any] = {
    "format": "laar-instance-1",
    "name": "figure 1",
    "sources": ["source"],
    "pes": ["pe1", "pe2"],
    "configs": [
        {"name": "Low", "prob": 0.8, "rates": [4]},
        {"name": "High", "prob": 0.2, "rates": [8]},
    ],
    "edges": [
        {"from": "source", "to": "pe1", "selectivity": 1, "cost": 0.1},
        {"from": "pe1", "to": "pe2", "selectivity": 1, "cost": 0.1},
    ],
    "n_hosts": 2,
    "K": 1,
    "k": 2,
    "placement": [[0, 1], [0, 1]],
    "T": 1,
    "ic_target": 0.6,
}


def figure_1(**changes: Any) -> dict[str, Any]:
    return {**copy.deepcopy(_FIGURE_1), **changes}


def one_pe(**changes: Any) -> dict[str, Any]:
    """One PE that needs all of a host of capacity 1."""
    said = figure_1(
        pes=["pe"],
        configs=[{"name": "Only", "prob": 1, "rates": [1]}],
        edges=[{"from": "source", "to": "pe", "selectivity": 1, "cost": 1}],
        placement=[[0, 1]],
    )
    return {**said, **changes}


@st.composite
def tiny(draw: st.DrawFn, replicas: int = 2, most: int = 3, placed: bool = True) -> Descriptor:
    """Few PEs and round numbers, so that limits are met exactly now and then."""
    pes = [f"pe{i}" for i in range(draw(st.integers(1, most)))]
    sources = [f"source{i}" for i in range(draw(st.integers(1, 2)))]
    hosts = draw(st.integers(max(2, replicas), 3)) if placed else replicas
    edges = []
    for i, pe in enumerate(pes):
        for before in [*sources, *pes[:i]]:
            if draw(st.booleans()) or (before == sources[0] and i == 0):
                selectivity = draw(st.sampled_from([0, 0.5, 1, 1.5]))
                cost = draw(st.sampled_from([0, 0.1, 0.3, 0.5]))
                edges.append({"from": before, "to": pe, "selectivity": selectivity, "cost": cost})
    shares = draw(st.sampled_from([["1"], ["2/3", "1/3"], ["0.8", "0.2"], ["1", "0"]]))
    rates = st.sampled_from([0, 1, 2, 4])
    configs = [
        {"name": f"c{c}", "prob": share, "rates": [draw(rates) for _ in sources]} for c, share in enumerate(shares)
    ]
    capacity = st.sampled_from([0.4, 1, 2, 4])
    said = {
        "format": "laar-instance-1",
        "sources": sources,
        "pes": pes,
        "configs": configs,
        "edges": edges,
        "n_hosts": hosts,
        "K": draw(st.one_of(capacity, st.lists(capacity, min_size=hosts, max_size=hosts))),
        "k": replicas,
        "T": draw(st.sampled_from([1, 60])),
        "ic_target": draw(st.sampled_from([0, 0.5, 0.6, "2/3", 0.75, 1])),
    }
    if placed:
        orders = st.permutations(range(hosts))
        said["placement"] = [draw(orders)[:replicas] for _ in pes]
    return read_descriptor(said)


def every_strategy(said: Descriptor, placement: Placement) -> list[Strategy]:
    """All with at least one active replica of each PE."""
    cells = [row for row in itertools.product((0, 1), repeat=said.replicas) if any(row)]
    rows = list(itertools.product(cells, repeat=len(said.pes)))
    return [Strategy(active, placement) for active in itertools.product(rows, repeat=len(said.configs))]


def placements(said: Descriptor) -> list[Placement]:
    """All, with replicas on one host only where there are fewer hosts than replicas."""
    choose = itertools.combinations_with_replacement if said.hosts < said.replicas else itertools.combinations
    hosts = list(choose(range(said.hosts), said.replicas))
    return list(itertools.product(hosts, repeat=len(said.pes)))


def cheapest(
    said: Descriptor,
    failures: FailureModel = FailureModel.PESSIMISTIC,
    penalty: Fraction | None = None,
) -> Fraction | None:
    """Cost and penalty of the best of all strategies, or none if there is no valid one."""
    model, best = Model(said), None
    for placement in [said.placement] if said.placement is not None else placements(said):
        for strategy in every_strategy(said, placement):
            overloaded = any(model.overloaded(c, rows, placement) for c, rows in enumerate(strategy.active))
            if overloaded or (best is not None and penalty is None and model.cost(strategy) >= best):
                continue
            ic = model.guaranteed(strategy, failures)
            if ic < said.ic_target and penalty is None:
                continue
            total = model.cost(strategy) + (penalty or 0) * max(Fraction(0), said.ic_target - ic)
            best = total if best is None else min(best, total)
    return best
