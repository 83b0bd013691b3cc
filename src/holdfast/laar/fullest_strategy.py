"""A strategy that keeps much completeness, whatever it costs: where hosts are nearly full, the first one to be found.

Completeness is a sum over configurations, and each configuration has hosts of its own, so that the most of each is the
most of all. Where hosts could be overloaded, the linear relaxation of completeness and packing is solved again and
again; each time the largest replica that it cuts up is decided, until it cuts up none. Decisions that leave too little
are taken back. What is more than the target asks for is then deactivated, the least valuable first.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from holdfast.laar.flow import Sum, add_flow
from holdfast.laar.milp import IntegerProgram, Relaxation, SolverEnd
from holdfast.laar.model import Model
from holdfast.laar.replica_packer import Packer, Rows
from holdfast.laar.strategy import Strategy

__all__ = ["fullest"]

_WHOLE = 1e-6
_MOST_ROUNDS = 2_000
_ROOM = 1e-7
"""Of a host: left empty, so that what floats call full is not overloaded."""


def fullest(
    model: Model,
    packers: Sequence[Packer],
    shares: Sequence[NDArray[np.float64]],
    left: Callable[[], float],
) -> Strategy | None:
    """A strategy that keeps the target, if this way leads to one. `shares` say which replication is worth its cost: the
    greater ones are kept."""
    target = model.descriptor.ic_target
    most = [_relaxed(packer, left) for packer in packers]
    active = [_most(packer, float(target) - sum(most) + own, left) for packer, own in zip(packers, most, strict=True)]
    found = tuple(rows for rows in active if rows is not None)
    if len(found) < len(packers):
        return None
    strategy = Strategy(found, packers[0].placement)
    if model.guaranteed(strategy) < target:
        return None
    pairs = [(c, i) for c, rows in enumerate(found) for i, row in enumerate(rows) if all(row)]
    pairs.sort(key=lambda pair: float(shares[pair[0]][pair[1]]))
    low, high = 0, len(pairs)  # so many can be left out
    while low < high:
        middle = (low + high + 1) // 2
        if model.guaranteed(_without(strategy, pairs[:middle])) >= target:
            low = middle
        else:
            high = middle - 1
    strategy = _without(strategy, pairs[:low])
    for pair in pairs[low:]:  # where those that are worth less have gone, one that is worth more may do nothing
        less = _without(strategy, [pair])
        if model.guaranteed(less) >= target:
            strategy = less
    return strategy


def _relaxed(packer: Packer, left: Callable[[], float]) -> float:
    """The most completeness that one configuration could have if replicas could be cut up."""
    program, _, _ = _program(packer, 0.0)
    outcome = program.solve(left(), relaxed=True)
    return 1.0 if outcome.values is None else -outcome.objective


def _without(strategy: Strategy, pairs: Sequence[tuple[int, int]]) -> Strategy:
    """Some PEs with their first replica alone. No host has more to do for it."""
    gone = set(pairs)
    return Strategy(
        tuple(
            tuple((1, *[0] * (len(row) - 1)) if (c, i) in gone else row for i, row in enumerate(rows))
            for c, rows in enumerate(strategy.active)
        ),
        strategy.placement,
    )


@dataclass(slots=True)
class _Guess:
    """A variable was decided; the other way was `tried` before, or not yet."""

    variable: int
    on: bool
    tried: bool = False

    def make(self, relaxation: Relaxation) -> None:
        relaxation.bound(self.variable, float(self.on), float(self.on))

    def undo(self, relaxation: Relaxation) -> None:
        relaxation.bound(self.variable, 0.0, 1.0)

    def other(self) -> _Guess:
        return _Guess(self.variable, not self.on, tried=True)


def _most(packer: Packer, least: float, left: Callable[[], float]) -> Rows | None:
    """Activations of one configuration with some completeness at least; none if none was found soon."""
    model = packer.model
    if not packer.critical:
        return ((1,) * model.descriptor.replicas,) * model.n_pes
    program, phi, runs = _program(packer, least)
    relaxation, work = Relaxation(program), model.work_floats[packer.config]
    guesses: list[_Guess] = []
    for _ in range(_MOST_ROUNDS):
        if left() <= 0:
            return None
        outcome = relaxation.solve()
        if outcome.end is SolverEnd.INFEASIBLE:
            while guesses and guesses[-1].tried:
                guesses.pop().undo(relaxation)
            if not guesses:
                return None
            guesses[-1].undo(relaxation)
            guesses.append(guesses.pop().other())
        elif outcome.end is not SolverEnd.OPTIMAL or outcome.values is None:
            return None
        else:
            guess = _next(phi, runs, work, outcome.values)
            if guess is None:
                active = _active(packer, {key for key, v in runs.items() if outcome.values[v] > 0.5})
                return None if model.overloaded(packer.config, active, packer.placement) else active
            guesses.append(guess)
        guesses[-1].make(relaxation)
    return None


def _next(
    phi: Sequence[int], runs: Mapping[tuple[int, int], int], work: NDArray[np.float64], values: NDArray[np.float64]
) -> _Guess | None:
    """What to decide next: where a large PE runs before a small one, and last what is replicated."""
    undecided = [key for key, v in runs.items() if _WHOLE < values[v] < 1 - _WHOLE]
    if undecided:
        variable = runs[max(undecided, key=lambda key: (work[key[0]], values[runs[key]]))]
        return _Guess(variable, bool(values[variable] >= 0.5))
    cut_up = [v for v in phi if _WHOLE < values[v] < 1 - _WHOLE]
    return _Guess(max(cut_up, key=lambda v: values[v]), on=True) if cut_up else None


def _program(packer: Packer, least: float) -> tuple[IntegerProgram, list[int], dict[tuple[int, int], int]]:
    """The most completeness that one configuration can have, with the variables that say which PE is replicated, and
    which runs on which host that could be overloaded."""
    model, config = packer.model, packer.config
    program, work = IntegerProgram(), model.work_floats[config]
    phi = [program.variable() for _ in range(model.n_pes)]
    completeness = add_flow(program, model, config, phi)
    for variable, part in completeness.terms.items():
        program.reward(variable, part)
    program.row(completeness.terms, low=least - completeness.constant)
    runs: dict[tuple[int, int], int] = {}
    loads = {host: Sum() for host in packer.critical}
    for i, hosts in enumerate(packer.placement):
        for host in hosts:
            if host not in loads:
                continue
            if (i, host) in runs:  # a further replica beside the first
                loads[host].add(phi[i], work[i] / packer.capacities[host])
                continue
            runs[i, host] = program.variable()
            loads[host].add(runs[i, host], work[i] / packer.capacities[host])
            program.row({phi[i]: 1.0, runs[i, host]: -1.0}, high=0.0)
        if i not in packer.home:
            mine = [runs[i, host] for host in set(hosts)]
            program.row({**dict.fromkeys(mine, 1.0), phi[i]: 1.0 - len(mine)}, low=1.0)
    for load in loads.values():
        program.row(load.terms, high=1 - _ROOM)
    return program, phi, runs


def _active(packer: Packer, on: set[tuple[int, int]]) -> Rows:
    rows = []
    for i, hosts in enumerate(packer.placement):
        whole = all((i, host) in on for host in hosts if host in packer.critical)
        first = {host: r for r, host in reversed(list(enumerate(hosts)))}
        rows.append(
            tuple(
                int(whole or ((i, host) in on and first[host] == r) or packer.home.get(i) == r)
                for r, host in enumerate(hosts)
            )
        )
    return tuple(rows)
