"""A first strategy, without a search: the linear relaxation, rounded.

PEs are replicated in the order of their shares in the relaxation, until completeness is reached. Where single replicas
then do not fit as they are packed greedily, what was replicated last on a full host is left out, and others follow.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from holdfast.laar.model import Model, Phi
from holdfast.laar.replica_packer import Packer, Rows

__all__ = ["rounded"]

_ROOM = 1e-12  # for what floats make of completeness


def rounded(
    model: Model,
    packers: Sequence[Packer],
    shares: Sequence[NDArray[np.float64]],
    target: float,
    left: Callable[[], float],
) -> tuple[Rows, ...] | None:
    """Activations that fit and keep the target, as far as floats can tell; none if no way was found soon."""
    rank = {pe: at for at, pe in enumerate(model.order)}
    order = [(c, i) for c in range(model.n_configs) for i in range(model.n_pes)]
    order.sort(key=lambda pair: (-round(float(shares[pair[0]][pair[1]]), 6), rank[pair[1]]))
    while left() > 0:
        phi = _reaching(model, order, target + _ROOM if target else 0.0)
        if phi is None:
            return None
        active = [packer.greedy(on) for packer, on in zip(packers, phi, strict=True)]
        fitting = tuple(rows for rows in active if rows is not None)
        if len(fitting) == len(packers):
            return fitting
        for c in (c for c, rows in enumerate(active) if rows is None):
            full, placement = packers[c].critical, packers[c].placement
            crowd = [(at, i) for at, i in order if at == c and phi[c][i] and not full.isdisjoint(placement[i])]
            if not crowd:
                return None
            order.remove(crowd[-1])
    return None


def _reaching(model: Model, order: Sequence[tuple[int, int]], target: float) -> Phi | None:
    """The first few that together reach the target."""
    low, high = 0, len(order)
    if _completeness(model, _chosen(model, order)) < target:
        return None
    while low < high:
        middle = (low + high) // 2
        if _completeness(model, _chosen(model, order[:middle])) < target:
            low = middle + 1
        else:
            high = middle
    return _chosen(model, order[:low])


def _chosen(model: Model, pairs: Sequence[tuple[int, int]]) -> Phi:
    chosen = [[False] * model.n_pes for _ in range(model.n_configs)]
    for c, i in pairs:
        chosen[c][i] = True
    return tuple(tuple(row) for row in chosen)


def _completeness(model: Model, phi: Phi) -> float:
    """As the model has it, but in floats: it is asked for often."""
    total, sources = 0.0, model.n_sources
    for c, alive in enumerate(phi):
        rates = [*model.rate_floats[c][:sources].tolist(), *[0.0] * model.n_pes]
        processed = 0.0
        for i in model.order:
            if alive[i]:
                for node, selectivity in model.inflow_floats[i]:
                    processed += rates[node]
                    rates[sources + i] += selectivity * rates[node]
        total += float(model.probs[c]) * processed
    return total * float(model.descriptor.period) / float(model.bic) if model.bic else 1.0
