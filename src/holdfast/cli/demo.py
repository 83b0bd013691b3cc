"""`holdfast demo`: a pipeline survives kill -9, told in a terminal."""

from __future__ import annotations

import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import click

from holdfast.cli.group import HoldfastCommand
from holdfast.plurals import counted

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress, TaskID

    from holdfast.chaos.demo import Scene
    from holdfast.chaos.faults import Strike

__all__ = ["demo"]


@click.command(cls=HoldfastCommand)
def demo() -> None:
    """Run a pipeline, kill it with kill -9 in the middle, start it again, and check the result. Takes half a minute.

    The pipeline is the Yahoo Streaming Benchmark: events are filtered, joined with a table of campaigns and counted
    in windows of ten seconds. Exit code 1 if the result is not the right one.
    """
    from holdfast.chaos.demo import EPOCHS, KILL_AFTER, Demo
    from holdfast.cli.output import console

    out = console()
    began = time.monotonic()
    with TemporaryDirectory(prefix="holdfast-demo-", ignore_cleanup_errors=True) as directory:
        bars = _bars(out)
        bar = bars.add_task("starting", total=EPOCHS, rows="")
        story = Demo(Path(directory), lambda scene: _draw(bars, bar, scene))
        out.print(
            f"[bold]Ad views per campaign and 10 s[/], {story.settings.rows:,} events in {EPOCHS} epochs,"
            " exactly once into Parquet files."
        )
        try:
            with bars:
                story.start()
                story.until(KILL_AFTER)
                strike = story.kill()
                out.print(
                    f"[bold red]kill -9[/] of the driver, Java and all workers in the middle of an epoch."
                    f" Readers see {counted(story.published(), 'whole epoch')} with rows."
                )
                story.start()
                out.print("Started again: the same command on the same store.")
                story.until(1)
        finally:
            story.end()
        strike.on_end(time.time())
        difference, rows = story.check()
    _tell(out, strike)
    if not difference.equal:
        out.print(f"[bold red]The result differs[/] from the fault-free one: {difference}")
        raise SystemExit(1)
    out.print(
        f"[bold green]The result equals the fault-free one[/]: {rows:,} rows, none lost, none twice,"
        f" checked against a computation over all events at once. ({time.monotonic() - began:.0f} s in all)"
    )


def _tell(out: Console, strike: Strike) -> None:
    from holdfast.ui.figures import duration

    if strike.seconds is None or strike.session is None:
        return
    starting = strike.session - strike.at
    out.print(
        f"Recovery took [bold]{duration(strike.seconds)}[/] from the kill to the next commit: {duration(starting)} to"
        f" start Python and Java, {duration(strike.seconds - starting)} to go on with the first epoch."
    )


def _bars(out: Console) -> Progress:
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    return Progress(
        TextColumn("{task.description:<16}"),
        BarColumn(40),
        TextColumn("{task.completed:.0f}/{task.total:.0f} epochs"),
        TextColumn("{task.fields[rows]}"),
        TimeElapsedColumn(),
        console=out,
    )


def _draw(bars: Progress, bar: TaskID, scene: Scene) -> None:
    description = "running" if scene.ready else "starting Spark"
    bars.update(
        bar,
        completed=scene.epoch,
        description=description,
        rows=f"{scene.rows:,} events",
    )
