"""`holdfast bench`: how fast a query runs."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Literal

import click

from holdfast.cli.group import HoldfastCommand
from holdfast.cli.options import conf_option, json_option
from holdfast.plurals import counted

if TYPE_CHECKING:
    from holdfast_lab.bench.bench_figures import Figures
    from holdfast_lab.bench.keyed_scale import KeyedScale
    from holdfast_lab.bench.repartition import Repartition
    from holdfast_lab.bench.special_runs import Comparison

__all__ = ["bench"]


@click.command(cls=HoldfastCommand)
@click.argument("query")
@click.option(
    "--seconds", type=click.FloatRange(min=0, min_open=True), default=10.0, show_default=True,
    help="How long to measure after the warm-up, in all.",
)  # fmt: skip
@click.option("--engine", type=click.Choice(["holdfast", "spark"]), default="holdfast", show_default=True)
@click.option(
    "--latency", type=click.FloatRange(min=0, min_open=True), default=1.0, show_default=True, metavar="SECONDS",
    help="How long an epoch may take.",
)  # fmt: skip
@click.option("--slide", type=click.IntRange(min=1), metavar="SECONDS", help="Replaces the query's slide.")
@click.option(
    "--durability", type=click.Choice(["delta", "none"]), default="delta", show_default=True,
    help="delta: every epoch is synced to disk before it is committed.",
)  # fmt: skip
@click.option("--partitions", type=click.IntRange(min=1), default=2, show_default=True, help="Of stateful operators.")
@click.option("--keys", type=click.IntRange(min=1), help="Of keyed, keyed-scale (the most) and repartition.")
@click.option("--executor", type=click.Choice(["jobs", "crew"]), default="jobs", show_default=True,
              help="What runs Holdfast's epochs.")  # fmt: skip
@click.option("--master", metavar="URL", help="Spark master.  [default: this machine]")
@conf_option
@json_option
def bench(
    query: str, seconds: float, engine: str, latency: float, slide: int | None, durability: str, partitions: int,
    keys: int | None, executor: Literal["jobs", "crew"], master: str | None, conf: dict[str, str], as_json: bool,
) -> None:  # fmt: skip
    """Measure QUERY on input that is never the bottleneck, with a Parquet sink; the warm-up does not count.

    Queries of the papers: CM1 CM2 SG1 SG2 SG3 LRB1 LRB2 LRB3 YSB NQ SM, and words, topk, cec. Beside them: idle (what
    an empty epoch costs), keyed (updates of a million keys), keyed-scale (the same and its memory from ten thousand to
    ten million keys), repartition (a state of a gigabyte is split and merged while it is used), sliding (CM1 60/1
    against 60/60), durability (YSB durable against not), ingress (rows from one client, acknowledged durable). With
    --json the last line is JSON.
    """
    from holdfast_lab.bench.query_runs import BenchOptions, measure, measure_on_spark, session, workplace
    from holdfast_lab.bench.special_runs import SPECIAL
    from holdfast_lab.workloads.queries import query as named

    if query.lower() == "ingress":
        _ingress(seconds, as_json)
        return
    options = BenchOptions(seconds, latency, slide, durability == "delta", partitions, keys=keys, executor=executor)
    special = SPECIAL.get(query.lower())
    if special is not None and engine == "spark":
        raise click.UsageError(f"'{query}' is a benchmark of Holdfast only")
    asked = None if special is not None else named(query)
    if asked is not None:
        asked.checked_slide(slide)
    with workplace() as place, session(engine, master, conf) as spark:
        result: Figures | Comparison | KeyedScale | Repartition
        if asked is None:
            assert special is not None
            result = special(spark, options, place)
        elif engine == "spark":
            result = measure_on_spark(spark, asked, options)
        else:
            result = measure(spark, asked, options, place)
    _show(result)
    if as_json:
        click.echo(json.dumps(result.to_json()))


def _ingress(seconds: float, as_json: bool) -> None:
    """The receivers need no Spark."""
    from holdfast_lab.bench.ingress_load import measure_ingress
    from holdfast_lab.bench.query_runs import workplace

    with workplace() as place:
        result = measure_ingress(seconds, place)
    for line in result.lines():
        click.echo(line)
    if as_json:
        click.echo(json.dumps(result.to_json()))


def _show(result: Figures | Comparison | KeyedScale | Repartition) -> None:
    from rich.table import Table

    from holdfast.cli.output import console
    from holdfast_lab.bench.keyed_scale import KeyedScale
    from holdfast_lab.bench.repartition import Repartition
    from holdfast_lab.bench.special_runs import Comparison

    if isinstance(result, Comparison):
        for figures in (result.first, result.second):
            _show(figures)
        rounds = ", ".join(f"{ratio:.2f}" for ratio in result.ratios)
        click.echo(f"{result.name}: the first is {result.ratio:.2f} times as fast as the second (rounds: {rounds})")
        return
    if isinstance(result, KeyedScale):
        for figures in result.sizes:
            _show(figures)
        told = ", ".join(f"{int(keys):,} keys {ratio:.2f}" for keys, ratio in result.ratios().items())
        click.echo(f"updates per second, over those with the fewest keys: {told}")
        return
    if isinstance(result, Repartition):
        for line in result.lines():
            click.echo(line)
        return
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim")
    table.add_column()
    for name, value in _lines(result):
        table.add_row(name, value)
    console().print(table)


def _lines(result: Figures) -> list[tuple[str, str]]:
    from holdfast.ui.figures import amount, duration, size

    def times(values: dict[str, Any]) -> str:
        return ", ".join(f"{name} {duration(value / 1_000)}" for name, value in values.items())

    said = result.to_json()
    notes = ", ".join(f"{name} {value}" for name, value in result.notes.items() if value is not None)
    lines = [("query", f"{result.query} on {result.engine}" + (f" ({notes})" if notes else ""))]
    if result.tuples:
        lines += [
            ("tuples", f"{result.tuples:,} in {duration(result.seconds)}"),
            ("throughput", f"{amount(result.tuples_per_s)} tuples/s"),
        ]
    lines.append((f"epochs ({result.epochs})", times(said["epoch_ms"]) if result.epoch_seconds else "none measured"))
    if result.latency_seconds:
        lines.append(("latency to result", times(said["latency_ms"])))
    if result.raw_bytes:
        persisted = f"persisted {size(result.persisted_bytes)} ({result.persisted_bytes / result.raw_bytes:.2%})"
        lines.append(("input", f"{size(result.raw_bytes)} as the paper's tuples, {persisted}"))
    lines.append(("output", counted(result.output_rows, "row")))
    return lines
