"""Options that several commands have."""

from __future__ import annotations

from pathlib import Path

import click

__all__ = ["META_VARIABLE", "json_option", "meta_option", "store_option"]

store_option = click.option(
    "--store",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path(".holdfast"),
    show_default=True,
    help="Directory that keeps state and commits.",
)
META_VARIABLE = "HOLDFAST_META"
meta_option = click.option(
    "--meta", metavar="URL", envvar=META_VARIABLE,
    help=f"postgresql:// URL of the meta store; one with a password is better put into {META_VARIABLE}, since everybody"
    " on the machine can read arguments.  [default: SQLite in the store]",
)  # fmt: skip
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")
