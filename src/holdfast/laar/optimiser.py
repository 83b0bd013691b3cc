"""The optimiser: the activation strategy of least cost that keeps internal completeness.

`solve` asks the master problem which PEs to replicate, packs the single replicas, and verifies the strategy in
fractions. What fractions or packing refute is cut off, and the master is asked again; since the master leaves out no
valid strategy, its first verified answer is an optimum, and that it has none proves that there is none. Where that
takes long, a second thread has packing as part of the program, and the first of the two to end counts. What the master
cannot say goes to one joint program. Whatever happens, the best strategy that was found in time is returned with a
lower bound.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from fractions import Fraction
from threading import Event, Lock

import numpy as np
from numpy.typing import NDArray

from holdfast.laar.descriptor import Descriptor
from holdfast.laar.fullest_strategy import fullest
from holdfast.laar.joint_program import Joint
from holdfast.laar.master_program import Master
from holdfast.laar.milp import TOLERANCE, SolverEnd
from holdfast.laar.model import FailureModel, Model, Phi
from holdfast.laar.replica_packer import Packer
from holdfast.laar.rounded_strategy import rounded
from holdfast.laar.solution import Solution, Status
from holdfast.laar.strategy import Placement, Strategy

__all__ = ["DEFAULT_SECONDS", "solve"]

DEFAULT_SECONDS = 10.0
_LINEAR_ROUNDS = 30
_KEPT_SHARE = 0.3  # of the time: not for a first strategy
_MASTER_SHARE = 0.05  # of the time: after which another thread has packing as part of the program
_RACE_SHARE = 0.5  # of the time: after which that thread is alone, which helps where cores are few
_PLACE_SHARE = 0.6  # of the time that is left
_SMALL = 0.02  # of a host: what is packed last
_SAME_COST = 10 * TOLERANCE  # relatively
_MOST_SLACK = 1e-6  # relatively, for what the tolerance of completeness makes of a penalty


def solve(
    descriptor: Descriptor,
    time_limit: float = DEFAULT_SECONDS,
    *,
    failures: FailureModel = FailureModel.PESSIMISTIC,
    penalty: Fraction | None = None,
    place: bool = False,
    clock: Callable[[], float] = time.monotonic,
) -> Solution:
    """The cheapest valid strategy.

    With a `penalty`, completeness may stay below the target, and costs this much per unit and period. With `place`, or
    without a placement in the descriptor, the placement is found too.
    """
    problem = _Problem(Model(descriptor), failures, penalty, clock, clock(), time_limit)
    placement = None if place else descriptor.placement
    if placement is None and descriptor.hosts == 1:
        placement = ((0,) * descriptor.replicas,) * len(descriptor.pes)
    if placement is not None and failures is FailureModel.PESSIMISTIC:
        return _by_master(problem, placement)
    return _by_joint(problem, placement)


@dataclass(frozen=True, slots=True)
class _Problem:
    """What is asked, and when it was."""

    model: Model
    failures: FailureModel
    penalty: Fraction | None
    clock: Callable[[], float]
    started: float
    time_limit: float

    def left(self) -> float:
        return self.time_limit - (self.clock() - self.started)

    def fine(self, ic: Fraction) -> Fraction:
        """The penalty for an internal completeness."""
        short = max(Fraction(0), self.model.descriptor.ic_target - ic)
        return short * self.penalty if self.penalty is not None else Fraction(0)

    def without(self, status: Status, bound: float | None) -> Solution:
        return Solution(status, None, None, bound, self.clock() - self.started, None)


@dataclass(slots=True)
class _Best:
    """The best strategy so far, and what is known of better ones. Bound and total are of cost and penalty."""

    problem: _Problem
    bound: float
    strategy: Strategy | None = None
    cost: Fraction = Fraction(0)
    ic: Fraction = Fraction(0)
    total: float = math.inf
    stop: Event = field(default_factory=Event)
    """Set when nothing is left to search."""
    _lock: Lock = field(default_factory=Lock)

    def raise_bound(self, bound: float) -> None:
        with self._lock:
            self.bound = max(self.bound, bound)
            self._look()

    def offer(self, strategy: Strategy) -> None:
        """A strategy that fractions have verified."""
        model = self.problem.model
        cost, ic = model.cost(strategy), model.guaranteed(strategy, self.problem.failures)
        total = float(cost + self.problem.fine(ic))
        with self._lock:
            if total < self.total:
                self.strategy, self.cost, self.ic, self.total = strategy, cost, ic, total
            self._look()

    def exhaust(self) -> None:
        """A program has no solution, so there is no strategy; one that was found would say that the solver is wrong."""
        with self._lock:
            if self.strategy is None:
                self.bound = math.inf
                self.stop.set()

    def _look(self) -> None:
        if self.proven:
            self.stop.set()

    @property
    def ended(self) -> bool:
        return self.stop.is_set()

    @property
    def proven(self) -> bool:
        """Whether nothing is cheaper, up to what the solver's tolerance makes of cost and penalty."""
        fine = min(3 * TOLERANCE * float(self.problem.penalty or 0), _MOST_SLACK * abs(self.total))
        slack = _SAME_COST * abs(self.total) + fine
        return self.strategy is not None and self.total <= self.bound + slack

    def solution(self) -> Solution:
        problem = self.problem
        if self.strategy is None and self.bound == math.inf:
            return problem.without(Status.INFEASIBLE, None)
        if self.strategy is None:
            return problem.without(Status.UNKNOWN, self.bound if math.isfinite(self.bound) else None)
        status = Status.OPTIMAL if self.proven else Status.FEASIBLE
        bound = min(self.bound, self.total) if self.bound > -math.inf else None
        seconds = problem.clock() - problem.started
        return Solution(status, self.cost, self.ic, bound, seconds, self.strategy, problem.fine(self.ic))


