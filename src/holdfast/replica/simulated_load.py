"""The controller over days of load in seconds: what it does, what it costs, and when the promise was not kept.

The wheel of the simulation takes the time that the steps take. A promise counts as broken when a failure at this very
moment would take longer than promised although a scheme keeps it: not only in the forecast, but truly.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from itertools import pairwise

from holdfast.replica.controller import (
    Controller,
    HostJoined,
    Measurement,
    Move,
    Reached,
    RecoveryObserved,
    Say,
    decide,
    transition_seconds,
)
from holdfast.replica.loads import Load
from holdfast.replica.predict import Measured, recovery_cost, recovery_seconds
from holdfast.replica.promise import Caution, Promise
from holdfast.replica.schemes import Scheme

__all__ = ["Broken", "LoadRun", "run_load"]


@dataclass(frozen=True, slots=True)
class Broken:
    """The promise was not kept at this moment, and `better` would have kept it, for so much money per hour."""

    at: float
    scheme: Scheme
    seconds: float
    better: Scheme
    money: float


@dataclass(slots=True)
class LoadRun:
    """What happened. `moves` are steps of the wheel, `money` what secondaries cost, `dearest` what active replication
    all the time would have cost, `seconds` how long each scheme was kept."""

    moves: list[tuple[float, Move]] = field(default_factory=list)
    said: list[tuple[float, Say]] = field(default_factory=list)
    broken: list[Broken] = field(default_factory=list)
    hopeless: float = 0.0
    money: float = 0.0
    dearest: float = 0.0
    seconds: dict[Scheme, float] = field(default_factory=lambda: dict.fromkeys(Scheme, 0.0))

    @property
    def turns(self) -> int:
        """How often the direction on the wheel changed."""
        ups = [move.to.rank < move.scheme.rank for _, move in self.moves]
        return sum(a is not b for a, b in pairwise(ups))


def measured_at(load: Load, speed: float = 1.5e6) -> Measured:
    """A fragment that processes `speed` rows per second and CPU, and has two CPUs for a replay."""
    return Measured(
        state_bytes=load.state_bytes,
        rows_per_second=load.rows_per_second,
        replay_rows_per_second=2 * speed,
        load_bytes_per_second=2e8,
        utilisation=load.rows_per_second / speed,
        output_bytes_per_second=load.rows_per_second,
        changed_bytes_per_second=10 * load.rows_per_second,
    )


def run_load(
    loads: Iterable[Load],
    promise: Promise,
    caution: Caution | None = None,
    *,
    seed: int = 0,
    failures_per_day: float = 2.0,
    factor: float = 1.0,
    warm: float = 120.0,
) -> LoadRun:
    """`factor` is how much longer recoveries really take than predicted, which the controller finds out by those that
    happen. Nothing counts in the first `warm` seconds, in which the first scheme is reached."""
    caution = caution or Caution()
    draw = random.Random(seed)
    run = LoadRun()
    state = Controller(promise, caution)
    state, _ = decide(state, HostJoined(0.0, "a"))
    state, _ = decide(state, HostJoined(0.0, "b"))
    reached: tuple[float, Scheme] | None = None
    before = 0.0
    grace = warm
    for load in loads:
        at, truth = load.at, measured_at(load)
        actions: tuple[Move | Say, ...]
        while reached is not None and reached[0] <= at:
            moment, scheme = reached
            reached = None
            state, actions = decide(state, Reached(moment, scheme))
            reached = _noted(run, actions, moment, truth) or reached
        if draw.random() < failures_per_day * (at - before) / 86_400:
            took = factor * recovery_seconds(state.scheme, truth, precise=promise.precise) * draw.uniform(0.95, 1.05)
            state, actions = decide(state, RecoveryObserved(at, state.scheme, took))
            reached = _noted(run, actions, at, truth) or reached
        state, actions = decide(state, Measurement(at, _noisy(truth, caution.noise, draw)))
        reached = _noted(run, actions, at, truth) or reached
        grace = _judge(run, state, truth, at, at - before, factor, grace)
        before = at
    return run


def _noted(run: LoadRun, actions: Iterable[Move | Say], at: float, truth: Measured) -> tuple[float, Scheme] | None:
    """When the step that was asked for will be reached."""
    for action in actions:
        if isinstance(action, Say):
            run.said.append((at, action))
        else:
            run.moves.append((at, action))
            return at + transition_seconds(action.scheme, action.to, truth), action.to
    return None


def _judge(
    run: LoadRun, state: Controller, truth: Measured, at: float, elapsed: float, factor: float, grace: float
) -> float:
    """Compare with what would be possible. While nothing is, nothing is broken, nor until a move was possible after."""
    prices, promise, scheme = state.caution.prices, state.promise, state.scheme
    cost = {each: recovery_cost(each, truth, prices).money for each in Scheme}
    run.money += cost[scheme] * elapsed / 3600
    run.dearest += cost[Scheme.ACTIVE_REPLICATION] * elapsed / 3600
    run.seconds[scheme] += elapsed
    if promise.recovery is None and promise.budget is None:
        return grace
    seconds = {each: factor * recovery_seconds(each, truth, precise=promise.precise) for each in Scheme}
    keep = [
        each
        for each in Scheme
        if (promise.recovery is None or seconds[each] <= promise.recovery)
        and (promise.budget is None or cost[each] <= promise.budget)
    ]
    if not keep:
        run.hopeless += elapsed
        return at + transition_seconds(Scheme.PASSIVE_REPLICATION, Scheme.ACTIVE_REPLICATION, truth) + 30.0
    if at > grace and scheme not in keep:
        run.broken.append(Broken(at, scheme, seconds[scheme], keep[-1], cost[keep[-1]]))
    return grace


def _noisy(truth: Measured, noise: float, draw: random.Random) -> Measured:
    def off() -> float:
        return 1 + noise * draw.uniform(-1, 1)

    return replace(
        truth,
        state_bytes=truth.state_bytes / off(),
        rows_per_second=truth.rows_per_second / off(),
        replay_rows_per_second=truth.replay_rows_per_second * off(),
    )
