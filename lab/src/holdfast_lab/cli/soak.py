"""`holdfast soak`: whether anything grows with the number of epochs."""

from __future__ import annotations

import json

import click

from holdfast.cli.group import LongCommand
from holdfast.cli.shared_options import conf_option, json_option

__all__ = ["soak"]


@click.command(cls=LongCommand)
@click.option(
    "--epochs", type=click.IntRange(min=100), default=1_000_000, show_default=True, help="Epochs of the first fragment."
)
@conf_option
@json_option
def soak(epochs: int, conf: dict[str, str], as_json: bool) -> None:
    """Run very many short epochs, and check that nothing grows with their number.

    Two fragments run on crews: windows go to Parquet files, rows through a p-stream, running totals to a database.
    It samples files, bytes, rows of the meta store, open files, threads, memory and the cost of an epoch 200 times. A
    missed bar (target) is shown as failed and does not change the exit code. With --json the last line is JSON.
    """
    from holdfast_lab.bench.query_runs import session, workplace
    from holdfast_lab.soak.soak_run import soak_run

    with workplace() as place, session("holdfast", "local[8,4]", conf) as spark:
        result = soak_run(spark, place, epochs, click.echo).to_json()
    for bar in result["bars"]:
        click.echo(f"{bar['name']}: {bar['value']}{'' if bar['ok'] else ', FAILED'} (at most {bar['bar']})")
    if as_json:
        click.echo(json.dumps(result))
