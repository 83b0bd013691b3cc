"""The controller over days of load in seconds: what it does, what it costs, and when the guarantee was not kept.

The wheel of the simulation takes the time that the steps take. A guarantee counts as broken when a failure at this very
moment would take longer than it says although a scheme keeps it: not only in the forecast, but truly.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

from holdfast.graph.guarantee import Guarantee
from holdfast.replica.fragment_metrics import FragmentMetrics
from holdfast.replica.margins import ControllerMargins
from holdfast.replica.prediction import RecoveryCalibration, recovery_cost, recovery_seconds, transition_seconds
from holdfast.replica.scheme_controller import (
    HostJoined,
    Measurement,
    Notice,
    Reached,
    RecoveryObserved,
    SchemeController,
    SchemeStep,
    decide,
)
from holdfast.replica.schemes import Scheme, wheel
from holdfast.replica.schemes.active_replication import ACTIVE_REPLICATION
from holdfast.replica.schemes.passive_replication import PASSIVE_REPLICATION
from holdfast_lab.simulate.loads import Load

__all__ = ["Broken", "LoadRun", "LoadSample", "measured_at", "run_load"]


@dataclass(frozen=True, slots=True)
class Broken:
    """The guarantee was not kept at this moment, and `better` would have kept it, for so much money per hour."""

    at: float
    scheme: Scheme
    seconds: float
    better: Scheme
    money: float


@dataclass(frozen=True, slots=True)
class LoadSample:
    """A moment: the load, the controller, what a recovery would take, and what the secondary costs per hour."""

    load: Load
    state: SchemeController
    seconds: float
    money: float

    @property
    def scheme(self) -> Scheme:
        return self.state.scheme

    @property
    def predicted(self) -> float:
        """What the controller thinks that a recovery would take."""
        state = self.state
        assert state.metrics is not None
        return state.calibration.seconds(state.metrics, precise=state.guarantee.precise)[state.scheme].at(1.0)


@dataclass(slots=True)
class LoadRun:
    """What happened. `moves` are steps of the wheel, `money` what secondaries cost, `seconds` how long each scheme was
    kept. `fixed` is what each scheme would have cost if it had been kept all the time, `lacking` for how many seconds
    it would not have kept the guarantee, and `least` what the best scheme of every moment would have cost."""

    moves: list[tuple[float, SchemeStep]] = field(default_factory=list)
    said: list[tuple[float, Notice]] = field(default_factory=list)
    broken: list[Broken] = field(default_factory=list)
    hopeless: float = 0.0
    money: float = 0.0
    least: float = 0.0
    seconds: dict[Scheme, float] = field(default_factory=lambda: dict.fromkeys(wheel.SCHEMES, 0.0))
    fixed: dict[Scheme, float] = field(default_factory=lambda: dict.fromkeys(wheel.SCHEMES, 0.0))
    lacking: dict[Scheme, float] = field(default_factory=lambda: dict.fromkeys(wheel.SCHEMES, 0.0))
    samples: list[LoadSample] = field(default_factory=list)

    @property
    def dearest(self) -> float:
        """What active replication all the time would have cost."""
        return self.fixed[ACTIVE_REPLICATION]

    @property
    def best_fixed(self) -> Scheme | None:
        """The scheme that would have cost least of those that keep the guarantee all the time, if there is one."""
        kept = [scheme for scheme in wheel.SCHEMES if not self.lacking[scheme]]
        return min(kept, key=lambda scheme: self.fixed[scheme], default=None)

    @property
    def turns(self) -> int:
        """How often the direction on the wheel changed."""
        ups = [wheel.rank(move.to) < wheel.rank(move.scheme) for _, move in self.moves]
        return sum(a is not b for a, b in pairwise(ups))


def measured_at(load: Load, speed: float = 1.5e6) -> FragmentMetrics:
    """A fragment that processes `speed` rows per second and CPU, and has two CPUs for a replay."""
    return FragmentMetrics(
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
    guarantee: Guarantee,
    margins: ControllerMargins | None = None,
    *,
    seed: int = 0,
    failures_per_day: float = 2.0,
    factor: float = 1.0,
    varying: float = 0.0,
    learnt: RecoveryCalibration | None = None,
    warm: float = 120.0,
) -> LoadRun:
    """`factor` is how much longer recoveries really take than predicted, which the controller finds out by those that
    happen; `learnt` is what it knows of that to begin with. Noticing a failure and the other parts of a gap that do not
    depend on the load are measured as up to `varying` too short or too long. Loads may come more often than reports,
    and are judged each time. Nothing counts in the first `warm` seconds, in which the first scheme is reached."""
    margins = margins or ControllerMargins()
    draw = random.Random(seed)
    run = LoadRun()
    state = SchemeController(guarantee, margins, calibration=learnt or RecoveryCalibration())
    state, _ = decide(state, HostJoined(0.0, "a"))
    state, _ = decide(state, HostJoined(0.0, "b"))
    reached: tuple[float, Scheme] | None = None
    before, reported = 0.0, -math.inf
    grace = warm
    for load in loads:
        at, truth = load.at, measured_at(load)
        actions: tuple[SchemeStep | Notice, ...]
        while reached is not None and reached[0] <= at:
            moment, scheme = reached
            reached = None
            state, actions = decide(state, Reached(moment, scheme))
            reached = _noted(run, actions, moment, truth) or reached
        if draw.random() < failures_per_day * (at - before) / 86_400:
            took = factor * recovery_seconds(state.scheme, truth, precise=guarantee.precise) * draw.uniform(0.95, 1.05)
            state, actions = decide(state, RecoveryObserved(at, state.scheme, took))
            reached = _noted(run, actions, at, truth) or reached
        if at - reported >= margins.report:
            reported = at
            state, actions = decide(state, Measurement(at, _noisy(truth, margins.noise, varying, draw)))
            reached = _noted(run, actions, at, truth) or reached
        grace = _judge(run, state, load, at - before, factor, grace)
        before = at
    return run


def _noted(
    run: LoadRun, actions: Iterable[SchemeStep | Notice], at: float, truth: FragmentMetrics
) -> tuple[float, Scheme] | None:
    """When the step that was asked for will be reached."""
    for action in actions:
        if isinstance(action, Notice):
            run.said.append((at, action))
        else:
            run.moves.append((at, action))
            return at + transition_seconds(action.scheme, action.to, truth), action.to
    return None


def _judge(run: LoadRun, state: SchemeController, load: Load, elapsed: float, factor: float, grace: float) -> float:
    """Compare with what would be possible. While nothing is, nothing is broken, nor until a move was possible after."""
    at, truth = load.at, measured_at(load)
    guarantee, scheme = state.guarantee, state.scheme
    bound, budget = guarantee.recovery_seconds, guarantee.budget
    cost = {possible: recovery_cost(possible, truth, state.margins.prices).money for possible in wheel.SCHEMES}
    seconds = {
        possible: factor * recovery_seconds(possible, truth, precise=guarantee.precise) for possible in wheel.SCHEMES
    }
    keep = [
        possible
        for possible in wheel.SCHEMES
        if (bound is None or seconds[possible] <= bound) and (budget is None or cost[possible] <= budget)
    ]
    run.money += cost[scheme] * elapsed / 3600
    run.least += min((cost[possible] for possible in keep), default=cost[scheme]) * elapsed / 3600
    run.seconds[scheme] += elapsed
    for fixed in wheel.SCHEMES:
        run.fixed[fixed] += cost[fixed] * elapsed / 3600
        run.lacking[fixed] += 0.0 if fixed in keep or not keep else elapsed
    run.samples.append(LoadSample(load, state, seconds[scheme], cost[scheme]))
    if not keep:
        run.hopeless += elapsed
        return at + transition_seconds(PASSIVE_REPLICATION, ACTIVE_REPLICATION, truth) + 30.0
    if at > grace and scheme not in keep:
        run.broken.append(Broken(at, scheme, seconds[scheme], keep[-1], cost[keep[-1]]))
    return grace


_VARYING = ("rhythm_seconds", "detection_seconds", "connect_seconds", "commit_seconds")
"""What every gap in the output has, whatever the load."""


def _noisy(truth: FragmentMetrics, noise: float, varying: float, draw: random.Random) -> FragmentMetrics:
    """What was measured: load and state are off by up to `noise`, and the parts of the gap that do not depend on them
    by up to `varying`, which the spread of the measurements shows."""

    def off(most: float) -> float:
        return 1 + most * draw.uniform(-1, 1)

    measured = replace(
        truth,
        state_bytes=truth.state_bytes / off(noise),
        rows_per_second=truth.rows_per_second / off(noise),
        replay_rows_per_second=truth.replay_rows_per_second * off(noise),
    )
    if not varying:
        return measured
    parts: dict[str, Any] = {name: getattr(truth, name) * off(varying) for name in _VARYING}
    return replace(measured, spreads={name: took * varying / math.sqrt(3) for name, took in parts.items()}, **parts)
