"""The six ways to replicate that the paper compares: NR, SR, GRD and LAAR for three targets."""

from __future__ import annotations

import dataclasses
from fractions import Fraction

from holdfast.laar.descriptor import Descriptor
from holdfast.laar.model import Model
from holdfast.laar.optimiser import solve
from holdfast.laar.strategy import Placement, Strategy, static_strategy

__all__ = ["TARGETS", "greedy", "not_replicated", "variants"]

TARGETS = {"L.5": Fraction(1, 2), "L.6": Fraction(3, 5), "L.7": Fraction(7, 10)}


def variants(descriptor: Descriptor, time_limit: float, room: Fraction = Fraction(0)) -> dict[str, Strategy] | None:
    """All six by name, for the descriptor's placement; none if LAAR has no strategy for one of its targets.

    LAAR's targets are raised by `room`, for what may be lost while the controller has not yet seen a change.
    """
    assert descriptor.placement is not None
    laar: dict[str, Strategy] = {}
    for name, target in TARGETS.items():
        found = solve(dataclasses.replace(descriptor, ic_target=target + room), time_limit).strategy
        if found is None:
            return None
        laar[name] = found
    model = Model(descriptor)
    return {
        "NR": not_replicated(model, laar["L.5"]),
        "SR": static_strategy(descriptor, descriptor.placement),
        "GRD": greedy(model, descriptor.placement),
        **laar,
    }


def not_replicated(model: Model, strategy: Strategy) -> Strategy:
    """One replica of each PE all the time: of those that a strategy runs in the most demanding configuration."""
    hungry = max(range(model.n_configs), key=lambda c: sum(model.work[c]))
    single = tuple(tuple(int(r == row.index(1)) for r in range(len(row))) for row in strategy.active[hungry])
    return Strategy((single,) * model.n_configs, strategy.placement)


def greedy(model: Model, placement: Placement) -> Strategy:
    """Everything active, and then redundant replicas are made idle until no host is overloaded: on the fullest host
    the one that needs the most, upstream ones before downstream ones."""
    replicas = model.descriptor.replicas
    position = {pe: at / model.n_pes for at, pe in enumerate(model.order)}
    active = []
    for c in range(model.n_configs):
        rows = [[1] * replicas for _ in placement]
        stuck: set[int] = set()
        while True:
            now = tuple(tuple(row) for row in rows)
            loads = model.load(c, now, placement)
            hosts = [h for h in model.overloaded(c, now, placement) if h not in stuck]
            if not hosts:
                break
            fullest = max(hosts, key=lambda h: loads[h])
            redundant = [
                (i, r)
                for i, hosts_of in enumerate(placement)
                for r, host in enumerate(hosts_of)
                if host == fullest and rows[i][r] and sum(rows[i]) > 1
            ]
            if not redundant:
                stuck.add(fullest)
                continue
            i, r = max(redundant, key=lambda at: float(model.work[c][at[0]]) * (2 - position[at[0]]))
            rows[i][r] = 0
        active.append(tuple(tuple(row) for row in rows))
    return Strategy(tuple(active), placement)
