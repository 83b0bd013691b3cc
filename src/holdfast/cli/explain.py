"""`holdfast explain`: the plan of a pipeline in words."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from holdfast.cli.group import HoldfastCommand
from holdfast.cli.options import meta_option, store_option

if TYPE_CHECKING:
    from holdfast.graph.pipeline import Pipeline
    from holdfast.plan.pushup import Placement

__all__ = ["explain"]


@click.command(cls=HoldfastCommand)
@click.argument("target", metavar="FILE[:NAME]")
@store_option
@meta_option
@click.option("--partitions", type=click.IntRange(min=1), default=2, show_default=True, help="Of stateful operators.")
def explain(target: str, store: Path, meta: str | None, partitions: int) -> None:
    """Show stages, operators, what travels between them, guarantees of the sinks, and why.

    For p-streams it reads some rows of the sources, to measure what each place would write; where the store has the
    stream already, its place is the one that was chosen then. Runs nothing and writes nothing.
    """
    from holdfast.cli.load import load_pipeline
    from holdfast.plan.explain import explain as explained

    pipeline = load_pipeline(target)
    click.echo(explained(pipeline, partitions=partitions, placements=_kept(pipeline, store, meta)))


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
