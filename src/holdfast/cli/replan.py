"""`holdfast replan`: have what was planned and never committed planned again, with the input as it is now."""

from __future__ import annotations

from pathlib import Path

import click

from holdfast.cli.group import HoldfastCommand
from holdfast.cli.options import meta_option, reason_option, store_option

__all__ = ["replan"]


@click.command(cls=HoldfastCommand)
@click.argument("pipeline")
@store_option
@meta_option
@reason_option
def replan(pipeline: str, store: Path, meta: str | None, reason: str) -> None:
    """Plan again, at the next start, what was planned for PIPELINE and never committed.

    For input that was corrected after a run had stopped at it. PIPELINE must not be running; it may also be a fragment.
    """
    from holdfast import remedy

    click.echo(remedy.replan(pipeline, store=store, meta=meta, reason=reason))
