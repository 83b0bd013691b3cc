"""Whether new code of a pipeline may follow it as a shadow, and take its seat: what it is refused for, and the
deployment that it would have."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from holdfast.engine.fragment_runs import kept_placements
from holdfast.errors import AlreadyRunningError, DeclarationError, PipelineChangedError, UnknownStateError
from holdfast.graph.pipeline import Pipeline
from holdfast.graph.policies import as_policy
from holdfast.meta import MetaStore, ReplicaMeta
from holdfast.plan.cuts import Fragment, cut_pipeline, links_of
from holdfast.plan.evolution import evolve
from holdfast.plan.places import cuts_of
from holdfast.plan.program import compile_program
from holdfast.replica.deployment import Deployment, check_replicable
from holdfast.replica.seat_store import Agreement
from holdfast.replica.shadow_report import ShadowReport
from holdfast.state.inspection import kept_shape

__all__ = ["Succession", "check_alone", "checksum_of", "succession"]


@dataclass(frozen=True, slots=True)
class Succession:
    """New code that fits what runs: the deployment of now, its own, and its fragments."""

    before: Deployment
    after: Deployment
    fragments: tuple[Fragment, ...]
    reshaped: frozenset[str]
    """The operators whose state has other columns or types from now on."""


def checksum_of(target: str) -> str:
    """Of the file that `FILE:NAME` names."""
    path = Path(target)
    return hashlib.sha256((path if path.is_file() else Path(target.rpartition(":")[0])).read_bytes()).hexdigest()


def succession(pipeline: Pipeline, target: str, meta: MetaStore, agreement: Agreement, now: float) -> Succession:
    """What it would be if `pipeline`, from the file `target`, took over from the pipeline of the same name. Raises
    where that cannot be; nothing is written."""
    text = ReplicaMeta(meta).deployed().get(pipeline.name)
    if text is None:
        raise UnknownStateError(
            f"no hosts run '{pipeline.name}', so there is nothing to follow",
            cure="start it with `holdfast up`; without hosts, stop it and start the new code, which continues with"
            " the state of the old one",
        )
    before = Deployment.decode(text)
    if Path(before.target.rpartition(":")[0]) == Path(target.rpartition(":")[0]):
        raise DeclarationError(
            f"'{pipeline.name}' runs from {target} itself", cure="put the new code into another file, e.g. a copy"
        )
    if before.activation is not None or pipeline.guarantee.completeness is not None:
        raise DeclarationError(
            f"'{pipeline.name}' guarantees a completeness, whose plan was made for the running code",
            cure="stop it and start the new code with `holdfast up`",
        )
    agreed = agreement.look(list(before.fragments))
    if all(one.ended for one in agreed.values()):
        raise UnknownStateError(f"'{pipeline.name}' has ended", cure="start it with `holdfast up`")
    fragments = _fragments(pipeline, before.fragments, meta)
    reshaped = frozenset(name for fragment in fragments for name in _check(fragment, before, meta))
    asked = pipeline.guarantee
    after = replace(
        before, target=target, since=now, recovery=asked.recovery_seconds, precise=asked.precise, budget=asked.budget
    )
    return Succession(before, after, fragments, reshaped)


def check_alone(reports: Mapping[str, list[ShadowReport]], pipeline: str) -> None:
    """Refuse a second shadow of a pipeline while one follows it."""
    for report in reports.get(pipeline, ()):
        if report.is_following:
            raise AlreadyRunningError(
                f"'{pipeline}' already has a shadow: {report.code}, in {report.process}",
                cure="wait for its verdict, or stop it",
            )


def _fragments(pipeline: Pipeline, known: Mapping[str, object], meta: MetaStore) -> tuple[Fragment, ...]:
    placements = kept_placements(pipeline, meta)
    missing = [cut.name for cut in cuts_of(pipeline.nodes) if cut.name not in placements]
    found = {} if missing else {one.name: one for one in cut_pipeline(pipeline, placements).fragments}
    links = {name: links_of(one, list(found.values())) for name, one in found.items()}
    if missing or links != dict(known):
        raise PipelineChangedError(
            f"pipeline '{pipeline.name}' has changed: its p-streams cut it into other fragments"
            + (f"; new is {', '.join(missing)}" if missing else ""),
            cure="a shadow follows fragment by fragment; stop the pipeline and start the new code instead",
        )
    return tuple(found.values())


def _check(fragment: Fragment, deployment: Deployment, meta: MetaStore) -> list[str]:
    """The state of the fragment must mean the same to both, under the same names; the operators with other columns."""
    program = compile_program(fragment.pipeline)
    check_replicable(program, as_policy(deployment.checkpoint))
    known = kept_shape(meta, program.name)
    changes = evolve(program, known, meta.last_epoch(program.name))
    for old, now in {**changes.sources, **changes.operators}.items():
        raise PipelineChangedError(
            f"pipeline '{fragment.pipeline.name}' has changed: '{old}' is called '{now}' now",
            cure="a shadow must keep the names of what it follows; rename when you start the new code without a shadow",
            operator=now,
        )
    before = {} if known is None else known.operators
    return [
        name
        for name, shape in changes.shape.operators.items()
        if name in before and before[name].tables != shape.tables
    ]
