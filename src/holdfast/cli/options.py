"""Options that several commands have."""

from __future__ import annotations

from pathlib import Path

import click

__all__ = ["META_VARIABLE", "deadline_option", "json_option", "meta_option", "reason_option", "store_option"]

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
deadline_option = click.option(
    "--deadline", metavar="DURATION",
    help="How long an epoch, a source or a sink may show no progress, e.g. 1min.  [default: ten times as long as usual,"
    " at least 30 s]",
)  # fmt: skip
reason_option = click.option(
    "--reason", default="no reason given", metavar="TEXT", help="Why, for whoever reads `holdfast status` later."
)
