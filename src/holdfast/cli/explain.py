"""`holdfast explain`: the plan of a pipeline in words."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from holdfast.cli.group import HoldfastCommand
from holdfast.cli.options import store_option

if TYPE_CHECKING:
    from holdfast.graph.pipeline import Pipeline
    from holdfast.plan.pushup import Placement

__all__ = ["explain"]


@click.command(cls=HoldfastCommand)
@click.argument("target", metavar="FILE[:NAME]")
@store_option
@click.option("--partitions", type=click.IntRange(min=1), default=2, show_default=True, help="Of stateful operators.")
@click.option(
    "--descriptor", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE",
    help="Of the application, for a guarantee of completeness.  [default: measured from the store]",
)  # fmt: skip
def explain(target: str, store: Path, partitions: int, descriptor: Path | None) -> None:
    """Show stages, operators, what travels between them, guarantees of the sinks, and why.

    For p-streams it reads some rows of the sources, to measure what each place would write; where the store has the
    stream already, its place is the one that was chosen then. For a guarantee of completeness it shows which replicas
    have to run at which rates. Runs nothing and writes nothing.
    """
    from holdfast.cli.load import load_pipeline
    from holdfast.plan.explain import explain as explained

    pipeline = load_pipeline(target)
    click.echo(explained(pipeline, partitions=partitions, placements=_kept(pipeline, store)))
    if pipeline.guarantee.completeness is not None:
        click.echo("\n" + "\n".join(_completeness(pipeline, pipeline.guarantee.completeness, store, descriptor)))


def _kept(pipeline: Pipeline, store: Path) -> dict[str, Placement]:
    """The places that an earlier run in the store has chosen."""
    from holdfast.epoch.fragments import kept_placements
    from holdfast.meta import MetaStore

    if not (store / "meta.db").exists():
        return {}
    meta = MetaStore(store)
    try:
        return kept_placements(pipeline, meta)
    finally:
        meta.close()


def _completeness(pipeline: Pipeline, target: float, store: Path, descriptor: Path | None) -> list[str]:
    """What the guarantee comes to, by a descriptor that is given, or by what the store knows."""
    from holdfast.completeness.descriptor import load_descriptor
    from holdfast.completeness.explained import explain_completeness, not_measured
    from holdfast.completeness.journal import read_journals
    from holdfast.completeness.measured import default_measuring, measured_from_store

    if descriptor is not None:
        return explain_completeness(target, load_descriptor(descriptor), str(descriptor))
    works = read_journals(store, pipeline.name)
    if not works:
        return not_measured(target, pipeline.name)
    said = measured_from_store(pipeline.name, store, None, default_measuring())
    epochs = sum(len(work.epochs) for work in works)
    origin = f"measured from {epochs:,} epochs in {store}, for {said.hosts} hosts like this machine"
    return explain_completeness(target, said, origin)