def _by_master(problem: _Problem, placement: Placement) -> Solution:
    """The pessimistic failure model with a placement: master problem and packing."""
    model = problem.model
    master = Master(model, problem.penalty)
    packers = [Packer(model, c, placement) for c in range(model.n_configs)]
    if not _linear_rows(problem, master, packers):
        return problem.without(Status.INFEASIBLE, None)
    best = _Best(problem, master.cost_of(0.0))
    shares = _rounding(problem, master, packers, best)
    whole = master.twin()
    if best.strategy is None and shares is not None:
        # Hosts are nearly full. Then what may be cut up decides whether there is a packing, so nothing is.
        _race(best, lambda: _split(problem, whole, packers, best, cut_up=0.0),
              lambda: _from_the_fullest(problem, master, packers, best, shares))  # fmt: skip
    elif _search(problem, master, packers, best, pause=(1 - _MASTER_SHARE) * problem.time_limit):
        # Mostly packing as part of the program is faster than to refute one answer after the other, but not always.
        _race(best, lambda: _split(problem, whole, packers, best, cut_up=_SMALL),
              lambda: _while_both_run(problem, master, packers, best))  # fmt: skip
    return best.solution()


def _race(best: _Best, other: Callable[[], None], own: Callable[[], None]) -> None:
    """Two searches in two threads: what the first to end has proven stops the other."""
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(other)
        try:
            own()
        except BaseException:
            best.stop.set()
            raise
        running.result()


def _while_both_run(problem: _Problem, master: Master, packers: list[Packer], best: _Best) -> None:
    _search(problem, master, packers, best, pause=(1 - _RACE_SHARE) * problem.time_limit)


def _from_the_fullest(
    problem: _Problem, master: Master, packers: list[Packer], best: _Best, shares: list[NDArray[np.float64]]
) -> None:
    """A first strategy where rounding has found none, and then what refuting answers can do."""
    kept = _KEPT_SHARE * problem.time_limit
    found = fullest(problem.model, packers, shares, lambda: 0.0 if best.ended else problem.left() - kept)
    if found is not None:
        best.offer(found)
    _while_both_run(problem, master, packers, best)


def _search(problem: _Problem, master: Master, packers: list[Packer], best: _Best, pause: float = 0.0) -> bool:
    """Asks, packs and refutes until something is proven or the time is over. True if it paused with so much time left,
    and would go on."""
    model = problem.model
    while not best.ended:
        outcome = master.solve(problem.left(), start=best.strategy if master.packs else None, stop=best.stop)
        if outcome.end is SolverEnd.INFEASIBLE:
            best.exhaust()
            return False
        best.raise_bound(master.least(outcome))
        if outcome.values is None:
            return False
        phi = master.chosen(outcome.values)
        if problem.penalty is None and model.completeness(phi) < model.descriptor.ic_target:
            master.more_than(phi)
            continue
        try:
            active, refuted = _packed(packers, phi, problem.left)
        except TimeoutError:
            return False
        if active is not None:
            best.offer(Strategy(active, packers[0].placement))
            return False
        for c in refuted:
            _refuse(master, packers[c], c, phi)
        if problem.left() < pause:
            return True
    return False


def _rounding(
    problem: _Problem, master: Master, packers: list[Packer], best: _Best
) -> list[NDArray[np.float64]] | None:
    """Something to return if the time is over soon, from the relaxation, whose φ is returned."""
    model, target = problem.model, problem.model.descriptor.ic_target
    outcome = master.solve(problem.left(), relaxed=True)
    if outcome.values is None:
        return None
    shares = [master.shares(outcome.values, c) for c in range(model.n_configs)]
    aims = [target] if problem.penalty is None else [target, Fraction(0)]
    for aim in aims:
        active = rounded(model, packers, shares, float(aim), problem.left)
        if active is not None:
            strategy = Strategy(active, packers[0].placement)
            if problem.penalty is not None or model.guaranteed(strategy) >= target:
                best.offer(strategy)
    return shares


