"""`holdfast explain`: the plan of a pipeline in words."""

from __future__ import annotations

import click

from holdfast.cli.group import HoldfastCommand

__all__ = ["explain"]


@click.command(cls=HoldfastCommand)
@click.argument("target", metavar="FILE[:NAME]")
@click.option("--partitions", type=click.IntRange(min=1), default=2, show_default=True, help="Of stateful operators.")
def explain(target: str, partitions: int) -> None:
    """Show stages, operators, what travels between them, guarantees of the sinks, and why. Runs nothing."""
    from holdfast.cli.load import load_pipeline
    from holdfast.plan.explain import explain as explained

    click.echo(explained(load_pipeline(target), partitions=partitions))
