"""`holdfast demo`: a pipeline survives kill -9, shown in a terminal."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import click

from holdfast.cli.group import HoldfastCommand
from holdfast.errors import EpochFailedError
from holdfast.plurals import counted

if TYPE_CHECKING:
    import polars as pl
    from rich.console import Console
    from rich.progress import Progress

    from holdfast.demo.demo_run import DemoRun, RunProgress

__all__ = ["demo"]

_KILL_AFTER = 0.5
"""The share of the input after which the process is killed."""
_POLL_SECONDS = 0.05
_PATIENCE_SECONDS = 120.0


@click.command(cls=HoldfastCommand)
def demo() -> None:
    """Run a pipeline, kill it with kill -9 in the middle, start it again, and check the result. Takes half a minute.

    The pipeline is the one of the Yahoo Streaming Benchmark: events are filtered, joined with a table of campaigns and
    counted in windows of ten seconds. Exit code 1 if the result is wrong.
    """
    from holdfast.cli.output import console
    from holdfast.demo import ad_views
    from holdfast.demo.demo_run import DemoRun

    out = console()
    began = time.monotonic()
    with TemporaryDirectory(prefix="holdfast-demo-", ignore_cleanup_errors=True) as directory:
        run = DemoRun(Path(directory))
        out.print(
            f"[bold]Ad views per campaign and 10 s[/]: {ad_views.ROWS:,} events, exactly once into Parquet files."
        )
        try:
            with _bar(out, ad_views.ROWS) as bar:
                run.start()
                _watch(run, bar, lambda progress: progress.rows >= ad_views.ROWS * _KILL_AFTER)
                run.kill()
                out.print(
                    "[bold red]kill -9[/] of the driver, Java and all workers in the middle of an epoch."
                    f" Readers see {counted(run.published(), 'whole epoch')} with rows."
                )
                run.start()
                out.print("Started again: the same command on the same store.")
                _watch(run, bar, lambda progress: False)
        finally:
            run.end()
        _show_recovery(out, run)
        _show_result(out, run.output(), ad_views.expected(), time.monotonic() - began)


def _watch(run: DemoRun, bar: Progress, done: Callable[[RunProgress], bool]) -> None:
    """Show the progress until it is `done`, or the process has ended."""

    last, changed = None, time.monotonic()
    while True:
        ended, progress = run.ended(), run.progress()
        if progress != last:
            last, changed = progress, time.monotonic()
        description = "running" if progress.started else "starting Spark"
        bar.update(bar.task_ids[0], completed=progress.rows, description=description, epochs=progress.epochs)
        if ended or done(progress):
            return
        if time.monotonic() - changed > _PATIENCE_SECONDS:
            raise EpochFailedError(
                f"nothing happened for {_PATIENCE_SECONDS:.0f} s:\n{run.log_tail()}",
                cure="try again when the machine is less busy",
            )
        time.sleep(_POLL_SECONDS)


def _show_recovery(out: Console, run: DemoRun) -> None:
    from holdfast.ui.figures import duration

    recovery = run.recovery()
    if recovery is not None:
        out.print(
            f"Recovery took [bold]{duration(recovery.start + recovery.epoch)}[/] from the kill to the next commit:"
            f" {duration(recovery.start)} to start Python and Java, {duration(recovery.epoch)} for the first epoch."
        )


def _show_result(out: Console, actual: pl.DataFrame, expected: pl.DataFrame, seconds: float) -> None:
    """Compare as multisets of rows; exit code 1 if they differ."""
    order = expected.columns
    if actual.height != expected.height or not actual.select(order).sort(order).equals(expected.sort(order)):
        out.print(
            f"[bold red]The result differs[/] from the computation over all events at once:"
            f" {counted(actual.height, 'row')} instead of {counted(expected.height, 'row')}."
        )
        raise SystemExit(1)
    out.print(
        f"[bold green]The result equals the fault-free one[/]: {expected.height:,} rows, none lost, none duplicated,"
        f" checked against a computation over all events at once. ({seconds:.0f} s in total)"
    )


def _bar(out: Console, rows: int) -> Progress:
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    bar = Progress(
        TextColumn("{task.description:<16}"),
        BarColumn(40),
        TextColumn("{task.completed:,.0f}/{task.total:,.0f} events"),
        TextColumn("{task.fields[epochs]} epochs"),
        TimeElapsedColumn(),
        console=out,
    )
    bar.add_task("starting Spark", total=rows, epochs=0)
    return bar
