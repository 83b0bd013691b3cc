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
def explain(target: str, store: Path, partitions: int) -> None:
    """Show stages, operators, what travels between them, guarantees of the sinks, and why.

    For p-streams it reads some rows of the sources, to measure what each place would write; where the store has the
    stream already, its place is the one that was chosen then. Runs nothing and writes nothing.
    """
    from holdfast.cli.load import load_pipeline
    from holdfast.plan.explain import explain as explained

    pipeline = load_pipeline(target)
    click.echo(explained(pipeline, partitions=partitions, placements=_kept(pipeline, store)))


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
