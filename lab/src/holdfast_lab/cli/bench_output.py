"""What `holdfast bench` prints of its results."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Protocol

import click

from holdfast.plurals import counted

if TYPE_CHECKING:
    from holdfast_lab.bench.bench_figures import Figures
    from holdfast_lab.bench.special_runs import SpecialResult
    from holdfast_lab.experiment.definition import Bar

__all__ = ["Barred", "show_barred", "show_figures", "show_table"]


class Barred(Protocol):
    """A result with bars."""

    def table(self) -> list[dict[str, Any]]: ...

    def bars(self) -> list[Bar]: ...

    def to_json(self) -> dict[str, Any]: ...


def show_barred(result: Barred) -> None:
    """The table, whether the bars are reached, and JSON."""
    show_table(result.table())
    for bar in result.bars():
        click.echo(f"{bar.name}: {bar.value} (at least {bar.bar}: {'reached' if bar.ok else 'missed'})")
    click.echo(json.dumps(result.to_json()))


def show_table(rows: list[dict[str, Any]]) -> None:
    from rich.table import Table

    from holdfast.cli.output import console

    table = Table(*rows[0])
    for row in rows:
        table.add_row(
            *("" if value is None else f"{value:,}" if isinstance(value, int) else str(value) for value in row.values())
        )
    console().print(table)


def show_figures(result: SpecialResult) -> None:
    from rich.table import Table

    from holdfast.cli.output import console
    from holdfast_lab.bench.keyed_scale import KeyedScale
    from holdfast_lab.bench.quiet_pipeline import QuietFigures
    from holdfast_lab.bench.repartition import Repartition
    from holdfast_lab.bench.special_runs import Comparison
    from holdfast_lab.bench.worker_recovery import WorkerRecovery

    if isinstance(result, Comparison):
        for figures in (result.first, result.second):
            show_figures(figures)
        rounds = ", ".join(f"{ratio:.2f}" for ratio in result.ratios)
        click.echo(f"{result.name}: the first is {result.ratio:.2f} times as fast as the second (rounds: {rounds})")
        return
    if isinstance(result, KeyedScale):
        for figures in result.sizes:
            show_figures(figures)
        told = ", ".join(f"{int(keys):,} keys {ratio:.2f}" for keys, ratio in result.ratios().items())
        click.echo(f"updates per second, over those with the fewest keys: {told}")
        return
    if isinstance(result, Repartition | WorkerRecovery | QuietFigures):
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
    notes = ", ".join(f"{name} {value}" for name, value in result.notes.items() if value is not None and name != "bars")
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
    for bar in result.notes.get("bars", ()):
        lines.append(("bar", f"{bar['name']}: {amount(bar['value'])} of {amount(bar['bar'])}"))
    return lines
