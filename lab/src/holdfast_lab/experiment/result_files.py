"""What the command shows and leaves behind of an experiment: a table beside the paper's figures, bars, files."""

from __future__ import annotations

import json
import math
import os
import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil
from rich import box
from rich.console import Console
from rich.table import Table

from holdfast_lab.experiment.definition import Bar, Experiment, Result, matching
from holdfast_lab.experiment.plots import save
from holdfast_lab.experiment.shown_value import shown_value

__all__ = ["machine", "named", "show", "write"]


def machine() -> str:
    """A sentence on what all of it was measured on."""
    memory = psutil.virtual_memory().total / 1e9
    load = os.getloadavg()[0]
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return (
        f"Measured on {platform.system()}, {_processor()}, {cores} cores, {memory:.0f} GB of memory;"
        f" the load average was {load:.1f} at the end."
    )


def _processor() -> str:
    try:
        with open("/proc/cpuinfo") as file:
            names = [line.partition(":")[2].strip() for line in file if line.startswith("model name")]
    except OSError:
        names = []
    return names[0] if names else platform.machine()


def named(experiment: Experiment, result: Result, quick: bool, seconds: float) -> dict[str, Any]:
    """The JSON of a run: the same on the last line and in the file."""
    told = {"experiment": experiment.name, "title": experiment.title, "figure": experiment.figure, **result.to_json()}
    told |= {"notes": [*result.notes, machine()], "quick": quick, "seconds": round(seconds, 1)}
    return _finite(told)  # type: ignore[no-any-return]


def _finite(value: Any) -> Any:
    """JSON knows neither infinity nor not-a-number: they become null. NumPy's scalars become Python's."""
    if isinstance(value, Mapping):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    if hasattr(value, "item"):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def write(result: Result, told: dict[str, Any], directory: Path) -> list[Path]:
    """`NAME.json`, and `NAME.png` and `NAME.svg` if the result has a plot; the paths."""
    directory.mkdir(parents=True, exist_ok=True)
    name = told["experiment"]
    paths = [directory / f"{name}.json"]
    paths[0].write_text(json.dumps(told, indent=1) + "\n")
    if result.plot is not None:
        title = f"{told['title']} ({told['figure']}{', quick' if told['quick'] else ''})"
        paths += save(result.plot, title, directory, name)
    return paths


def show(console: Console, result: Result, told: dict[str, Any]) -> None:
    console.print(f"[bold]{told['experiment']}[/]: {told['title']} ({told['figure']})", soft_wrap=True)
    console.print(_table(result))
    if result.bars:
        console.print(_bars(result.bars))
    for note in told["notes"]:
        console.print(f"- {note}", style="dim", soft_wrap=True, markup=False)
    if any(not bar.ok for bar in result.bars):
        missed = ", ".join(bar.name for bar in result.bars if not bar.ok)
        console.print(f"[bold red]missed:[/] {missed}", soft_wrap=True)


def _table(result: Result) -> Table:
    """Rows with the paper's figures right of the measured ones; columns the paper alone has come last."""
    said = [matching(result, row) for row in result.rows]
    every = list(dict.fromkeys(name for row in result.rows for name in row if name not in result.keys))
    columns = list(result.shown) or every
    by_paper = list(dict.fromkeys(name for row in said for name in row if name != "source"))
    table = Table(box=box.SIMPLE_HEAD, show_edge=False)
    for key in result.keys:
        table.add_column(_heading(key))
    order = [*columns, *(name for name in by_paper if name not in columns)]
    for name in order:
        if name in every:
            table.add_column(_heading(name), justify="right")
        if name in by_paper:
            table.add_column(f"{_heading(name)} (paper)", justify="right", style="cyan")
    for row, paper in zip(result.rows, said, strict=True):
        cells = [shown_value(row.get(key)) for key in result.keys]
        for name in order:
            if name in every:
                cells.append(shown_value(row.get(name)))
            if name in by_paper:
                cells.append(shown_value(paper.get(name)))
        table.add_row(*cells)
    return table


def _bars(bars: Any) -> Table:
    table = Table("bar", "measured", "asked for", "", box=box.SIMPLE_HEAD, show_edge=False)
    for bar in bars:
        assert isinstance(bar, Bar)
        verdict = "[green]ok[/]" if bar.ok else "[bold red]failed[/]"
        table.add_row(bar.name, shown_value(bar.value), shown_value(bar.bar), verdict)
    return table


def _heading(name: str) -> str:
    return name.replace("_per_s", "/s").replace("_", " ")
