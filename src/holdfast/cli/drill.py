"""`holdfast drill`: kill part of a running pipeline on purpose, and see whether its guarantee holds."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from holdfast.cli.group import HoldfastCommand
from holdfast.cli.shared_options import SecondsRange, json_option, meta_option, store_option
from holdfast.plurals import counted
from holdfast.spans import duration

if TYPE_CHECKING:
    from holdfast.dashboard.drill_run import Drill
    from holdfast.plan.drill_command import Victim

__all__ = ["drill"]


@click.command(cls=HoldfastCommand)
@click.argument("pipeline")
@click.option("--kill", type=click.Choice(["worker", "host"]),
              help="What to kill: a worker of its crew, or the host of `holdfast up` that is its primary.")  # fmt: skip
@store_option
@meta_option
@click.option("--fragment", metavar="NAME",
              help="The fragment, if p-streams cut the pipeline.  [default: the one with the most state]")  # fmt: skip
@click.option("--code", metavar="FILE[:NAME]", help="The pipeline's code, if a program runs it instead of a command.")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@click.option("--wait", type=SecondsRange(min=0), default=120.0, show_default=True, metavar="DURATION",
              help="How long to wait for it to recover.")  # fmt: skip
@click.option("--reports", is_flag=True, help="Show the reports of earlier drills, newest first; kill nothing.")
@click.option("--by", default="holdfast drill", hidden=True)
@json_option
def drill(
    pipeline: str,
    kill: Victim | None,
    store: Path,
    meta: str | None,
    fragment: str | None,
    code: str | None,
    yes: bool,
    wait: float,
    reports: bool,
    by: str,
    as_json: bool,
) -> None:
    """Kill a worker or a host of the running PIPELINE with kill -9, and judge how it recovers.

    It first shows the prediction and asks for confirmation. The verdict: epochs around the failure are run again in
    this process, and the digests of their output and state must equal the committed ones; the recovery time is compared
    with the prediction and the guarantee. The report is kept in the store. The exit code is 1 if the drill fails.
    """
    import msgspec

    from holdfast.cli.pipeline_file import load_pipeline
    from holdfast.dashboard.drill_report import kept_reports
    from holdfast.dashboard.drill_run import drill_code, planned_drill, run_drill
    from holdfast.dashboard.store_watch import StoreWatch

    store = store.resolve()
    if reports:
        found = kept_reports(store, pipeline)
        click.echo(msgspec.json.encode(found).decode() if as_json else "\n".join(report.text() for report in found))
        return
    if kill is None:
        raise click.UsageError("choose what to kill: --kill worker or --kill host")
    snapshot = StoreWatch(store, meta).look()
    planned = planned_drill(snapshot, pipeline, kill, fragment)
    declared = load_pipeline(code or drill_code(snapshot, pipeline))
    click.echo(_forecast(planned), err=as_json)
    if not yes:
        click.confirm(f"Kill it now, with kill -9, while '{planned.fragment}' runs?", abort=True, err=as_json)
    report = run_drill(planned, declared, store, meta, wait=wait, by=by, say=lambda text: click.echo(text, err=as_json))
    click.echo(msgspec.json.encode(report).decode() if as_json else report.text())
    if not report.passed:
        raise SystemExit(1)


def _forecast(planned: Drill) -> str:

    target = f"host {planned.host}" if planned.kill == "host" else "a worker"
    forecast = planned.forecast
    time = (
        "nobody knows how long" if forecast.seconds is None else f"{duration(forecast.seconds)} until the next commit"
    )
    rows = "" if forecast.rows is None else f", {counted(forecast.rows, 'row')} to run again"
    cost = "" if forecast.cost is None else f", which costs {max(forecast.cost, 1e-6):.6f} at most"
    bound = "" if planned.bound is None else f"; {duration(planned.bound)} are allowed"
    return f"predicted for the loss of {target} of '{planned.fragment}': {time}{rows}{cost}{bound}\n  ({forecast.text})"
