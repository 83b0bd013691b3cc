"""`holdfast replan`: plan what was never committed again, with the input as it is now."""

from __future__ import annotations

from pathlib import Path

import click

from holdfast.cli.group import HoldfastCommand
from holdfast.cli.shared_options import meta_option, reason_option, store_option

__all__ = ["replan"]


@click.command(cls=HoldfastCommand)
@click.argument("pipeline")
@store_option
@meta_option
@reason_option
def replan(pipeline: str, store: Path, meta: str | None, reason: str) -> None:
    """Plan the uncommitted epochs of PIPELINE again at the next start.

    Use it after you have corrected input that stopped a run. PIPELINE must not be running; it may also be a fragment.
    """
    from holdfast import remedy

    click.echo(remedy.replan(pipeline, store=store, meta=meta, reason=reason))
