"""`holdfast explain`: the plan of a pipeline in words."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from holdfast.cli.group import HoldfastCommand
from holdfast.cli.options import meta_option, store_option

if TYPE_CHECKING:
    from holdfast.completeness.activation import ActivationPlan
    from holdfast.graph.pipeline import Pipeline
    from holdfast.plan.pushup import Placement
    from holdfast.replica.predict import Measured

__all__ = ["explain"]


@click.command(cls=HoldfastCommand)
@click.argument("target", metavar="FILE[:NAME]")
@store_option
@meta_option
@click.option("--partitions", type=click.IntRange(min=1), default=2, show_default=True, help="Of stateful operators.")
@click.option("--hosts", type=click.IntRange(min=1), default=2, show_default=True, help="That replicas may be kept on.")
@click.option(
    "--measured",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="JSON of what was measured while running, to predict recoveries from.",
)
@click.option(
    "--descriptor", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE",
    help="Of the application, for a guarantee of completeness.  [default: measured from the store]",
)  # fmt: skip
def explain(
    target: str, store: Path, meta: str | None, partitions: int, hosts: int, measured: Path | None,
    descriptor: Path | None,
) -> None:  # fmt: skip
    """Show stages, operators, what travels between them, guarantees of the sinks, and why.

    For p-streams it reads some rows of the sources, to measure what each place would write; where the store has the
    stream already, its place is the one that was chosen then. If the guarantee has a recovery time, shows what each
    scheme of keeping a second host would take and cost, and which one would be kept; if it has a completeness, which
    replicas have to run at which rates. Runs nothing and writes nothing.
    """
    from holdfast.cli.load import load_pipeline
    from holdfast.plan.explain import explain as explained

    pipeline = load_pipeline(target)
    click.echo(explained(pipeline, partitions=partitions, placements=_kept(pipeline, store, meta)))
    if pipeline.guarantee.recovery is not None:
        click.echo("\n" + "\n".join(_replicas(pipeline, hosts, measured, store, meta)))
    if pipeline.guarantee.completeness is not None:
        lines = _completeness(pipeline, pipeline.guarantee.completeness, store, meta, hosts, descriptor)
        click.echo("\n" + "\n".join(lines))


def _replicas(pipeline: Pipeline, hosts: int, measured: Path | None, store: Path, meta: str | None) -> list[str]:
    """For each fragment that hosts have run, from what they measured; else from a file, or from what is assumed."""
    from holdfast.replica.explaining import ASSUMED, explained
    from holdfast.replica.predict import Calibration, Measured

    if measured is not None:
        return explained(pipeline.guarantee, _read_measured(measured), hosts=hosts)
    lines: list[str] = []
    for fragment, notes in _notes(pipeline, store, meta).items():
        if "measured" in notes:
            seen, learnt = Measured.from_json(notes["measured"]), Calibration.from_json(notes["calibration"])
            lines += [f"as measured of '{fragment}':", *explained(pipeline.guarantee, seen, learnt, hosts)]
    return lines or explained(pipeline.guarantee, ASSUMED, hosts=hosts, assumed=True)


def _notes(pipeline: Pipeline, store: Path, meta: str | None) -> dict[str, Mapping[str, Any]]:
    from holdfast.meta import MetaStore, ReplicaMeta

    if meta is None and not (store / "meta.db").exists():
        return {}
    opened = MetaStore(meta or store)
    try:
        mine = [name for name in opened.pipelines() if name == pipeline.name or name.startswith(f"{pipeline.name}.")]
        return {name: row.notes for name, row in ReplicaMeta(opened).rows(mine).items()}
    finally:
        opened.close()


def _activation(pipeline: Pipeline, store: Path, meta: str | None) -> ActivationPlan | None:
    """What hosts go by that run the pipeline."""
    from holdfast.completeness.activation import ActivationPlan
    from holdfast.meta import MetaStore, ReplicaMeta

    if meta is None and not (store / "meta.db").exists():
        return None
    opened = MetaStore(meta or store)
    try:
        found = ReplicaMeta(opened).deployed().get(pipeline.name, {}).get("activation")
    finally:
        opened.close()
    return None if found is None else ActivationPlan.from_json(found)


def _read_measured(path: Path) -> Measured:
    from holdfast.replica.predict import Measured

    try:
        return Measured.from_json(json.loads(path.read_text()))
    except (ValueError, AttributeError, OSError) as error:
        raise click.BadParameter(f"{path}: {error}", param_hint="--measured") from error


def _kept(pipeline: Pipeline, store: Path, meta: str | None) -> dict[str, Placement]:
    """The places that an earlier run in the store has chosen."""
    from holdfast.epoch.fragments import kept_placements
    from holdfast.meta import MetaStore

    if meta is None and not (store / "meta.db").exists():
        return {}
    opened = MetaStore(meta or store)
    try:
        return kept_placements(pipeline, opened)
    finally:
        opened.close()


def _completeness(
    pipeline: Pipeline, target: float, store: Path, meta: str | None, hosts: int, descriptor: Path | None
) -> list[str]:
    """What the guarantee comes to, by a descriptor that is given, or by what the store knows."""
    from dataclasses import replace

    from holdfast.completeness.activation import check_names
    from holdfast.completeness.descriptor import load_descriptor
    from holdfast.completeness.explained import explain_completeness, explain_plan, not_measured
    from holdfast.completeness.journal import read_journals, works_of
    from holdfast.completeness.measured import default_measuring, feeds_of, measured_from_store
    from holdfast.plan.fragments import cut_pipeline
    from holdfast.plan.sampling import place_cuts

    cuts = cut_pipeline(pipeline, place_cuts(pipeline, _kept(pipeline, store, meta)))
    fragments = [each.name for each in cuts.fragments]
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
    origin = f"measured from {epochs:,} epochs in {store}, for {said.hosts} hosts like this machine"
    return explain_completeness(target, said, origin)
