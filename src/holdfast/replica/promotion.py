"""New code that has followed as a shadow takes the seat: hosts run it from an epoch's boundary on, with the state that
was committed."""

from __future__ import annotations

import time
from pathlib import Path

from msgspec import structs

from holdfast.errors import DeclarationError, UnknownStateError
from holdfast.graph.pipeline import Pipeline
from holdfast.meta import MetaStore, ReplicaMeta, RunNotes
from holdfast.replica.deployment import Deployment
from holdfast.replica.seat_store import Agreement
from holdfast.replica.shadow_checks import checksum_of, succession
from holdfast.replica.shadow_report import ShadowReport, keep_shadow
from holdfast.watch.event_kinds import ActionAsked
from holdfast.watch.event_log import EventLog

__all__ = ["await_code", "promote"]

_PAUSE_SECONDS = 0.1


def promote(
    report: ShadowReport,
    pipeline: Pipeline,
    meta: MetaStore,
    agreement: Agreement,
    store: Path,
    *,
    by: str,
    differing: bool = False,
) -> tuple[ShadowReport, Deployment]:
    """Have the hosts run the code of a shadow. Without an equal verdict only if `differing` says so: its epochs then go
    on from the state that the old code has left."""
    if report.promoted is not None:
        raise DeclarationError(f"'{report.pipeline}' already runs {report.code}", cure="nothing to do")
    if report.state != "equal" and not differing:
        raise DeclarationError(
            f"the shadow of '{report.pipeline}' has no verdict that its output is equal: {report.verdict}",
            cure="let it follow until there is one; to let it take over anyway: --differing",
        )
    if checksum_of(report.code) != report.checksum:
        raise DeclarationError(
            f"{report.code} has changed since its verdict", cure="let it follow again: holdfast up --shadow FILE"
        )
    now = time.time()
    found = succession(pipeline, report.code, meta, agreement, now)
    if found.before.target != report.old:
        raise DeclarationError(
            f"'{report.pipeline}' no longer runs {report.old}, which the shadow was compared with",
            cure="let it follow again: holdfast up --shadow FILE",
        )
    promoted = structs.replace(report, promoted=now, at=now)
    with EventLog(store, "shadow") as log:
        log.put(ActionAsked(at=now, pipeline=report.pipeline, what=f"{report.code} takes over", by=by))
        ReplicaMeta(meta).deploy(report.pipeline, found.after.encode())
        keep_shadow(store, promoted)
        log.put(promoted.event("promoted"))
    return promoted, found.after


def await_code(deployment: Deployment, meta: MetaStore, agreement: Agreement, seconds: float) -> str:
    """Wait until the primary of every fragment runs the code of a deployment, and has committed with it. Says who."""
    until = time.monotonic() + seconds
    begun: dict[str, int] = {}
    while time.monotonic() < until:
        hosts = {}
        for name, agreed in agreement.look(list(deployment.fragments)).items():
            first = agreed.seats.primary
            if agreed.ended:
                hosts[name] = ""
            elif first is not None and RunNotes(meta).code(name, first.host) == deployment.target:
                begun.setdefault(name, meta.last_epoch(name))
                if meta.last_epoch(name) > begun[name]:
                    hosts[name] = first.host
        if len(hosts) == len(deployment.fragments):
            return ", ".join(sorted({host for host in hosts.values() if host}))
        time.sleep(_PAUSE_SECONDS)
    raise UnknownStateError(
        f"the hosts of '{deployment.pipeline}' have not committed with {deployment.target} within {seconds:.0f} s",
        cure="see `holdfast status` and the logs of the hosts; the deployment is changed, and they keep trying",
    )