def _packed(
    packers: list[Packer], phi: Phi, left: Callable[[], float]
) -> tuple[tuple[tuple[tuple[int, ...], ...], ...] | None, list[int]]:
    """Activations for φ, or the configurations in which there is no packing."""
    active = [packer.pack(phi[c], left) for c, packer in enumerate(packers)]
    found = tuple(rows for rows in active if rows is not None)
    refuted = [c for c, rows in enumerate(active) if rows is None]
    return (None if refuted else found), refuted


def _split(problem: _Problem, whole: Master, packers: list[Packer], best: _Best, cut_up: float) -> None:
    """Master and packing as one program, which needs none of the cuts of what could not be packed. PEs that need less
    than `cut_up` of a host may be cut up at first."""
    for packer in packers:
        if packer.critical:
            whole.split(packer, cut_up)
    _search(problem, whole, packers, best)


def _linear_rows(problem: _Problem, master: Master, packers: list[Packer]) -> bool:
    """Adds the rows of sets of hosts that the linear relaxation asks for. False if not even that has a solution."""
    tight = [c for c, packer in enumerate(packers) if packer.critical]
    for c in tight:
        sets = [frozenset([host]) for host in sorted(packers[c].critical)]
        for hosts in [*sets, packers[c].critical]:
            master.room(c, hosts, packers[c].needs(hosts))
    for _ in range(_LINEAR_ROUNDS if tight else 0):
        outcome = master.solve(problem.left(), relaxed=True)
        if outcome.end is SolverEnd.INFEASIBLE:
            return False
        if outcome.values is None:
            return True
        added = False
        for c in tight:
            crowded = packers[c].crowded(master.shares(outcome.values, c))
            if crowded is not None:
                added |= master.room(c, crowded, packers[c].needs(crowded))
        if not added:
            return True
    return True


def _refuse(master: Master, packer: Packer, config: int, phi: Phi) -> None:
    """Cuts off what cannot be packed: by a set of hosts where there is one, else as it is."""
    if master.packs:
        master.uncut()
    crowded = packer.crowded(np.array(phi[config], dtype=np.float64))
    if crowded is None or not master.room(config, crowded, packer.needs(crowded)):
        master.less_than(config, [i for i, on in enumerate(phi[config]) if on])


def _by_joint(problem: _Problem, placement: Placement | None) -> Solution:
    """Everything in one program, for what the master problem cannot say."""
    best = _Best(problem, -math.inf)
    if placement is None and problem.failures is FailureModel.PESSIMISTIC:
        if not _placed_master(problem, best):
            return problem.without(Status.INFEASIBLE, None)
        if best.proven:
            return best.solution()
    joint = Joint(problem.model, placement, problem.failures, problem.penalty)
    while not best.proven:
        start = None if best.strategy is None else joint.start(best.strategy)
        outcome = joint.solve(problem.left(), start=start)
        if outcome.end is SolverEnd.INFEASIBLE:
            best.exhaust()
            break
        if math.isfinite(outcome.bound):
            best.raise_bound(joint.cost_of(outcome.bound))
        if outcome.values is None:
            break
        strategy = joint.strategy(outcome.values)
        if _verified(problem, joint, strategy):
            best.offer(strategy)
            break
        if outcome.end is SolverEnd.TIME:
            break
    return best.solution()


def _placed_master(problem: _Problem, best: _Best) -> bool:
    """The cheapest φ for all hosts taken as one, and a placement for it, which then is optimal. False if there is no
    strategy at all."""
    model = problem.model
    master = Master(model, problem.penalty)
    hosts = frozenset(range(model.descriptor.hosts))
    everywhere = dict.fromkeys(range(model.n_pes), model.descriptor.replicas)
    for c in range(model.n_configs):
        master.room(c, hosts, everywhere)
    outcome = master.solve(problem.left() * _PLACE_SHARE)
    if outcome.end is SolverEnd.INFEASIBLE:
        return False
    best.raise_bound(master.least(outcome))
    if outcome.values is None:
        return True
    phi = master.chosen(outcome.values)
    if problem.penalty is None and model.completeness(phi) < model.descriptor.ic_target:
        return True
    joint = Joint(model, None, problem.failures, problem.penalty)
    joint.fix(phi)
    placed = joint.solve(problem.left() * _PLACE_SHARE)
    if placed.values is not None:
        strategy = joint.strategy(placed.values)
        if _verified(problem, joint, strategy):
            best.offer(strategy)
    return True


def _verified(problem: _Problem, joint: Joint, strategy: Strategy) -> bool:
    """Whether fractions agree; if not, the program is told."""
    model, valid = problem.model, True
    for c, active in enumerate(strategy.active):
        for host in model.overloaded(c, active, strategy.placement):
            joint.crowd(c, host, strategy)
            valid = False
    if problem.penalty is None and model.guaranteed(strategy, problem.failures) < model.descriptor.ic_target:
        joint.forbid(strategy)
        valid = False
    return valid
