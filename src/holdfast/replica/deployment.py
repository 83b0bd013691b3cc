"""A deployment: the pipeline that hosts run, given by its file, with its options and guarantee; and how hosts receive
it."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, TypedDict, cast

from holdfast.durability.checkpoints import asked_policy
from holdfast.engine.fragment_runs import open_cuts
from holdfast.engine.options import RunOptions, hosted
from holdfast.errors import DeclarationError
from holdfast.graph.guarantee import Delivery, Guarantee
from holdfast.graph.pipeline import Pipeline
from holdfast.graph.policies import CheckpointPolicy, as_policy
from holdfast.laar.host_strategy import ActivationPlan, StoredPlan
from holdfast.meta import MetaStore, ReplicaMeta
from holdfast.plan.cuts import FragmentLinks, links_of
from holdfast.plan.executor_choice import ExecutorName
from holdfast.plan.program import Program, compile_program
from holdfast.replica.keeper import LEAST_BEAT, Timing
from holdfast.replica.margins import ControllerMargins
from holdfast.replica.scheme_change import turn_to
from holdfast.replica.schemes import Scheme, wheel
from holdfast.replica.schemes.active_replication import ACTIVE_REPLICATION
from holdfast.replica.schemes.cold_standby import COLD_STANDBY
from holdfast.replica.seat_store import Agreement
from holdfast.replica.seats import Activate
from holdfast.stored_json import JsonForm

__all__ = ["DeployedOptions", "Deployment", "check_detection", "check_replicable", "deploy", "deployment_of", "release"]


class DeployedOptions(TypedDict, total=False):
    """The options of a run that hosts use; `RunOptions` says what each of them means."""

    partitions: int | None
    tasks: int
    latency: float
    least_rows: int
    most_rows: int
    retain: int | str
    overlap: bool
    durable: bool
    until_idle: bool
    max_epochs: int | None
    max_seconds: float | None
    poll: float | None
    recovery_partitions: int | None
    memory: int | str | None
    deadline: str | int | float | None
    trigger: str | int | float | None
    executor: ExecutorName | None


@dataclass(frozen=True, slots=True, kw_only=True)
class _DeployedFields:
    """What hosts are to run, apart from the plan of activations."""

    pipeline: str
    target: str
    fragments: Mapping[str, FragmentLinks]
    settings: DeployedOptions
    checkpoint: str = "delta"
    scheme: Scheme | None = None
    recovery: float | None = None
    precise: bool = True
    budget: float | None = None
    hosts: tuple[str, ...] = ()
    """Those that a supervisor starts when they are needed; others may join."""
    calm: float = ControllerMargins().calm
    """For how many seconds a slower scheme must have been safe before it is taken."""
    since: float = 0.0
    """When it was given to the hosts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _StoredDeployment(_DeployedFields):
    activation: StoredPlan | None = None


_FORM = JsonForm(_StoredDeployment, "a deployment")


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployment(_DeployedFields):
    """`target` is `FILE:NAME` as for `holdfast run`, with an absolute path. `scheme` is fixed; where it is
    None, the controller keeps the cheapest that keeps the guarantee."""

    activation: ActivationPlan | None = None
    """Where completeness is guaranteed and enough is known to keep it by a plan."""

    @property
    def guarantee(self) -> Guarantee:
        delivery = Delivery.EXACTLY_ONCE if self.precise else Delivery.GAP
        recovery = None if self.recovery is None else f"{round(self.recovery * 1e6)}us"
        return Guarantee(recovery, delivery, self.budget)

    @property
    def margins(self) -> ControllerMargins:
        return ControllerMargins(calm=self.calm)

    def runs_like(self, other: Deployment) -> bool:
        """Whether hosts that run the one run the other, too: which replicas are active may be another."""
        return replace(self, activation=other.activation, since=other.since) == other

    @staticmethod
    def of(options: RunOptions, **given: Any) -> Deployment:
        settings = {name: getattr(options, name) for name in DeployedOptions.__annotations__}
        return Deployment(settings=cast("DeployedOptions", settings), **given)

    @property
    def first_scheme(self) -> Scheme:
        """The scheme to begin with: a controller has nothing measured yet, and begins in the middle."""
        return self.scheme or COLD_STANDBY

    def options(
        self,
        fragment: str,
        store: Path,
        meta: str | None,
        host: str,
        volatile: Path | None,
        executor: ExecutorName | None = None,
    ) -> RunOptions:
        """How a host runs a fragment. `executor` is what the host asks for itself."""
        settings = self.settings.copy()
        if executor is not None:
            settings["executor"] = executor
        if self.fragments[fragment].inner:
            settings.update({"max_epochs": None, "max_seconds": None, "until_idle": True, "trigger": None})
        checkpoint = as_policy(self.checkpoint)
        return hosted(RunOptions(store=store, meta=meta, volatile=volatile, checkpoint=checkpoint, **settings), host)

    def encode(self) -> str:
        activation = None if self.activation is None else StoredPlan.of(self.activation)
        return _FORM.encode(_StoredDeployment(**_values(self), activation=activation))

    @staticmethod
    def decode(text: str) -> Deployment:
        stored = _FORM.decode(text)
        return Deployment(**_values(stored), activation=None if stored.activation is None else stored.activation.plan())


