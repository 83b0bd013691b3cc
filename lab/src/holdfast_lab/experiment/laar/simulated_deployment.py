"""A deployment simulated: queues, CPU shares, switches of configuration and failures, in small steps of time.

A fluid model: tuples are amounts. Each active replica has a queue per input; what does not fit is dropped. The replicas
on a host share its CPU evenly, and what one does not need goes to the others. Only the primary, the first replica that
is active and alive, feeds the successors, one step later. Deployments of one application are simulated side by side,
so that a step is a handful of array operations for all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from holdfast.laar.model import Model
from holdfast.laar.rate_controller import Hysteresis, RateController
from holdfast.laar.reaction import AT_ONCE, TURN_SECONDS, RateTrace, Reaction
from holdfast.laar.strategy import Strategy

__all__ = ["DeploymentFigures", "HostCrash", "SimulatedDeployment", "WorstCase", "paper_trace", "simulate"]

_STEP = 0.1
_QUEUE_SECONDS = 2.0
_SHARING_ROUNDS = 4

_Array = NDArray[np.float64]
_Mask = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class WorstCase:
    """The pessimistic failure model, all the time: of each PE one replica is left, an idle one if there is one."""


@dataclass(frozen=True, slots=True)
class HostCrash:
    """A host fails with all its replicas, and they are back after some time."""

    host: int
    at: float
    seconds: float = 16.0


@dataclass(frozen=True, slots=True)
class SimulatedDeployment:
    """A strategy, and what fails."""

    strategy: Strategy
    failure: WorstCase | HostCrash | None = None


@dataclass(frozen=True, slots=True)
class DeploymentFigures:
    """What a deployment did: CPU cycles, and tuples that were processed, dropped and put out by PEs without
    successors. `peak` is the output while the input was in its most demanding configuration."""

    cycles: float
    processed: float
    dropped: float
    output: float
    peak: float


def paper_trace(model: Model, seconds: float = 2 * TURN_SECONDS, peaks: int = 2) -> RateTrace:
    """The least demanding configuration, and the most demanding for a third of the time, in turns."""
    order = sorted(range(model.n_configs), key=lambda c: sum(model.work[c]))
    turn = seconds / peaks
    return RateTrace(((order[0], turn * 2 / 3), (order[-1], turn / 3)) * peaks)


def simulate(
    model: Model,
    deployments: Sequence[SimulatedDeployment],
    trace: RateTrace,
    followed: RateTrace | None = None,
    reaction: Reaction = AT_ONCE,
) -> list[DeploymentFigures]:
    """Runs all deployments through the trace. All share one placement. `followed` is which configuration's replicas are
    active when, where that is known; otherwise a controller sees a change of rates as late as `reaction` says."""
    return _Simulation(model, deployments, trace, followed, reaction).run()


class _Simulation:
    """Arrays are by deployment, edge or PE, and replica."""

    def __init__(
        self,
        model: Model,
        deployments: Sequence[SimulatedDeployment],
        trace: RateTrace,
        followed: RateTrace | None,
        reaction: Reaction,
    ) -> None:
        self.model, self.deployments, self.trace = model, deployments, trace
        self.followed, self.reaction = followed, reaction
        edges = [(edge, i) for i in range(model.n_pes) for edge in model.inflows[i]]
        self.origin = np.array([edge.node for edge, _ in edges])
        self.target = np.array([i for _, i in edges])
        self.cost = np.array([float(edge.cost) for edge, _ in edges])
        self.selectivity = np.array([float(edge.selectivity) for edge, _ in edges])
        self.into = (np.arange(model.n_pes)[:, None] == self.target).astype(np.float64)  # PE by edge
        self.placement = np.array(deployments[0].strategy.placement)
        self.on_host = (self.placement.reshape(-1, 1) == np.arange(model.descriptor.hosts)).astype(np.float64)
        self.capacity = np.array([float(capacity) for capacity in model.descriptor.capacities])
        self.room = model.rate_floats[:, self.origin].max(axis=0) * _QUEUE_SECONDS
        self.active = np.array([deployment.strategy.active for deployment in deployments], dtype=bool)
        self.leaf = np.array([not model.successors[model.n_sources + i] for i in range(model.n_pes)])
        self.hungry = max(range(model.n_configs), key=lambda c: sum(model.work[c]))

    def run(self) -> list[DeploymentFigures]:
        count, replicas, sources = len(self.deployments), self.model.descriptor.replicas, self.model.n_sources
        queue = np.zeros((count, len(self.origin), replicas))
        rates = np.zeros((count, sources + self.model.n_pes))  # tuples in the step before
        cycles, processed, dropped, output, peak = np.zeros((5, count))
        configs = self._configs()
        before: tuple[object, ...] = ()
        for step, config in enumerate(configs):
            now = step * _STEP
            actual = self.trace.at(now)
            rates[:, :sources] = self.model.rate_floats[actual, :sources] * _STEP
            state = (config, *(self._crashed(deployment, now) for deployment in self.deployments))
            if state != before:
                before = state
                running, primary = self._running(config, now)
                on, first = running[:, self.target], primary[:, self.target]
                queue *= on
            queue += rates[:, self.origin, None] * on
            over = np.maximum(queue - self.room[:, None], 0.0)
            queue -= over
            need = self.into @ (queue * self.cost[:, None])
            used = self._shared(need)
            part = np.divide(used, need, out=np.ones_like(need), where=need > 0)
            done = queue * part[:, self.target]
            queue -= done
            counted = (done * first).sum(axis=2)
            out = (counted * self.selectivity) @ self.into.T
            rates[:, sources:] = out
            cycles += used.sum(axis=(1, 2))
            processed += counted.sum(axis=1)
            dropped += (over * first).sum(axis=(1, 2))
            leaving = out[:, self.leaf].sum(axis=1)
            output += leaving
            if actual == self.hungry:
                peak += leaving
        return [
            DeploymentFigures(*(float(total[at]) for total in (cycles, processed, dropped, output, peak)))
            for at in range(count)
        ]

    def _configs(self) -> list[int]:
        """The configuration in use at each step: what the controller makes of the rates it measures."""
        if self.followed is not None:
            return [self.followed.at(step * _STEP) for step in range(round(self.trace.seconds / _STEP))]
        strategy = self.deployments[0].strategy
        hysteresis = Hysteresis(measurements=self.reaction.measurements)
        controller = RateController(self.model.descriptor, strategy, hysteresis, self.trace.at(0.0))
        every, found = round(self.reaction.every / _STEP), []
        for step in range(round(self.trace.seconds / _STEP)):
            if step % every == 0:
                measured_at = max(0.0, step * _STEP - _STEP)  # the rates of the time that has just ended
                rates = self.model.rate_floats[self.trace.at(measured_at), : self.model.n_sources]
                controller.measured(list(rates))
            found.append(controller.config)
        return found

    @staticmethod
    def _crashed(deployment: SimulatedDeployment, now: float) -> int | None:
        failure = deployment.failure
        if isinstance(failure, HostCrash) and failure.at <= now < failure.at + failure.seconds:
            return failure.host
        return None

    def _running(self, config: int, now: float) -> tuple[_Mask, _Mask]:
        """Replicas that are active and alive, and of each PE the first of them."""
        running = self.active[:, config].copy()
        for at, deployment in enumerate(self.deployments):
            if isinstance(deployment.failure, WorstCase):
                survives = running[at].all(axis=1)
                running[at] = False
                running[at][:, -1] = survives
            elif (host := self._crashed(deployment, now)) is not None:
                running[at] &= self.placement != host
        return running, running & (running.cumsum(axis=2) == 1)

    def _shared(self, need: _Array) -> _Array:
        """Cycles that each replica gets in a step: even shares, and what is left is shared again."""
        shape, needs = need.shape, need.reshape(len(need), -1)
        if (needs @ self.on_host <= self.capacity * _STEP).all():
            return need
        got = np.zeros_like(needs)
        for _ in range(_SHARING_ROUNDS):
            left = self.capacity * _STEP - got @ self.on_host
            hungry = (needs - got) > 1e-12
            among = np.maximum(hungry @ self.on_host, 1.0)
            got += np.minimum(needs - got, (np.maximum(left, 0.0) / among) @ self.on_host.T)
        return got.reshape(shape)
