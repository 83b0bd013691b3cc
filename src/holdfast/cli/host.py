"""`holdfast host`: one of the processes that run the pipelines of a store together."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from holdfast.cli.group import HoldfastCommand
from holdfast.cli.shared_options import LocalPath, SecondsRange, conf_option, meta_option, store_option
from holdfast.errors import DeclarationError
from holdfast.replica.cores import keep_to
from holdfast.replica.eviction_notice import acting_on_eviction, parse_notice
from holdfast.signals import stop_on_signals
from holdfast.store import make_private

if TYPE_CHECKING:
    from holdfast.plan.executor_choice import ExecutorName
    from holdfast.replica.eviction_notice import EvictionNotice
    from holdfast.replica.host_events import Emit, HostEvent

__all__ = ["check_timing", "eviction_option", "host", "timing_options"]


def timing_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """How fast a host that fails is noticed."""
    beat = click.option(
        "--beat", type=SecondsRange(min=0.05), default=0.25, show_default=True, metavar="DURATION",
        help="Interval between heartbeats.",
    )  # fmt: skip
    detection = click.option(
        "--detection", type=SecondsRange(min=0.2), default=1.0, show_default=True, metavar="DURATION",
        help="A host that is silent for this long counts as dead.",
    )  # fmt: skip
    return beat(detection(command))


def _notice(context: click.Context, parameter: click.Parameter, value: str | None) -> EvictionNotice | None:

    try:
        return None if value is None else parse_notice(value)
    except DeclarationError as error:
        raise click.BadParameter(f"{error.problem}; {error.cure}", context, parameter) from None


eviction_option = click.option(
    "--eviction-notice", "eviction", metavar="URL", callback=_notice,
    help="Where to look for the notice that this machine will be taken away: file:/PATH or http://HOST/PATH. The host"
    " then ends as after SIGTERM, so that a host elsewhere takes over.",
)  # fmt: skip


def check_timing(beat: float, detection: float) -> None:
    if detection < 2 * beat:
        raise click.UsageError("--detection must be at least twice --beat, because one heartbeat may be late")


def _cores(context: click.Context, parameter: click.Parameter, value: str | None) -> frozenset[int] | None:
    if value is None:
        return None
    try:
        return frozenset(int(core) for core in value.split(","))
    except ValueError:
        raise click.BadParameter(f"'{value}' is not a list of numbers such as 0,1", context, parameter) from None


@click.command(cls=HoldfastCommand)
@click.argument("name")
@store_option
@meta_option
@click.option("--master", metavar="URL", help="Spark master.  [default: this machine]")
@conf_option
@click.option(
    "--volatile", type=LocalPath(file_okay=False), metavar="DIR",
    help="Where to keep state that is lost with this host.  [default: in memory]",
)  # fmt: skip
@click.option("--events", type=LocalPath(dir_okay=False), metavar="FILE",
              help="Append events to this file, as JSON lines.")  # fmt: skip
@click.option("--executor", type=click.Choice(["crew", "jobs"]),
              help="How epochs run: on a crew of long-running workers, or as one Spark job each.  "
              "[default: the choice of `holdfast up`]")  # fmt: skip
@click.option("--cores", metavar="NUMBERS", callback=_cores,
              help="Run only on these cores, e.g. 0,1.  [default: all]")  # fmt: skip
@eviction_option
@timing_options
def host(
    name: str,
    store: Path,
    meta: str | None,
    master: str | None,
    conf: dict[str, str],
    volatile: Path | None,
    events: Path | None,
    executor: ExecutorName | None,
    cores: frozenset[int] | None,
    eviction: EvictionNotice | None,
    beat: float,
    detection: float,
) -> None:
    """Run the host NAME: replicas of the pipelines that `holdfast up` has deployed on the store.

    Every host of a store needs its own name. On several machines the store must be a directory that all of them see,
    and --meta a PostgreSQL database. Ctrl-C and SIGTERM end it after the epochs in flight; another host then takes
    over.
    """
    from holdfast.cli.pipeline_file import load_pipeline
    from holdfast.engine.spark_platform import SparkPlatform
    from holdfast.engine.warmup import warm_up
    from holdfast.meta.lease_holder import this_process
    from holdfast.replica.host import Host, HostSettings
    from holdfast.replica.host_events import HostEnded, HostStarted, SessionOpened
    from holdfast.replica.host_watch import also_logged
    from holdfast.replica.keeper import Timing
    from holdfast.replica.process_file import process_file
    from holdfast.spark.session import close_spark, log_file, open_spark
    from holdfast.watch.event_log import EventLog

    check_timing(beat, detection)
    timing = Timing(beat=beat, detection=detection)
    settings = HostSettings(name=name, store=store.resolve(), meta=meta, volatile=volatile, timing=timing,
                            executor=executor)  # fmt: skip
    if cores is not None:
        keep_to(cores)  # before Java starts, which counts them
    make_private(store.resolve())
    mine = process_file(store, name)
    mine.parent.mkdir(parents=True, exist_ok=True)
    mine.write_text(this_process())
    try:
        with _event_log(name, events) as own, EventLog(store.resolve(), f"host-{name}") as kept:
            emit = also_logged(own, kept, store.resolve(), name)
            emit(HostStarted())
            serving = Host(settings, load_pipeline, emit, events=kept)
            serving.beat()
            log = log_file(store, f"spark-{name}")
            spark = open_spark(master, app=f"holdfast host {name}", config=conf, log=log, detection=detection)
            try:
                emit(SessionOpened())
                warm_up(spark, store.resolve() / "hosts" / f"{name}.work", executor=executor)
                with (
                    stop_on_signals(serving.stop, lambda: click.echo("stopping")),
                    acting_on_eviction(eviction, serving.leave),
                ):
                    serving.run(SparkPlatform(spark))
            finally:
                close_spark(spark)
            emit(HostEnded())
    finally:
        if mine.exists() and mine.read_text() == this_process():
            mine.unlink()


@contextlib.contextmanager
def _event_log(name: str, events: Path | None) -> Iterator[Emit]:
    """What people want to know goes to the log, everything to the file."""
    from holdfast.replica.host_events import EpochRun, ReplicaCommitted, event_json, event_text

    with contextlib.ExitStack() as stack:
        if events is not None:
            events.parent.mkdir(parents=True, exist_ok=True)
        lines = stack.enter_context(events.open("a", buffering=1)) if events is not None else None

        def emit(event: HostEvent) -> None:
            # A full disk keeps nobody from working: events are then lost.
            if lines is not None:
                with contextlib.suppress(OSError):
                    lines.write(event_json(event, name, os.getpid(), time.time()) + "\n")
            if not isinstance(event, ReplicaCommitted | EpochRun):
                with contextlib.suppress(OSError):
                    click.echo(f"{time.strftime('%H:%M:%S')} {name} {event_text(event)}")

        yield emit
