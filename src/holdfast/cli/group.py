"""The group of commands, and what all of them share: late imports, and errors without tracebacks.

A command is a module of this package with a function of the same name. Modules are imported when their command is
asked for, so that `holdfast --help` does not wait for Spark's and Polars' imports. Other distributions add commands by
an entry point in the group `holdfast.commands`: a package with such modules, whose `COMMANDS` has a line for each.

Exit codes: 0 done, 1 an error of the `HoldfastError` tree or a wrong result, 2 wrong usage,
130 aborted by Ctrl-C.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import traceback
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, NoReturn

import click

from holdfast import __version__
from holdfast.errors import HoldfastError
from holdfast.signals import abort_on_termination

if TYPE_CHECKING:
    from holdfast.cli.output import LongTask

__all__ = ["COMMANDS", "HoldfastCommand", "LongCommand", "current_task", "main"]

COMMANDS = {
    "run": "Run a pipeline declared in a Python file.",
    "up": "Run a pipeline on several hosts with failover.",
    "host": "Run one host of a store.",
    "promote": "Let new code that has followed as a shadow take over.",
    "scheme": "Show or change the replication scheme of a pipeline.",
    "ingress": "Run the receivers of a pipeline's push sources.",
    "explain": "Show the plan of a pipeline and the reasons for it.",
    "status": "Show the pipelines of a store and their progress.",
    "events": "Show what has happened to the pipelines of a store.",
    "ui": "Serve the dashboard of a store, and its metrics.",
    "streams": "Show the p-streams of a store, their content and readers.",
    "replan": "Plan uncommitted epochs again after the input has changed.",
    "skip": "Continue without the input of an epoch, or without a file.",
    "scale": "Change the parallelism of an operator while it runs.",
    "state": "Show the state of an operator as a table.",
    "rerun": "Run an epoch again in this process, to debug or check it.",
    "why": "Show where a row of the output comes from.",
    "drill": "Kill a worker or a host on purpose, and judge the recovery.",
    "init": "Set up a store: a directory, or PostgreSQL and a role with few rights.",
    "upgrade": "Upgrade a store of an older version, after a backup.",
    "demo": "See a pipeline survive kill -9, in under a minute.",
    "laar": "Choose which replicas run at which input rates.",
    "prepare": "Make Spark start faster from now on.",
}
_OTHERS = "holdfast.commands"
_LAB, _COMMANDS_OF_THE_LAB = "holdfast-lab", ("bench", "compare", "chaos", "simulate", "soak", "experiment")
_ABORTED = 130
_TRACEBACK = "holdfast.traceback"
_TASK = "holdfast.task"


class HoldfastCommand(click.Command):
    """A command that ends with a problem and a cure where Holdfast knows what went wrong."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.params.append(
            click.Option(
                ["-v", "--traceback"],
                is_flag=True,
                expose_value=False,
                callback=_remember,
                help="Show the traceback of an error.",
            )
        )

    def invoke(self, ctx: click.Context) -> Any:

        try:
            with abort_on_termination():
                return super().invoke(ctx)
        except HoldfastError as error:
            if ctx.meta.get(_TRACEBACK):
                click.echo(traceback.format_exc(), err=True, nl=False)
            else:
                click.echo(f"{click.style('error:', fg='red', bold=True)} {error}", err=True)
            ctx.exit(1)
        except KeyboardInterrupt:
            _end_aborted(ctx)


class LongCommand(HoldfastCommand):
    """A slow command: on a terminal, a bar shows that it is working and, with `current_task`, how far it is."""

    def invoke(self, ctx: click.Context) -> Any:
        from holdfast.cli.output import long_task

        with long_task(f"holdfast {ctx.info_name}") as task:
            ctx.meta[_TASK] = task
            return super().invoke(ctx)


def current_task() -> LongTask:
    """The bar of the running command."""
    task: LongTask = click.get_current_context().meta[_TASK]
    return task


def _end_aborted(ctx: click.Context) -> NoReturn:
    click.echo("aborted", err=True)
    ctx.exit(_ABORTED)


def _remember(ctx: click.Context, _: click.Parameter, value: bool) -> None:
    ctx.meta[_TRACEBACK] = value


class _LateGroup(click.Group):
    """Knows its commands by name and imports one when it is needed."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:  # while a command was imported: later it is the command's own
            _end_aborted(ctx)

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [name for _, commands in _packages() for name in commands]

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        for package, commands in _packages():
            if name in commands:
                command = getattr(importlib.import_module(f"{package}.{name}"), name)
                assert isinstance(command, click.Command)
                return command
        if name in _COMMANDS_OF_THE_LAB:
            ctx.fail(f"'{name}' is a command of {_LAB}, which is not installed. Install it: pip install {_LAB}")
        return None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for package, commands in _packages():
            with formatter.section("Commands" if package == "holdfast.cli" else f"Commands of {package}"):
                formatter.write_dl(list(commands.items()))


def _packages() -> Iterator[tuple[str, Mapping[str, str]]]:
    """The packages that have commands, and a line about each of these."""
    yield "holdfast.cli", COMMANDS
    for point in importlib.metadata.entry_points(group=_OTHERS):
        yield point.module, point.load()


@click.group(cls=_LateGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="holdfast")
def main() -> None:
    """Exactly-once stream processing in Python on Spark."""
