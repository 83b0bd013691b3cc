"""`holdfast host`: one of the processes that run the pipelines of a store together."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click

from holdfast.cli.group import HoldfastCommand
from holdfast.cli.options import LocalPath, conf_option, meta_option, store_option
from holdfast.signals import stop_on_signals

__all__ = ["check_timing", "host", "timing_options"]


def timing_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """How fast a host that fails is noticed."""
    beat = click.option(
        "--beat", type=click.FloatRange(min=0.05), default=0.25, show_default=True, metavar="SECONDS",
        help="Between two heartbeats.",
    )  # fmt: skip
    detection = click.option(
        "--detection", type=click.FloatRange(min=0.2), default=1.0, show_default=True, metavar="SECONDS",
        help="A host that has been silent for so long is taken for dead.",
    )  # fmt: skip
    return beat(detection(command))


def check_timing(beat: float, detection: float) -> None:
    if detection < 2 * beat:
        raise click.UsageError("--detection must be at least twice --beat: one beat may come late")


def _cores(context: click.Context, parameter: click.Parameter, value: str | None) -> frozenset[int] | None:
    if value is None:
        return None
    try:
        return frozenset(int(core) for core in value.split(","))
    except ValueError:
        raise click.BadParameter(f"'{value}' is no list of numbers, as 0,1", context, parameter) from None


@click.command(cls=HoldfastCommand)
@click.argument("name")
@store_option
@meta_option
@click.option("--master", metavar="URL", help="Spark master.  [default: this machine]")
@conf_option
@click.option(
    "--volatile", type=LocalPath(file_okay=False), metavar="DIR",
    help="This host's own memory, lost with it.  [default: in memory]",
)  # fmt: skip
@click.option("--events", type=LocalPath(dir_okay=False), metavar="FILE",
              help="Append what happens to a file, as lines of JSON.")  # fmt: skip
@click.option("--cores", metavar="NUMBERS", callback=_cores,
              help="Keep to these cores of the machine, e.g. 0,1.  [default: all]")  # fmt: skip
@timing_options
def host(
    name: str,
    store: Path,
    meta: str | None,
    master: str | None,
    conf: dict[str, str],
    volatile: Path | None,
    events: Path | None,
    cores: frozenset[int] | None,
    beat: float,
    detection: float,
) -> None:
    """Run replicas of the pipelines that `holdfast up` has given to the hosts of the store, as the host NAME.

    Every host of a store has a name of its own. On several machines the store is a directory that all of them see, and
    --meta a PostgreSQL database. Ctrl-C and SIGTERM end it after the epochs in flight; another host then goes on.
    """
    from holdfast.cli.load import load_pipeline
    from holdfast.engine.lease import this_process
    from holdfast.engine.warmup import warm_up
    from holdfast.replica.cores import keep_to
    from holdfast.replica.host import Host, HostSettings
    from holdfast.replica.keeper import Timing
    from holdfast.replica.supervisor import process_file
    from holdfast.spark.session import close_spark, log_file, open_spark
    from holdfast.store import make_private

    check_timing(beat, detection)
    timing = Timing(beat=beat, detection=detection)
    settings = HostSettings(name=name, store=store.resolve(), meta=meta, volatile=volatile, timing=timing)
    if cores is not None:
        keep_to(cores)  # before Java starts, which counts them
    make_private(store.resolve())
    mine = process_file(store, name)
    mine.parent.mkdir(parents=True, exist_ok=True)
    mine.write_text(this_process())
    try:
        with _telling(name, events) as tell:
            tell("started", {})
            serving = Host(settings, load_pipeline, tell)
            serving.beat()
            log = log_file(store, f"spark-{name}")
            spark = open_spark(master, app=f"holdfast host {name}", config=conf, log=log, detection=detection)
            try:
                tell("session", {})
                warm_up(spark, store.resolve() / "hosts" / f"{name}.work")
                with stop_on_signals(serving.stop, lambda: click.echo("stopping")):
                    serving.run(spark)
            finally:
                close_spark(spark)
            tell("ended", {})
    finally:
        if mine.exists() and mine.read_text() == this_process():
            mine.unlink()


@contextlib.contextmanager
def _telling(name: str, events: Path | None) -> Iterator[Callable[[str, dict[str, object]], None]]:
    """To the log what people want to know, to the file everything."""
    with contextlib.ExitStack() as stack:
        if events is not None:
            events.parent.mkdir(parents=True, exist_ok=True)
        lines = stack.enter_context(events.open("a", buffering=1)) if events is not None else None

        def tell(kind: str, facts: dict[str, object]) -> None:
            # A disk that is full keeps nobody from working: what is told then is lost.
            if lines is not None:
                told = {"event": kind, "host": name, "pid": os.getpid(), "at": time.time(), **facts}
                with contextlib.suppress(OSError):
                    lines.write(json.dumps(told) + "\n")
            if kind not in ("commit", "processed"):
                said = " ".join(f"{key}={value}" for key, value in facts.items())
                with contextlib.suppress(OSError):
                    click.echo(f"{time.strftime('%H:%M:%S')} {name} {kind} {said}")

        yield tell
