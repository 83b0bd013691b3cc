"""The autoscaler: hears of every epoch, reports every few seconds to the policy, and has its decisions carried out.

Time is that of the epochs' commits, so the same reports always lead to the same decisions. A decision is carried out in
the background, since the coordinator waits for the driver, in whose thread epochs are told. While one is under way for
an operator, nothing is decided about it.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from holdfast.epoch.driver import RunOptions
from holdfast.epoch.measuring import PartitionWork
from holdfast.epoch.report import EpochReport
from holdfast.errors import DeclarationError, HoldfastError
from holdfast.meta import MetaStore
from holdfast.scale.coordinator import Coordinator, ExecutorPool
from holdfast.scale.detector import Utilisation
from holdfast.scale.policy import Kind, Measured, OperatorState, Scale, decide
from holdfast.scale.settings import Scaling
from holdfast.state.load import KeyLoad, merged

__all__ = ["Autoscaler", "ScalingDecision", "autoscaling"]

_SECONDS_TO_END = 10.0

Act = Callable[[str, Scale], int]
"""Carries a decision out for a fragment and returns the first epoch with it; raises if it cannot."""


@dataclass(frozen=True, slots=True)
class ScalingDecision:
    """What was decided about an operator of a fragment, why, and what came of it.

    `epoch` is the first one that ran so, `problem` why it was not done; both are None while it is under way. If nothing
    can be done about a bottleneck, `before` and `after` are the same.
    """

    at: float
    fragment: str
    operator: str
    before: int
    after: int
    bounds: tuple[int, ...] | None
    reason: str
    epoch: int | None = None
    problem: str | None = None

    def __str__(self) -> str:
        change = f"{self.before} → {self.after}" if self.acts else f"stays at {self.before}"
        end = f" (from epoch {self.epoch} on)" if self.epoch is not None else ""
        end = f" (not done: {self.problem})" if self.problem is not None else end
        return f"scaling {self.operator} of {self.fragment}: {change}; {self.reason}{end}"

    @property
    def acts(self) -> bool:
        return self.bounds is not None or self.before != self.after


@dataclass(slots=True)
class _Period:
    """What was measured of an operator since the last report."""

    kind: Kind
    cpu: list[float] = field(default_factory=list)
    bounds: tuple[int, ...] = (0,)
    loads: list[KeyLoad] = field(default_factory=list)

    def add(self, parts: tuple[PartitionWork, ...]) -> None:
        bounds = tuple(part.load.interval.lo for part in parts if part.load is not None)
        if len(parts) != len(self.cpu) or bounds != self.bounds:
            # Another routing since: what was measured before says nothing about the partitions there are now.
            self.cpu = [0.0] * len(parts)
            self.bounds = bounds
        self.cpu = [cpu + part.cpu for cpu, part in zip(self.cpu, parts, strict=True)]
        self.loads += [part.load for part in parts if part.load is not None]


@dataclass(slots=True)
class _Fragment:
    began: float
    periods: dict[str, _Period] = field(default_factory=dict)
    states: dict[str, OperatorState] = field(default_factory=dict)
    recent: dict[str, deque[list[KeyLoad]]] = field(default_factory=dict)
    busy: set[str] = field(default_factory=set)
    """Operators for which a decision is under way, or that cannot be scaled at all."""


class Autoscaler:
    """Feeds detector and policy with reports of epochs, fragment by fragment. `log` has all decisions, oldest first."""

    def __init__(
        self,
        scaling: Scaling,
        most: int,
        act: Act,
        *,
        on_decision: Callable[[ScalingDecision], None] | None = None,
        background: Callable[[Callable[[], None]], None],
    ) -> None:
        """`background` runs what takes a while; `most` is used where `scaling` does not say."""
        self.log: list[ScalingDecision] = []
        self._scaling = scaling
        self._most = scaling.most or max(scaling.least, most)
        self._act = act
        self._on_decision = on_decision or (lambda decision: None)
        self._background = background
        self._fragments: dict[str, _Fragment] = {}
        self._lock = threading.RLock()

    def epoch(self, report: EpochReport) -> None:
        """Hear of a committed epoch."""
        with self._lock:
            fragment = self._fragments.setdefault(report.fragment, _Fragment(report.started))
            self._add(fragment, report)
            if report.committed - fragment.began >= self._scaling.report:
                self._report(report.fragment, fragment, report.committed)

    def _add(self, fragment: _Fragment, report: EpochReport) -> None:
        for name, parts in report.work.items():
            kind = Kind.KEYED if all(part.load is not None for part in parts) else Kind.SINGLE
            fragment.periods.setdefault(name, _Period(kind)).add(parts)
        if report.reading and report.greatest and self._scaling.sources:
            # All sources are read by the same tasks: any of their names stands for them.
            source = next(iter(report.greatest))
            fragment.periods.setdefault(source, _Period(Kind.READING)).add(report.reading)

    def _report(self, name: str, fragment: _Fragment, now: float) -> None:
        seconds = now - fragment.began
        for operator, period in fragment.periods.items():
            recent = fragment.recent.setdefault(operator, deque(maxlen=self._scaling.reports))
            recent.append(period.loads)
            if operator in fragment.busy:
                continue
            profile = merged(load for loads in recent for load in loads)
            use = Utilisation(tuple(period.cpu), seconds)
            seen = Measured(operator, period.kind, now, use, period.bounds, profile)
            state = fragment.states.get(operator, OperatorState())
            fragment.states[operator], action = decide(state, seen, self._scaling, self._most)
            if isinstance(action, Scale):
                fragment.busy.add(operator)
                self._carry_out(name, action, now)
            elif action is not None:
                n = action.partitions
                self._tell(ScalingDecision(now, name, operator, n, n, None, action.reason))
        fragment.began = now
        fragment.periods.clear()

    def _carry_out(self, fragment: str, scale: Scale, now: float) -> None:
        made = ScalingDecision(
            now, fragment, scale.operator, scale.before, scale.partitions, scale.bounds, scale.reason
        )
        self._tell(made)

        def work() -> None:
            again = True
            try:
                done = replace(made, epoch=self._act(fragment, scale))
            except HoldfastError as error:
                done = replace(made, problem=error.problem)
                again = not isinstance(error, DeclarationError)
            except Exception as error:  # noqa: BLE001 - of Spark's gateway, of the system: told, and tried again
                done = replace(made, problem=f"{type(error).__name__}: {error}")
            with self._lock:
                if again:
                    self._fragments[fragment].busy.discard(scale.operator)
                self._tell(done, instead_of=made)

        self._background(work)

    def _tell(self, decision: ScalingDecision, instead_of: ScalingDecision | None = None) -> None:
        if instead_of is None:
            self.log.append(decision)
        else:
            self.log[self.log.index(instead_of)] = decision
        self._on_decision(decision)


@contextmanager
def autoscaling(
    scaling: Scaling | None,
    options: RunOptions,
    most: int,
    on_epoch: Callable[[EpochReport], None],
    on_decision: Callable[[ScalingDecision], None] | None = None,
    pool: ExecutorPool | None = None,
) -> Iterator[Callable[[EpochReport], None]]:
    """Scale what runs with these options within this block: gives what is to be told of epochs, which tells `on_epoch`
    in turn. Without `scaling` that is all it does. `most` is used where `scaling` does not say.
    Executors for new partitions come from the `pool`, if there is one."""
    if scaling is None:
        yield on_epoch
        return
    meta = MetaStore(options.meta or options.store, sync=options.durable)
    coordinator = Coordinator(meta, pool)
    threads: list[threading.Thread] = []

    def act(fragment: str, scale: Scale) -> int:
        return coordinator.scale_out_operator(
            fragment, scale.operator, scale.partitions, scale.bounds, reason=scale.reason
        )

    def background(work: Callable[[], None]) -> None:
        threads.append(threading.Thread(target=work, name="scaling", daemon=True))
        threads[-1].start()

    autoscaler = Autoscaler(scaling, most, act, on_decision=on_decision, background=background)

    def both(report: EpochReport) -> None:
        autoscaler.epoch(report)
        on_epoch(report)

    try:
        yield both
    finally:
        coordinator.ending = True
        for thread in threads:
            thread.join(_SECONDS_TO_END)
        meta.close()