def _values(what: _DeployedFields) -> Any:
    return {item.name: getattr(what, item.name) for item in fields(_DeployedFields)}


def check_replicable(program: Program, policy: CheckpointPolicy | None) -> None:
    """Refuse what cannot be run by several hosts, before anything starts."""
    if program.spark_input is not None:
        raise DeclarationError(
            f"'{program.name}' reads a Spark streaming DataFrame, which belongs to the session of one process",
            cure="run it with `holdfast run`, or read the rows through a p-stream, from_spark(..., stream=...), which"
            " a query fills with writeStream.format('holdfast')",
        )
    asked = asked_policy(program, policy)
    if asked is not None:
        asked.check_on_hosts(program.name)


def deployment_of(
    pipeline: Pipeline,
    target: str,
    options: RunOptions,
    meta: MetaStore,
    scheme: Scheme | None,
    checkpoint: str,
    hosts: Sequence[str],
    calm: float | None = None,
    activation: ActivationPlan | None = None,
) -> Deployment:
    """The deployment of a pipeline; what hosts cannot run is refused."""
    made = open_cuts(pipeline, meta)
    _check_guarantee(pipeline, scheme)
    for fragment in made.fragments:
        check_replicable(compile_program(fragment.pipeline), as_policy(checkpoint))
    guarantee = pipeline.guarantee
    return Deployment.of(
        options,
        pipeline=pipeline.name,
        target=target,
        fragments={fragment.name: links_of(fragment, made.fragments) for fragment in made.fragments},
        checkpoint=checkpoint,
        # Without a bound the cheapest would be nothing at all, which is not why anyone starts several hosts.
        scheme=scheme or _fixed_scheme(guarantee),
        recovery=guarantee.recovery_seconds,
        precise=guarantee.precise,
        budget=guarantee.budget,
        hosts=tuple(hosts),
        calm=ControllerMargins().calm if calm is None else calm,
        activation=activation,
        since=time.time(),
    )


def _fixed_scheme(guarantee: Guarantee) -> Scheme | None:
    """Where completeness is asked for, replicas that are active all process; which ones are is another matter."""
    if guarantee.completeness is not None:
        return ACTIVE_REPLICATION
    return COLD_STANDBY if guarantee.recovery_seconds is None else None


def _check_guarantee(pipeline: Pipeline, scheme: Scheme | None) -> None:
    if pipeline.guarantee.completeness is not None and scheme is not None:
        raise DeclarationError(
            f"'{pipeline.name}' sets both a completeness and a scheme: each decides which replicas are active",
            cure="leave out --scheme, or the completeness",
        )


def check_detection(pipeline: Pipeline, scheme: Scheme | None, timing: Timing) -> str | None:
    """Refuse a scheme that cannot keep the guarantee because failures are noticed too late for it; without one, say so
    if that leaves only schemes in which nothing has to be noticed."""
    bound = pipeline.guarantee.recovery_seconds
    if bound is None or bound > timing.noticed or (scheme is not None and scheme.both_commit):
        return None
    problem = (
        f"'{pipeline.name}' allows no gap in the output longer than {bound:g} s, but it takes up to"
        f" {timing.noticed:g} s to detect that a host has failed"
    )
    shorter = f"--detection {bound / 2:.2g} --beat {bound / 8:.2g}"
    cure = f"detect it sooner, e.g. {shorter}" if bound / 8 >= LEAST_BEAT else "ask for a longer recovery"
    if scheme is not None:
        raise DeclarationError(f"{problem}: {scheme.name} cannot keep that", cure=f"{cure}, or ask for another scheme")
    keeping = " or ".join(scheme.name for scheme in wheel.SCHEMES if scheme.both_commit)
    return f"{problem}: only {keeping} keeps that. For a cheaper scheme {cure}"


def deploy(deployment: Deployment, agreement: Agreement, meta: MetaStore) -> None:
    """Have hosts run it, under the scheme that is asked for."""
    for fragment in deployment.fragments:
        agreement.open(fragment, deployment.first_scheme)
    # First of all, so that no host keeps commanding by an earlier plan.
    ReplicaMeta(meta).deploy(deployment.pipeline, deployment.encode())
    if deployment.activation is not None:
        return
    for fragment in deployment.fragments:
        release(agreement, fragment)
        if deployment.scheme is not None:
            turn_to(agreement, fragment, deployment.scheme)


def release(agreement: Agreement, fragment: str) -> None:
    """What was commanded before does not hold any more."""
    seats = agreement.look([fragment])[fragment].seats
    if seats.active is not None:
        agreement.ask({fragment: [Activate(seats.orders, None, None)]})
