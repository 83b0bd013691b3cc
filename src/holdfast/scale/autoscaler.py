"""The autoscaler: takes the report of every epoch, asks the policy every few seconds, and carries its decisions out.

Time is that of the epochs' commits, so the same reports always lead to the same decisions. A decision is carried out in
the background, since the coordinator waits for the driver, in whose thread epochs are reported. While one is under way
for an operator, nothing is decided about it.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from holdfast.engine.observer import Observer
from holdfast.engine.options import RunOptions
from holdfast.engine.scaling_rules import Scaling, ScalingDecision
from holdfast.epoch.report import EpochReport
from holdfast.epoch.task_commit import PartitionWork
from holdfast.errors import DeclarationError, HoldfastError
from holdfast.meta import MetaStore
from holdfast.scale.coordinator import Coordinator, ExecutorPool
from holdfast.scale.detector import Utilisation
from holdfast.scale.policy import OperatorKind, OperatorLoad, PolicyState, ScaleAction, decide
from holdfast.state.key_load import KeyLoad, merged

__all__ = ["Autoscaler", "autoscaling"]

_SECONDS_TO_END = 10.0

Act = Callable[[str, ScaleAction], int]
"""Carries a decision out for a fragment and returns the first epoch with it; raises if it cannot."""


@dataclass(slots=True)
class _Period:
    """What was measured of an operator since the last report."""

    kind: OperatorKind
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
class _FragmentReports:
    began: float
    periods: dict[str, _Period] = field(default_factory=dict)
    states: dict[str, PolicyState] = field(default_factory=dict)
    recent: dict[str, deque[list[KeyLoad]]] = field(default_factory=dict)
    busy: set[str] = field(default_factory=set)
    """Operators for which a decision is under way, or that cannot be scaled at all."""
    changing: dict[str, int] = field(default_factory=dict)
    """Of these, the operators whose change takes effect with this epoch: epochs before it are still as they were."""

    def changed(self, epoch: int) -> None:
        """An epoch was committed: what has taken effect by then may be decided on again."""
        for operator in [operator for operator, first in self.changing.items() if first <= epoch]:
            del self.changing[operator]
            self.busy.discard(operator)


class Autoscaler(Observer):
    """Feeds detector and policy with reports of epochs, fragment by fragment. `log` has all decisions, oldest first."""

    def __init__(
        self,
        scaling: Scaling,
        most: int,
        act: Act,
        *,
        observer: Observer | None = None,
        background: Callable[[Callable[[], None]], None],
    ) -> None:
        """`background` runs what takes a while; `most` is used where `scaling` does not say. The `observer` is told of
        each decision; what it raises in the background is raised by the next epoch, or by `check`."""
        self.log: list[ScalingDecision] = []
        self._scaling = scaling
        self._most = scaling.most or max(scaling.least, most)
        self._act = act
        self._observer = observer or Observer()
        self._failure: Exception | None = None
        self._background = background
        self._fragments: dict[str, _FragmentReports] = {}
        self._lock = threading.RLock()

    def epoch_committed(self, report: EpochReport) -> None:
        self.check()
        with self._lock:
            fragment = self._fragments.setdefault(report.fragment, _FragmentReports(report.started))
            fragment.changed(report.epoch)
            self._add(fragment, report)
            decided = []
            if report.committed - fragment.began >= self._scaling.report:
                decided = list(self._report(report.fragment, fragment, report.committed))
                self.log += [decision for decision, _ in decided]
        for decision, scale in decided:
            self._observer.scaling_decided(decision)
            if scale is not None:
                self._carry_out(decision, scale)

    def check(self) -> None:
        """Raise what the observer has raised in the background."""
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def _add(self, fragment: _FragmentReports, report: EpochReport) -> None:
        for name, parts in report.work.items():
            kind = OperatorKind.KEYED if all(part.load is not None for part in parts) else OperatorKind.SINGLE
            fragment.periods.setdefault(name, _Period(kind)).add(parts)
        if report.reading and report.greatest and self._scaling.sources:
            # All sources are read by the same tasks: any of their names stands for them.
            source = next(iter(report.greatest))
            fragment.periods.setdefault(source, _Period(OperatorKind.READING)).add(report.reading)

    def _report(
        self, name: str, fragment: _FragmentReports, now: float
    ) -> Iterator[tuple[ScalingDecision, ScaleAction | None]]:
        """What is decided now, and what of it is to be carried out."""
        seconds = now - fragment.began
        for operator, period in fragment.periods.items():
            recent = fragment.recent.setdefault(operator, deque(maxlen=self._scaling.reports))
            recent.append(period.loads)
            if operator in fragment.busy:
                continue
            profile = merged(load for loads in recent for load in loads)
            use = Utilisation(tuple(period.cpu), seconds)
            seen = OperatorLoad(operator, period.kind, now, use, period.bounds, profile)
            state = fragment.states.get(operator, PolicyState())
            fragment.states[operator], action = decide(state, seen, self._scaling, self._most)
            if isinstance(action, ScaleAction):
                fragment.busy.add(operator)
                before, after = action.before, action.partitions
                yield ScalingDecision(now, name, operator, before, after, action.bounds, action.reason), action
            elif action is not None:
                n = action.partitions
                yield ScalingDecision(now, name, operator, n, n, None, action.reason), None
        fragment.began = now
        fragment.periods.clear()

    def _carry_out(self, made: ScalingDecision, scale: ScaleAction) -> None:
        def work() -> None:
            again = True
            try:
                done = replace(made, epoch=self._act(made.fragment, scale))
            except HoldfastError as error:
                done = replace(made, problem=error.problem)
                again = not isinstance(error, DeclarationError)
            except Exception as error:  # noqa: BLE001 - of Spark's gateway, of the system: reported, and tried again
                done = replace(made, problem=f"{type(error).__name__}: {error}")
            with self._lock:
                fragment = self._fragments[made.fragment]
                if done.epoch is not None:
                    fragment.changing[scale.operator] = done.epoch
                elif again:
                    fragment.busy.discard(scale.operator)
                self.log[self.log.index(made)] = done
            try:
                self._observer.scaling_decided(done)
            except Exception as error:  # noqa: BLE001 - raised by the run's own thread
                self._failure = error

        self._background(work)


@contextmanager
def autoscaling(
    options: RunOptions,
    most: int,
    observer: Observer,
    pool: ExecutorPool | None = None,
) -> Iterator[Observer]:
    """Scale what runs with these options within this block: gives the observer that the run is to have. The `observer`
    is told of each decision. `most` is used where `options.scaling` does not say. Executors for new partitions come
    from the `pool`, if there is one."""
    scaling = options.scaling
    if scaling is None:
        yield Observer()
        return
    meta = MetaStore(options.meta or options.store, sync=options.durable)
    coordinator = Coordinator(meta, pool)
    threads: list[threading.Thread] = []

    def act(fragment: str, scale: ScaleAction) -> int:
        return coordinator.scale_out_operator(
            fragment, scale.operator, scale.partitions, scale.bounds, reason=scale.reason
        )

    def background(work: Callable[[], None]) -> None:
        threads.append(threading.Thread(target=work, name="scaling", daemon=True))
        threads[-1].start()

    autoscaler = Autoscaler(scaling, most, act, observer=observer, background=background)
    try:
        yield autoscaler
    finally:
        coordinator.ending = True
        for thread in threads:
            thread.join(_SECONDS_TO_END)
        meta.close()
    autoscaler.check()
