"""`holdfast skip`: go on without an epoch's input, or without what is left of a file."""

from __future__ import annotations

from pathlib import Path

import click

from holdfast.cli.group import HoldfastCommand
from holdfast.cli.shared_options import meta_option, reason_option, store_option

__all__ = ["skip"]


@click.command(cls=HoldfastCommand)
@click.argument("pipeline")
@click.argument("what", metavar="EPOCH|FILE")
@store_option
@meta_option
@reason_option
def skip(pipeline: str, what: str, store: Path, meta: str | None, reason: str) -> None:
    """Continue without an epoch's input, or without a file, from the next start of PIPELINE.

    EPOCH is the number of an epoch that was planned but not committed. The uncommitted rows of FILE are not read; write
    a file whose name is a number as ./NUMBER. `holdfast status` shows what was skipped, and the reason. PIPELINE must
    not be running; it may also be a fragment.
    """
    from holdfast import remedy

    chosen = int(what) if what.isdecimal() else what
    click.echo(remedy.skip(pipeline, chosen, store=store, meta=meta, reason=reason))
