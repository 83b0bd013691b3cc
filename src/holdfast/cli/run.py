"""`holdfast run`: run a pipeline, show what it does, and stop it cleanly."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import click

from holdfast.cli.group import HoldfastCommand
from holdfast.cli.options import store_option

if TYPE_CHECKING:
    from holdfast.epoch.driver import RunOptions
    from holdfast.graph.pipeline import Pipeline
    from holdfast.ui.views import View

__all__ = ["run"]


@click.command(cls=HoldfastCommand)
@click.argument("target", metavar="FILE[:NAME]")
@store_option
@click.option("--meta", metavar="URL", help="SQLAlchemy URL of the meta store.  [default: SQLite in the store]")
@click.option("--master", metavar="URL", help="Spark master.  [default: this machine]")
@click.option(
    "--latency", type=click.FloatRange(min=0, min_open=True), default=1.0, show_default=True, metavar="SECONDS",
    help="How long an epoch may take: the pipeline makes its epochs as large as fit.",
)  # fmt: skip
@click.option("--partitions", type=click.IntRange(min=1), default=2, show_default=True, help="Of stateful operators.")
@click.option("--tasks", type=click.IntRange(min=1), default=2, show_default=True, help="How many tasks read.")
@click.option("--retain", type=click.IntRange(min=1), default=16, show_default=True, help="Epochs kept for `state`.")
@click.option("--until-idle", is_flag=True, help="Stop when the sources have nothing new.")
@click.option("--max-epochs", type=click.IntRange(min=1), metavar="N", help="Stop after epoch N.")
@click.option("--max-seconds", type=click.FloatRange(min=0), metavar="S", help="Stop after so many seconds.")
@click.option("--no-durable", is_flag=True, help="Do not sync to disk: survives a crash of the process, not of power.")
@click.option("--plain", is_flag=True, help="Log lines instead of the live view.")
def run(target: str, store: Path, master: str | None, no_durable: bool, plain: bool, **settings: Any) -> None:
    """Run the pipeline NAME declared in FILE until its sources end.

    NAME may be left out if the file has one pipeline. A run on the same store goes on where the last one ended,
    however it ended. Ctrl-C and SIGTERM stop it after the epochs in flight are committed; a second one aborts.
    """
    # Here and not above: `holdfast run --help` should not wait for Spark's imports.
    from holdfast.cli.load import load_pipeline
    from holdfast.epoch.driver import PipelineRun, RunOptions
    from holdfast.epoch.session import close_session, open_session

    options = RunOptions(store=store, durable=not no_durable, **settings)
    with abort_on_termination():
        pipeline = load_pipeline(target)
        pipeline.check()
        with _view(pipeline, options, plain) as view:
            spark = open_session(master, app=f"holdfast {pipeline.name}")
            try:
                running = PipelineRun(pipeline, spark, options, on_epoch=view.epoch)
                # After Spark has installed its own handler of Ctrl-C, which would cancel the epochs in flight.
                with stop_on_signals(running.stop, view.stopping):
                    view.started()
                    running.run()
            finally:
                close_session(spark)


def _view(pipeline: Pipeline, options: RunOptions, plain: bool) -> View:
    import time

    from rich.console import Console

    from holdfast.meta import MetaStore
    from holdfast.ui.progress import Progress, event_unit
    from holdfast.ui.views import LiveView, PlainView

    meta = MetaStore(options.meta or options.store, sync=options.durable)
    try:
        commit = meta.last_commit(pipeline.name)
    finally:
        meta.close()
    progress = Progress(
        pipeline.name, event_unit(pipeline), time.time(), resumed_after=commit.epoch if commit is not None else 0
    )
    if plain or not sys.stdout.isatty():
        return PlainView(progress, click.echo)
    return LiveView(progress, Console())


@contextmanager
def abort_on_termination() -> Iterator[None]:
    """Let SIGTERM unwind the program as Ctrl-C does, while there is nothing yet that could be committed."""

    def abort(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, abort)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def stop_on_signals(stop: Callable[[], None], told: Callable[[], None]) -> Iterator[None]:
    """The first Ctrl-C or SIGTERM calls `stop`, the second one raises KeyboardInterrupt."""
    asked = False

    def handle(number: int, frame: FrameType | None) -> None:
        nonlocal asked
        if asked:
            raise KeyboardInterrupt
        asked = True
        stop()
        told()

    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
