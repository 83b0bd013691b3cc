"""Options that several commands have."""

from __future__ import annotations

from pathlib import Path

import click

__all__ = ["json_option", "meta_option", "reason_option", "store_option"]

store_option = click.option(
    "--store",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path(".holdfast"),
    show_default=True,
    help="Directory that keeps state and commits.",
)
meta_option = click.option(
    "--meta", metavar="URL", help="postgresql:// URL of the meta store.  [default: SQLite in the store]"
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")
reason_option = click.option(
    "--reason", default="no reason given", metavar="TEXT", help="Why, for whoever reads `holdfast status` later."
)
