"""`holdfast experiment`: the papers' figures and tables, measured on this machine."""

from __future__ import annotations

import json
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import click

from holdfast.cli.group import LongCommand, current_task
from holdfast.cli.shared_options import LocalPath, SecondsRange, json_option
from holdfast_lab.experiment.definition import Settings
from holdfast_lab.experiment.registry import experiment as found
from holdfast_lab.experiment.registry import names, summary

__all__ = ["experiment"]


@click.command(cls=LongCommand)
@click.argument("name")
@click.option("--quick", is_flag=True, help="Smaller and shorter: takes less than two minutes on two cores.")
@click.option(
    "--results", type=LocalPath(file_okay=False), default=Path("results"), show_default=True,
    help="Directory for NAME.json, NAME.png and NAME.svg; its disk is the one that is measured.",
)  # fmt: skip
@click.option("--seed", type=int, default=1, show_default=True, help="Seed of all random data.")
@click.option("--days", type=click.FloatRange(min=0.1, max=366), help="Days of simulated load.  [default: 1]")
@click.option("--recovery", type=SecondsRange(min=0, min_open=True), metavar="DURATION",
              help="How long real hosts may be without output after a kill.  [default: 3]")  # fmt: skip
@click.option("--runs", type=click.IntRange(min=1, max=20), help="Repetitions of the whole experiment.  [default: 1]")
@click.option("--kill", is_flag=True, default=None, help="Kill a worker in the middle.")
@click.option("--l", "expressways", type=click.IntRange(min=1, max=1000), help="Expressways of Linear Road.")
@json_option
def experiment(
    name: str,
    quick: bool,
    results: Path,
    seed: int,
    days: float | None,
    recovery: float | None,
    runs: int | None,
    kill: bool | None,
    expressways: int | None,
    as_json: bool,
) -> None:
    """Run the experiment NAME of the papers and show its figures next to the paper's; 'list' shows the names.

    With --json the last line is JSON. A missed bar (target) is shown as failed and does not change the exit code.
    """
    if name == "list":
        _list(as_json)
    else:
        given = {"days": days, "recovery": recovery, "runs": runs, "kill": kill, "expressways": expressways}
        _run(name, quick, results, seed, {key: value for key, value in given.items() if value is not None}, as_json)


def _list(as_json: bool) -> None:
    from rich import box
    from rich.table import Table

    from holdfast.cli.output import console

    known = [summary(name) for name in names()]
    table = Table("name", "what", "paper", "needs", box=box.SIMPLE_HEAD, show_edge=False)
    for one in known:
        table.add_row(one.name, one.title, one.figure, one.needs)
    console().print(table)
    if as_json:
        fields = ("name", "title", "figure", "needs")
        click.echo(json.dumps([{field: getattr(one, field) for field in fields} for one in known]))


def _say(text: str) -> None:
    current_task().at(text=text)
    click.echo(text, err=True)


def _run(name: str, quick: bool, results: Path, seed: int, given: dict[str, Any], as_json: bool) -> None:

    from holdfast.cli.output import console
    from holdfast_lab.experiment.result_files import named, show, write

    asked = found(name)
    for option in given.keys() - set(asked.takes):
        flag = "l" if option == "expressways" else option
        raise click.UsageError(f"the experiment '{name}' does not use it: leave out --{flag}")
    results.mkdir(parents=True, exist_ok=True)
    started = time.perf_counter()
    with TemporaryDirectory(prefix=f".{name}-", dir=results, ignore_cleanup_errors=True) as work:
        settings = Settings(quick, seed, Path(work).resolve(), _say, **given)
        result = asked.run(settings)
    told = named(asked, result, quick, time.perf_counter() - started)
    paths = write(result, told, results)
    show(console(), result, told)
    click.echo(f"written: {', '.join(str(path) for path in paths)}")
    if as_json:
        click.echo(json.dumps(told))
