"""`holdfast skip`: go on without an epoch's input, or without what is left of a file."""

from __future__ import annotations

from pathlib import Path

import click

from holdfast.cli.group import HoldfastCommand
from holdfast.cli.options import meta_option, reason_option, store_option

__all__ = ["skip"]


@click.command(cls=HoldfastCommand)
@click.argument("pipeline")
@click.argument("what", metavar="EPOCH|FILE")
@store_option
@meta_option
@reason_option
def skip(pipeline: str, what: str, store: Path, meta: str | None, reason: str) -> None:
    """Go on, at the next start of PIPELINE, without an epoch's input or without a file.

    EPOCH is the number of one that was planned and never committed. Of FILE, the rows that were not committed are not
    read; a file whose name is a number is given as ./NUMBER. What was passed over is kept with the reason, and shown by
    `holdfast status`. PIPELINE must not be running; it may also be one fragment.
    """
    from holdfast import remedy

    chosen = int(what) if what.isdecimal() else what
    click.echo(remedy.skip(pipeline, chosen, store=store, meta=meta, reason=reason))
