"""`holdfast explain`: the plan of a pipeline in words."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from holdfast.cli.group import HoldfastCommand
from holdfast.cli.shared_options import LocalPath, SecondsRange, meta_option, store_option
from holdfast.errors import UnknownStateError
from holdfast.plurals import counted

if TYPE_CHECKING:
    from holdfast.graph.pipeline import Pipeline
    from holdfast.laar.host_strategy import ActivationPlan
    from holdfast.meta import MetaStore
    from holdfast.plan.executor_choice import ExecutorName
    from holdfast.pstream.description import Placement
    from holdfast.replica.deployment import Deployment
    from holdfast.replica.fragment_metrics import FragmentMetrics
    from holdfast.replica.seat_store import Agreed

__all__ = ["explain"]

_HOSTS = 2
_DECISIONS = 3


@click.command(cls=HoldfastCommand)
@click.argument("target", metavar="FILE[:NAME]")
@store_option
@meta_option
@click.option(
    "--partitions", type=click.IntRange(min=1),
    help="Partitions of stateful operators.  [default: 2; with a latency of up to 50 ms, 1 until that is too slow]",
)  # fmt: skip
@click.option("--latency", type=SecondsRange(min=0, min_open=True), default=1.0, show_default=True, metavar="DURATION",
              help="How long an epoch may take.")  # fmt: skip
@click.option("--tasks", type=click.IntRange(min=1), default=2, show_default=True, help="Number of reading tasks.")
@click.option("--executor", type=click.Choice(["crew", "jobs"]),
              help="How epochs run.  [default: as at the last start, else a crew if possible]")  # fmt: skip
@click.option("--master", metavar="URL", help="Spark master.  [default: this machine]")
@click.option(
    "--hosts", type=click.IntRange(min=1),
    help="Number of hosts for replicas.  [default: as many as run it, else 2]",
)  # fmt: skip
@click.option(
    "--measured",
    type=LocalPath(exists=True, dir_okay=False),
    help="JSON with measured figures, to predict recoveries from.",
)
@click.option(
    "--descriptor", type=LocalPath(dir_okay=False), metavar="FILE",
    help="LAAR descriptor, for a guarantee of completeness.  [default: measured from the store]",
)  # fmt: skip
def explain(
    target: str, store: Path, meta: str | None, partitions: int | None, latency: float, tasks: int,
    executor: ExecutorName | None, master: str | None, hosts: int | None, measured: Path | None,
    descriptor: Path | None,
) -> None:  # fmt: skip
    """Show the stages and operators of a pipeline, what is sent between them, the guarantees of the sinks, and why.

    For p-streams it reads some rows of the sources to measure what each place would write; a stream that is already in
    the store keeps its place. The executor is that of the last start, or follows from the options. For a guarantee of
    recovery it shows the recovery time and cost of each replication scheme, and which one would be chosen or, if hosts
    run the pipeline, is in use, and the last decisions. For a guarantee of completeness it shows which replicas must
    run at which rates. If the store knows the pipeline, it shows where the time of an epoch goes. It runs and writes
    nothing.
    """
    from holdfast.cli.pipeline_file import load_pipeline
    from holdfast.plan.explain import explain as explained

    pipeline = load_pipeline(target)
    click.echo(
        explained(
            pipeline,
            partitions=partitions,
            latency=latency,
            tasks=tasks,
            executor=executor,
            master=master,
            placements=_kept(pipeline, store, meta),
            executors=_executors(pipeline, store, meta),
        )
    )
    if taken := _times(pipeline, store, meta):
        click.echo("\n" + "\n".join(taken))
    if pipeline.guarantee.recovery is not None:
        click.echo("\n" + "\n".join(_replicas(pipeline, hosts, measured, store, meta)))
    if pipeline.guarantee.completeness is not None:
        lines = _completeness(pipeline, pipeline.guarantee.completeness, store, meta, hosts or _HOSTS, descriptor)
        click.echo("\n" + "\n".join(lines))


def _executors(pipeline: Pipeline, store: Path, meta: str | None) -> dict[str, dict[str, str]]:
    """What ran the epochs at the last start, by fragment and host."""
    from holdfast.meta import RunNotes

    with _opened(store, meta) as opened:
        if opened is None:
            return {}
        mine = [name for name in opened.pipelines() if name == pipeline.name or name.startswith(f"{pipeline.name}.")]
        return {name: RunNotes(opened).executors(name) for name in mine}


def _times(pipeline: Pipeline, store: Path, meta: str | None) -> list[str]:
    """Where the time of the last epochs went, for each fragment that the store knows."""
    from holdfast.ui.figures import duration
    from holdfast.ui.pipeline_status import times_of

    with _opened(store, meta) as opened:
        if opened is None:
            return []
        mine = [name for name in opened.pipelines() if name == pipeline.name or name.startswith(f"{pipeline.name}.")]
        known = {name: times_of(opened.commits(name)) for name in mine}
    return [f"an epoch of '{name}' takes {duration(t.total)}: {t}" for name, t in known.items() if t is not None]


def _replicas(pipeline: Pipeline, hosts: int | None, measured: Path | None, store: Path, meta: str | None) -> list[str]:
    """For each fragment that hosts have run, from what they measured and decided; otherwise from a file or from
    defaults."""
    from holdfast.replica.scheme_report import ASSUMED, explained

    if measured is not None:
        return explained(pipeline.guarantee, _read_measured(measured), hosts=hosts or _HOSTS)
    deployment, fragments = _agreed(pipeline, store, meta)
    lines: list[str] = []
    for fragment, agreed in fragments.items():
        lines += _fragment(pipeline, fragment, agreed, deployment, hosts)
    return lines or explained(pipeline.guarantee, ASSUMED, hosts=hosts or _HOSTS, assumed=True)


def _fragment(
    pipeline: Pipeline, fragment: str, agreed: Agreed, deployment: Deployment | None, hosts: int | None
) -> list[str]:
    """What the hosts of a fragment keep, if they still run it, and why."""
    from holdfast.replica.scheme_report import ASSUMED, explained, scheme_in_use
    from holdfast.replica.supervisor import described
    from holdfast.ui.figures import wall_time

    notes = agreed.notes
    measured = notes.metrics
    runs = deployment is not None and not agreed.ended
    lines = [
        f"'{fragment}': {described(agreed)}",
        *explained(
            pipeline.guarantee, measured or ASSUMED, notes.calibration, hosts or len(notes.hosts) or _HOSTS,
            assumed=measured is None, diverged=notes.diverged,
            in_use=scheme_in_use(agreed, deployment) if runs and deployment else None,
        ),
    ]  # fmt: skip
    for decision in notes.decisions[-_DECISIONS:]:
        step = f"to {decision.to}: " if decision.to else ""
        lines.append(f"  decided: {wall_time(decision.at)} {step}{decision.reason}")
    return lines


def _agreed(pipeline: Pipeline, store: Path, meta: str | None) -> tuple[Deployment | None, dict[str, Agreed]]:
    """What hosts are asked to run, and what they have agreed on."""
    from holdfast.meta import ReplicaMeta
    from holdfast.replica.deployment import Deployment
    from holdfast.replica.seat_store import agreed_of

    with _opened(store, meta) as opened:
        if opened is None:
            return None, {}
        rows = ReplicaMeta(opened)
        deployed = rows.deployed().get(pipeline.name)
        mine = [name for name in opened.pipelines() if name == pipeline.name or name.startswith(f"{pipeline.name}.")]
        found = {name: agreed_of(row) for name, row in rows.rows(mine).items()}
        return None if deployed is None else Deployment.decode(deployed), found


def _activation(pipeline: Pipeline, store: Path, meta: str | None) -> ActivationPlan | None:
    """What the hosts that run the pipeline decide by."""
    from holdfast.meta import ReplicaMeta
    from holdfast.replica.deployment import Deployment

    with _opened(store, meta) as opened:
        found = None if opened is None else ReplicaMeta(opened).deployed().get(pipeline.name)
    return None if found is None else Deployment.decode(found).activation


def _read_measured(path: Path) -> FragmentMetrics:
    from holdfast.replica.fragment_metrics import FragmentMetrics

    try:
        return FragmentMetrics.from_json(json.loads(path.read_text()))
    except (ValueError, AttributeError, OSError) as error:
        raise click.BadParameter(f"{path}: {error}", param_hint="--measured") from error


def _kept(pipeline: Pipeline, store: Path, meta: str | None) -> dict[str, Placement]:
    """The places that an earlier run in the store has chosen."""
    from holdfast.engine.fragment_runs import kept_placements

    with _opened(store, meta) as opened:
        return {} if opened is None else kept_placements(pipeline, opened)


@contextmanager
def _opened(store: Path, meta: str | None) -> Iterator[MetaStore | None]:
    """The meta store, if anything has run yet."""
    from holdfast.meta import opened_meta

    with ExitStack() as stack:
        opened = None
        with suppress(UnknownStateError):
            opened = stack.enter_context(opened_meta(store, meta))
        yield opened


def _completeness(
    pipeline: Pipeline, target: float, store: Path, meta: str | None, hosts: int, descriptor: Path | None
) -> list[str]:
    """What the guarantee amounts to, according to a given descriptor or to what the store knows."""

    from holdfast.laar.descriptor import load_descriptor
    from holdfast.laar.epoch_journal import read_journals, works_of
    from holdfast.laar.host_strategy import check_names
    from holdfast.laar.measured_descriptor import default_measuring, feeds_of, measured_from_store
    from holdfast.laar.strategy_report import explain_completeness, explain_plan, not_measured
    from holdfast.plan.cuts import cut_pipeline
    from holdfast.plan.source_sample import place_cuts

    cuts = cut_pipeline(pipeline, place_cuts(pipeline, _kept(pipeline, store, meta)))
    fragments = [fragment.name for fragment in cuts.fragments]
    if descriptor is not None:
        given = load_descriptor(descriptor)
        check_names(given, fragments, feeds_of(works_of(pipeline.name, cuts.fragments)))
        return explain_completeness(target, given, str(descriptor))
    running = _activation(pipeline, store, meta)
    if running is not None:
        return explain_plan(target, running)
    works = read_journals(store, pipeline.name, fragments)
    if not works:
        return not_measured(target, pipeline.name)
    said = measured_from_store(pipeline.name, store, meta, replace(default_measuring(), hosts=hosts), fragments)
    epochs = sum(len(work.epochs) for work in works)
    origin = f"measured from {counted(epochs, 'epoch')} in {store}, for {counted(said.hosts, 'host')} like this machine"
    return explain_completeness(target, said, origin)
