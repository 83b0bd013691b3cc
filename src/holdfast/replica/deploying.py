"""Giving a pipeline to hosts: what they are told of it, and the seats of its fragments."""

from __future__ import annotations

import time
from collections.abc import Sequence

from holdfast.completeness.activation import ActivationPlan
from holdfast.epoch.fragments import open_cuts
from holdfast.epoch.options import RunOptions
from holdfast.errors import DeclarationError
from holdfast.graph.guarantee import Guarantee
from holdfast.graph.pipeline import Pipeline
from holdfast.graph.policies import as_policy
from holdfast.meta import MetaStore, ReplicaMeta
from holdfast.plan.fragments import links_of
from holdfast.plan.program import compile_program
from holdfast.replica.agreement import Agreement
from holdfast.replica.caution import Caution
from holdfast.replica.deployment import Deployment, check_replicable
from holdfast.replica.keeper import LEAST_BEAT, Timing
from holdfast.replica.schemes import Scheme
from holdfast.replica.seating import Activate
from holdfast.replica.turning import turn_to

__all__ = ["check_detection", "deploy", "deployment_of", "release"]


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
    """What to tell the hosts of a pipeline; what they cannot run is refused."""
    made = open_cuts(pipeline, meta)
    _check_guarantee(pipeline, scheme)
    for fragment in made.fragments:
        check_replicable(compile_program(fragment.pipeline), as_policy(checkpoint))
    guarantee = pipeline.guarantee
    return Deployment.of(
        options,
        pipeline=pipeline.name,
        target=target,
        fragments={each.name: links_of(each, made.fragments) for each in made.fragments},
        checkpoint=checkpoint,
        # Without a bound the cheapest would be nothing at all, which nobody means who starts several hosts.
        scheme=scheme or _fixed_scheme(guarantee),
        recovery=guarantee.recovery_seconds,
        precise=guarantee.precise,
        budget=guarantee.budget,
        hosts=tuple(hosts),
        calm=Caution().calm if calm is None else calm,
        activation=None if activation is None else activation.to_json(),
        since=time.time(),
    )


def _fixed_scheme(guarantee: Guarantee) -> Scheme | None:
    """Where completeness is asked for, replicas that are active all process; which ones are is another matter."""
    if guarantee.completeness is not None:
        return Scheme.ACTIVE_REPLICATION
    return Scheme.PASSIVE_STANDBY_COLD if guarantee.recovery_seconds is None else None


def _check_guarantee(pipeline: Pipeline, scheme: Scheme | None) -> None:
    if pipeline.guarantee.completeness is not None and scheme is not None:
        raise DeclarationError(
            f"'{pipeline.name}' asks for a completeness and for a scheme: which replicas are active follows from both",
            cure="ask for one of them",
        )


def check_detection(pipeline: Pipeline, scheme: Scheme | None, timing: Timing) -> str | None:
    """Refuse a scheme that cannot keep the guarantee because failures are noticed too late for it; without one, say so
    if that leaves nothing but active replication, where nothing has to be noticed."""
    bound = pipeline.guarantee.recovery_seconds
    if bound is None or bound > timing.noticed or (scheme is not None and scheme.equipment.publishes):
        return None
    problem = (
        f"'{pipeline.name}' asks for no gap in the output longer than {bound:g} s, and it takes up to"
        f" {timing.noticed:g} s to notice that a host has failed"
    )
    shorter = f"--detection {bound / 2:.2g} --beat {bound / 8:.2g}"
    cure = f"notice it sooner, e.g. {shorter}" if bound / 8 >= LEAST_BEAT else "ask for a longer recovery"
    if scheme is not None:
        raise DeclarationError(f"{problem}: {scheme.value} cannot keep that", cure=f"{cure}, or ask for another scheme")
    return f"{problem}: only active replication keeps that. For a cheaper scheme {cure}"


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
