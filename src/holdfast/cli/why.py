"""`holdfast why`: from a row of the output back to its epoch, the input behind it, and the state of its key."""

from __future__ import annotations

import json
from pathlib import Path

import click

from holdfast.cli.group import HoldfastCommand
from holdfast.cli.row_table import shown_rows
from holdfast.cli.shared_options import json_option, meta_option, store_option

__all__ = ["why"]

_WIDTH = 200
"""For texts: wide enough for slices, which say where they are."""


@click.command(cls=HoldfastCommand)
@click.argument("target", metavar="FILE[:NAME]")
@click.option("--sink", required=True, metavar="NAME", help="The sink that has the row.")
@click.option(
    "--where", required=True, metavar="CONDITION", help="Which row, in SQL, e.g. \"page = '/home' and n > 3\"."
)
@store_option
@meta_option
@click.option("--epoch", type=click.IntRange(min=1), metavar="N",
              help="The epoch that emitted the row.  [default: the last retained one that did]")  # fmt: skip
@click.option("--rows", type=click.IntRange(min=1), default=20, show_default=True, metavar="N",
              help="Show at most N rows of each table.")  # fmt: skip
@json_option
def why(
    target: str, sink: str, where: str, store: Path, meta: str | None, epoch: int | None, rows: int, as_json: bool
) -> None:
    """Show where a row of the output of the pipeline NAME in FILE comes from.

    Retained epochs are run again in this process, the newest first, until one emits the row. Then the command shows
    what that epoch and those before it read, the input rows behind the result, and the state of their key. It says how
    exact each part is. Nothing is written; the pipeline may be running.
    """
    from holdfast.cli.pipeline_file import load_pipeline
    from holdfast.engine.row_search import why as search

    found = search(load_pipeline(target), sink, where, store=store, epoch=epoch, meta=meta)
    if as_json:
        tables = {heading: json.loads(frame.write_json()) for heading, frame in found.tables().items()}
        plain = {"pipeline": found.pipeline, "sink": sink, "epoch": found.epoch, "first": found.first}
        click.echo(json.dumps({**plain, "tables": tables, "notes": found.notes}))
        return
    for heading, frame in found.tables().items():
        click.echo(f"{heading}:\n{shown_rows(frame, rows, _WIDTH)}\n")
    for note in found.notes:
        click.echo(f"note: {note}")
