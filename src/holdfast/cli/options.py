"""Options that several commands have."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import click

__all__ = [
    "CONF_VARIABLE",
    "META_VARIABLE",
    "LocalPath",
    "conf_option",
    "deadline_option",
    "json_option",
    "meta_option",
    "reason_option",
    "store_option",
]


class LocalPath(click.Path):
    """A path of this machine, as a `Path`; the address of something else is wrong usage."""

    def __init__(self, **given: Any) -> None:
        super().__init__(path_type=Path, **given)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        from holdfast.errors import DeclarationError
        from holdfast.store.location import local_path

        try:
            path = local_path(value, "here")
        except DeclarationError as error:
            self.fail(f"{error.problem.removeprefix('here: ')}; {error.cure}", param, ctx)
        return super().convert(path, param, ctx)


def _settings(context: click.Context, parameter: click.Parameter, given: tuple[str, ...]) -> dict[str, str]:
    pairs = {key.strip(): value for key, equals, value in (setting.partition("=") for setting in given) if equals}
    if len(pairs) < len(given) or "" in pairs:
        raise click.BadParameter("give each as KEY=VALUE, e.g. spark.executor.memory=2g, and once", context, parameter)
    said = os.environ.get(CONF_VARIABLE)
    return {**(json.loads(said) if said else {}), **pairs}


store_option = click.option(
    "--store",
    type=LocalPath(file_okay=False),
    default=Path(".holdfast"),
    show_default=True,
    help="Directory that keeps state and commits.",
)
META_VARIABLE = "HOLDFAST_META"
CONF_VARIABLE = "HOLDFAST_CONF"
"""Settings of Spark as JSON: how they reach hosts without being arguments, which everybody on the machine can read."""
meta_option = click.option(
    "--meta", metavar="URL", envvar=META_VARIABLE,
    help=f"postgresql:// URL of the meta store; one with a password is better put into {META_VARIABLE}, since everybody"
    " on the machine can read arguments.  [default: SQLite in the store]",
)  # fmt: skip
conf_option = click.option(
    "--conf", multiple=True, metavar="KEY=VALUE", callback=_settings,
    help="A setting of Spark, over Holdfast's own; can be given several times.",
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
