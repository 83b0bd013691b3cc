"""A guarantee of completeness on hosts: from a given descriptor, or from what the hosts have measured, to the plan of
which replicas are active at which rates.

Until enough is known, all replicas are active, which loses nothing and costs the most.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path

from holdfast.engine.fragment_runs import open_cuts
from holdfast.errors import DescriptorError
from holdfast.graph.pipeline import Pipeline
from holdfast.laar.descriptor import Descriptor, load_descriptor
from holdfast.laar.epoch_journal import read_journals, works_of
from holdfast.laar.host_strategy import ActivationPlan, Feed, planned
from holdfast.laar.measured_descriptor import MeasurementSettings, feeds_of, measured_descriptor, written_rows
from holdfast.laar.milp import highs
from holdfast.laar.model import Model
from holdfast.laar.optimiser import DEFAULT_SECONDS
from holdfast.laar.rate_controller import ON_HOSTS
from holdfast.laar.strategy_report import room_of
from holdfast.meta import MetaStore, ReplicaMeta
from holdfast.plan.cuts import CutPipeline
from holdfast.plurals import counted
from holdfast.replica.cores import usable, well_spread
from holdfast.replica.deployment import Deployment

__all__ = ["CompletenessPlanner", "CompletenessSettings", "completeness_planner", "described"]

_FEWEST_SECONDS = 30.0
_WORTH_MOVING = 1.05
_SECONDS_WHILE_RUNNING = 2.0  # hosts that have died are not started again meanwhile


def _capacity(hosts: Sequence[str], here: Sequence[str], *, pinned: bool) -> Fraction:
    """CPU seconds per second of each host: its part of this machine, or the cores that it is kept to."""
    if pinned and here:
        return Fraction(min(len(cores) for cores in well_spread(here).values()))
    return Fraction(len(usable()), max(1, len(here) or len(hosts)))


def completeness_planner(
    pipeline: Pipeline,
    store: Path,
    meta: MetaStore,
    here: Sequence[str],
    elsewhere: Sequence[str],
    settings: CompletenessSettings,
    tell: Callable[[str], None],
) -> CompletenessPlanner | None:
    """What keeps the pipeline's guarantee of completeness on the hosts that are started here and those that are not;
    None if it has none."""
    target = pipeline.guarantee.completeness
    if target is None:
        if settings.descriptor is not None:
            raise DescriptorError(
                f"a descriptor is given, but '{pipeline.name}' has no guarantee of completeness",
                cure="declare it: hf.Pipeline(..., guarantee=hf.Guarantee(completeness=0.7))",
            )
        return None
    highs()  # a missing solver is an error now, and not of the first plan
    hosts = [*here, *elsewhere]
    twice = [name for name in hosts if hosts.count(name) > 1]
    if len(hosts) < 2 or twice:
        problem = f"host '{twice[0]}' is named twice" if twice else f"{len(hosts)} host(s) can be planned with"
        raise DescriptorError(
            f"'{pipeline.name}' guarantees a completeness, but {problem}",
            cure="start two or more with --hosts, or name those on other machines: --elsewhere NAME",
        )
    room = settings.capacity
    capacity = _capacity(hosts, here, pinned=settings.pinned) if room is None else Fraction(repr(room))
    cuts = open_cuts(pipeline, meta)
    return CompletenessPlanner(
        pipeline.name, target, cuts, store, meta, hosts, capacity, settings.descriptor, settings.every, tell,
        shared=room is None,
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class CompletenessSettings:
    """`capacity` is of each host; `every` is how many seconds pass from one plan to the next."""

    descriptor: Path | None = None
    capacity: float | None = None
    pinned: bool = False
    every: float = 60.0


@dataclass(slots=True)
class CompletenessPlanner:
    """`every` is how many seconds pass from one look at what was measured to the next; a descriptor that is given is
    never changed."""

    pipeline: str
    target: float
    cuts: CutPipeline
    store: Path
    meta: MetaStore
    hosts: Sequence[str]
    capacity: Fraction
    descriptor: Path | None = None
    every: float = 60.0
    tell: Callable[[str], None] = lambda text: None
    shared: bool = False
    """Whether the capacity is all that a host has, also for what it uses in addition to the tasks of epochs."""
    _said: str = ""
    _looked_at: float | None = None

    def plan(self) -> ActivationPlan | None:
        """What is to be active when; None as long as too little is known. A descriptor that does not do is an error."""
        if self.descriptor is not None:
            return self._planned(load_descriptor(self.descriptor), str(self.descriptor))
        return self._measured()

    def tick(self, deployment: Deployment, now: float) -> Deployment:
        """Every now and then: plan by what was measured since, and have the hosts know."""
        if self.descriptor is not None or (self._looked_at is not None and now - self._looked_at < self.every):
            return deployment
        first, self._looked_at = self._looked_at is None, now
        before = deployment.activation
        plan = None if first else self._measured(before)
        if plan is None or (before is not None and _alike(before, plan)):
            return deployment
        self._say(f"completeness: {described(plan)}")
        after = replace(deployment, activation=plan)
        ReplicaMeta(self.meta).deploy(deployment.pipeline, after.encode())
        return after

    def _measured(self, before: ActivationPlan | None = None) -> ActivationPlan | None:
        """A plan by what the hosts have measured; the strategy of the one before, if that still does."""
        now = {fragment.name for fragment in self.cuts.fragments}
        works = [work for work in read_journals(self.store, self.pipeline, now) if work.epochs]
        if {work.fragment for work in works} != now or not all(
            work.epochs[-1].committed - work.epochs[0].started >= _FEWEST_SECONDS for work in works
        ):
            self._say("completeness: all replicas are active until there are enough measurements")
            return None
        target = Fraction(repr(self.target))
        settings = MeasurementSettings(
            hosts=len(self.hosts), capacity=self.capacity, shared=self.shared, ic_target=target
        )
        try:
            descriptor = measured_descriptor(self.pipeline, works, written_rows(works, self.meta), settings)
            epochs = sum(len(work.epochs) for work in works)
            plan = self._planned(descriptor, f"measured from {counted(epochs, 'epoch')}", _SECONDS_WHILE_RUNNING)
        except DescriptorError as error:
            self._say(f"completeness: the active replicas stay as they are: {error}")
            return None
        return plan if before is None else _kept(before, plan)

    def _planned(self, descriptor: Descriptor, origin: str, seconds: float = DEFAULT_SECONDS) -> ActivationPlan:
        feeds: dict[str, Feed] = feeds_of(works_of(self.pipeline, self.cuts.fragments))
        fragments = [fragment.name for fragment in self.cuts.fragments]
        return planned(descriptor, self.target, self.hosts, fragments, feeds, origin, seconds)

    def _say(self, text: str) -> None:
        if text != self._said:
            self._said = text
            self.tell(text)


def described(plan: ActivationPlan) -> str:
    """What a plan keeps and costs."""
    saved = 1 - plan.cost / plan.static_cost if plan.static_cost else 0.0
    return (
        f"{plan.ic:.4g} is guaranteed, {room_of(plan.room)}, for {plan.cost:.4g} CPU seconds per second, {saved:.0%}"
        f" less than with all replicas active; {plan.origin}"
    )


def _kept(before: ActivationPlan, plan: ActivationPlan) -> ActivationPlan:
    """The new plan with the strategy of the one before, if that keeps the target and costs about the same: replicas
    are not moved for nothing."""
    old, new = before.descriptor, plan.descriptor
    if old.pes != new.pes or before.hosts != plan.hosts or len(old.configs) != len(new.configs):
        return plan
    found = Model(new).evaluate(before.strategy)
    if not found.valid or float(found.cost) > _WORTH_MOVING * plan.cost:
        return plan
    return replace(plan, strategy=before.strategy, ic=float(found.ic), cost=float(found.cost))


def _alike(before: ActivationPlan, plan: ActivationPlan) -> bool:
    """Whether the hosts do the same already: the same replicas at about the same rates, and none so much higher that
    the controller would lastingly take it for the next configuration."""
    if before.strategy != plan.strategy or len(before.descriptor.configs) != len(plan.descriptor.configs):
        return False
    pairs = zip(before.descriptor.configs, plan.descriptor.configs, strict=True)
    return all(
        old <= (1 + ON_HOSTS.tolerance) * float(new) and new <= (1 + ON_HOSTS.tolerance / 2) * float(old)
        for one, other in pairs
        for old, new in zip(one.rates, other.rates, strict=True)
    )
