"""A deployment: the pipeline that hosts run, by its file, with its options and guarantee; handing it to the hosts."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from holdfast.durability.checkpoints import asked_policy
from holdfast.engine.fragment_runs import open_cuts
from holdfast.engine.options import RunOptions, hosted
from holdfast.errors import DeclarationError
from holdfast.graph.guarantee import Delivery, Guarantee
from holdfast.graph.pipeline import Pipeline
from holdfast.graph.policies import CheckpointPolicy, as_policy
from holdfast.laar.host_strategy import ActivationPlan
from holdfast.meta import MetaStore, ReplicaMeta
from holdfast.plan.cuts import FragmentLinks, links_of
from holdfast.plan.program import Program, compile_program
from holdfast.replica.keeper import LEAST_BEAT, Timing
from holdfast.replica.margins import ControllerMargins
from holdfast.replica.scheme_change import turn_to
from holdfast.replica.schemes import Scheme, wheel
from holdfast.replica.schemes.active_replication import ACTIVE_REPLICATION
from holdfast.replica.schemes.cold_standby import COLD_STANDBY
from holdfast.replica.seat_store import Agreement
from holdfast.replica.seats import Activate

__all__ = ["Deployment", "check_detection", "check_replicable", "deploy", "deployment_of", "release"]

_SETTINGS = (
    "partitions", "tasks", "latency", "least_rows", "most_rows", "retain", "overlap", "durable", "until_idle",
    "max_epochs", "max_seconds", "poll", "recovery_partitions", "memory", "deadline", "trigger",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployment:
    """`target` is `FILE:NAME` as for `holdfast run`, with an absolute path. `scheme` is fixed; where it is
    None, the controller keeps the cheapest that keeps the guarantee."""

    pipeline: str
    target: str
    fragments: Mapping[str, FragmentLinks]
    settings: Mapping[str, Any]
    checkpoint: str = "delta"
    scheme: Scheme | None = None
    recovery: float | None = None
    precise: bool = True
    budget: float | None = None
    hosts: tuple[str, ...] = ()
    """Those that a supervisor starts when they are needed; others may join."""
    calm: float = ControllerMargins().calm
    """For how many seconds a slower scheme must have been safe before it is taken."""
    activation: ActivationPlan | None = None
    """Where completeness is guaranteed and enough is known to keep it by a plan."""
    since: float = 0.0
    """When it was given to the hosts."""

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
        return Deployment(settings={name: getattr(options, name) for name in _SETTINGS}, **given)

    @property
    def first_scheme(self) -> Scheme:
        """The scheme to begin with: a controller has nothing measured yet, and begins in the middle."""
        return self.scheme or COLD_STANDBY

    def options(self, fragment: str, store: Path, meta: str | None, host: str, volatile: Path | None) -> RunOptions:
        """How a host runs a fragment."""
        settings = dict(self.settings)
        if self.fragments[fragment].inner:
            settings |= {"max_epochs": None, "max_seconds": None, "until_idle": True, "trigger": None}
        checkpoint = as_policy(self.checkpoint)
        options = RunOptions(store=store, meta=meta, volatile=volatile, checkpoint=checkpoint, **settings)
        return hosted(options, host)

    def to_json(self) -> dict[str, Any]:
        return {
            **{field.name: getattr(self, field.name) for field in fields(self)},
            "fragments": {name: asdict(links) for name, links in self.fragments.items()},
            "settings": dict(self.settings),
            "scheme": None if self.scheme is None else self.scheme.name,
            "activation": None if self.activation is None else self.activation.to_json(),
        }

    @staticmethod
    def from_json(value: Mapping[str, Any]) -> Deployment:
        links = {
            name: FragmentLinks(tuple(links["upstream"]), links["inner"]) for name, links in value["fragments"].items()
        }
        scheme, plan = value["scheme"], value.get("activation")
        decoded = {
            "fragments": links,
            "scheme": None if scheme is None else wheel.scheme_of(scheme),
            "hosts": tuple(value["hosts"]),
            "activation": None if plan is None else ActivationPlan.from_json(plan),
        }
        return Deployment(**{**value, **decoded})


def check_replicable(program: Program, policy: CheckpointPolicy | None) -> None:
    """Refuse what cannot be run by several hosts, before anything starts."""
    if program.spark_input is not None:
        raise DeclarationError(
            f"'{program.name}' reads a Spark streaming DataFrame, which belongs to the session of one process",
            cure="run it with `holdfast run`, or read the data with a source of Holdfast",
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
        # Without a bound the cheapest would be nothing at all, which nobody means who starts several hosts.
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
            f"'{pipeline.name}' asks for a completeness and for a scheme: each decides which replicas are active",
            cure="leave out --scheme, or the completeness",
        )


def check_detection(pipeline: Pipeline, scheme: Scheme | None, timing: Timing) -> str | None:
    """Refuse a scheme that cannot keep the guarantee because failures are noticed too late for it; without one, say so
    if that leaves only schemes in which nothing has to be noticed."""
    bound = pipeline.guarantee.recovery_seconds
    if bound is None or bound > timing.noticed or (scheme is not None and scheme.both_commit):
        return None
    problem = (
        f"'{pipeline.name}' asks for no gap in the output longer than {bound:g} s, and it takes up to"
        f" {timing.noticed:g} s to notice that a host has failed"
    )
    shorter = f"--detection {bound / 2:.2g} --beat {bound / 8:.2g}"
    cure = f"notice it sooner, e.g. {shorter}" if bound / 8 >= LEAST_BEAT else "ask for a longer recovery"
    if scheme is not None:
        raise DeclarationError(f"{problem}: {scheme.name} cannot keep that", cure=f"{cure}, or ask for another scheme")
    keeping = " or ".join(scheme.name for scheme in wheel.SCHEMES if scheme.both_commit)
    return f"{problem}: only {keeping} keeps that. For a cheaper scheme {cure}"


def deploy(deployment: Deployment, agreement: Agreement, meta: MetaStore) -> None:
    """Have hosts run it, under the scheme that is asked for."""
    for fragment in deployment.fragments:
        agreement.open(fragment, deployment.first_scheme, {})
    # First of all, so that nobody goes on to command by a plan of before.
    ReplicaMeta(meta).deploy(deployment.pipeline, deployment.to_json())
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
