"""An operator under a load that a test makes up: hours of it in milliseconds, with the real detector and policy."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

from holdfast.engine.scaling_rules import Scaling
from holdfast.scale.detector import Utilisation
from holdfast.scale.policy import OperatorKind, OperatorLoad, PolicyState, ScaleAction, ScalingObstacle, decide
from holdfast.state.key_load import Cell, HeavyKey, LoadProfile
from holdfast.state.routing import Routing

END = 1 << 64


def even_profile(rows: float = 1_000.0, heavy: tuple[HeavyKey, ...] = ()) -> LoadProfile:
    cells = tuple(Cell(n * END // 64, (n + 1) * END // 64, rows / 64) for n in range(64))
    return LoadProfile(cells, heavy)


@dataclass(slots=True)
class Simulation:
    """`demand` is how many CPUs the operator would use at a time. A partition cannot use more than one."""

    demand: Callable[[float], float]
    scaling: Scaling = field(default_factory=Scaling)
    most: int = 16
    profile: LoadProfile = field(default_factory=even_profile)
    noise: float = 0.0
    kind: OperatorKind = OperatorKind.KEYED
    bounds: tuple[int, ...] = (0,)
    tasks: int = 1
    seed: int = 0
    changes: list[tuple[float, ScaleAction]] = field(default_factory=list)
    stuck: list[ScalingObstacle] = field(default_factory=list)
    _known: dict[tuple[int, ...], list[float]] = field(default_factory=dict)

    @property
    def partitions(self) -> int:
        return self.tasks if self.kind is OperatorKind.READING else len(self.bounds)

    def run(self, seconds: float, begin: float = 0.0) -> Simulation:
        draw = random.Random(self.seed)
        state = PolicyState()
        at = begin
        while at < begin + seconds:
            at += self.scaling.report
            state, action = decide(state, self._measured(at, draw), self.scaling, self.most)
            if isinstance(action, ScaleAction):
                self.changes.append((at, action))
                self.bounds, self.tasks = action.bounds or self.bounds, action.partitions
            elif action is not None:
                self.stuck.append(action)
        return self

    def _measured(self, at: float, draw: random.Random) -> OperatorLoad:
        seconds = self.scaling.report
        shares = [1 / self.tasks] * self.tasks if self.kind is OperatorKind.READING else self._shares()
        demand = self.demand(at)
        cpu = tuple(
            seconds * min(1.0, max(0.0, demand * share * (1 + self.noise * draw.uniform(-1, 1)))) for share in shares
        )
        return OperatorLoad("counts", self.kind, at, Utilisation(cpu, seconds), self.bounds, self.profile)

    def _shares(self) -> list[float]:
        if self.bounds not in self._known:
            routing = Routing(self.bounds)
            total = self.profile.rows
            parts = range(routing.partitions)
            self._known[self.bounds] = [self.profile.within(routing.interval(n)) / total for n in parts]
        return self._known[self.bounds]
