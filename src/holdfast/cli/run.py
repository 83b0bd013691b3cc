"""`holdfast run`: run a pipeline, show what it does, and stop it cleanly."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from holdfast.cli.group import HoldfastCommand
from holdfast.cli.shared_options import (
    LocalPath,
    SecondsRange,
    conf_option,
    deadline_option,
    meta_option,
    retain_option,
    store_option,
    watch_options,
    watched,
)
from holdfast.signals import StopSignals

if TYPE_CHECKING:
    from holdfast.engine.options import RunOptions
    from holdfast.engine.scaling_rules import Scaling
    from holdfast.graph.pipeline import Pipeline
    from holdfast.ui.views import View

__all__ = ["run"]


@click.command(cls=HoldfastCommand)
@click.argument("target", metavar="FILE[:NAME]")
@store_option
@meta_option
@click.option("--master", metavar="URL", help="Spark master.  [default: this machine]")
@conf_option
@click.option("--cluster", "workers", type=click.IntRange(min=1), metavar="N",
              help="Start a Spark cluster of N workers on this machine, and run on it.")  # fmt: skip
@click.option("--pool", type=click.IntRange(min=0), metavar="P",
              help="Spare workers of that cluster, started and waiting.  [default: 1]")  # fmt: skip
@click.option(
    "--latency", type=SecondsRange(min=0, min_open=True), default=1.0, show_default=True, metavar="DURATION",
    help="How long an epoch may take; epochs are as large as fits.",
)  # fmt: skip
@click.option("--trigger", metavar="DURATION",
              help="Start at most one epoch per DURATION, e.g. '1 min', with all input so far; or 'available now': "
              "process the input that is there and stop.")  # fmt: skip
@click.option("--most-rows", type=click.IntRange(min=1), default=1_000_000_000, metavar="N",
              help="Take at most N rows per epoch, from all sources together.")  # fmt: skip
@click.option(
    "--detection", type=SecondsRange(min=1), default=10.0, show_default=True, metavar="DURATION",
    help="On a cluster, give up an executor that is silent for this long; the minimum is 3.",
)  # fmt: skip
@click.option(
    "--partitions", type=click.IntRange(min=1),
    help="Partitions of stateful operators.  [default: 2; with a latency of up to 50 ms, 1 until that is too slow]",
)  # fmt: skip
@click.option("--tasks", type=click.IntRange(min=1), default=2, show_default=True, help="Number of reading tasks.")
@click.option("--executor", type=click.Choice(["crew", "jobs"]),
              help="How epochs run: on a crew of long-running workers, or as one Spark job each.  "
              "[default: a crew if possible]")  # fmt: skip
@retain_option
@click.option("--until-idle", is_flag=True, help="Stop when the sources have no new input.")
@click.option("--max-epochs", type=click.IntRange(min=1), metavar="N", help="Stop after epoch N.")
@click.option(
    "--max-seconds",
    type=SecondsRange(min=0),
    metavar="DURATION",
    help="Stop this long after the start of the first epoch.",
)
@click.option(
    "--fragment", "fragments", multiple=True, metavar="NAME",
    help="Run only this fragment of a pipeline with p-streams; repeatable.",
)  # fmt: skip
@click.option("--scale", "scales", is_flag=True, help="Change the parallelism of operators with their load.")
@click.option(
    "--scale-threshold", type=click.FloatRange(min=0, max=1, min_open=True), metavar="SHARE",
    help="Split partitions that use more than this share of a CPU.  [default: 0.7]",
)  # fmt: skip
@click.option(
    "--scale-report", type=SecondsRange(min=0, min_open=True), metavar="DURATION",
    help="Interval between reports of CPU use.  [default: 5]",
)  # fmt: skip
@click.option(
    "--scale-reports", type=click.IntRange(min=1), metavar="K",
    help="Split after K reports in a row above the threshold.  [default: 2]",
)  # fmt: skip
@click.option(
    "--scale-most", type=click.IntRange(min=1), metavar="N",
    help="Maximum number of partitions of an operator.  [default: half of Spark's slots]",
)  # fmt: skip
@click.option("--no-ingress", is_flag=True, help="Do not receive for push sources; `holdfast ingress` does.")
@click.option(
    "--no-durable", is_flag=True, help="Do not sync to disk: survives a process crash, but not a power failure."
)
@click.option(
    "--checkpoint", default="auto", show_default=True, metavar="POLICY",
    help="When state is made durable, e.g. delta, interval(5s), eventual(2s) or none; auto picks the cheapest.",
)  # fmt: skip
@click.option(
    "--recovery", metavar="DURATION",
    help="How long restoring lost state may take, e.g. 2s.  [default: the pipeline's guarantee]",
)  # fmt: skip
@click.option(
    "--volatile", type=LocalPath(file_okay=False), metavar="DIR",
    help="Where to keep state that is not durable yet.  [default: in memory]",
)  # fmt: skip
@click.option(
    "--backup", "backups", multiple=True, type=LocalPath(file_okay=False), metavar="DIR",
    help="Additional location for a copy of the state; repeatable.",
)  # fmt: skip
@click.option("--memory", metavar="SIZE", help="Budget of the volatile tier, e.g. 2GB; the rest spills to disk.")
@click.option(
    "--recovery-partitions", type=click.IntRange(min=1), metavar="N",
    help="Replay lost state with N partitions per operator, and keep them.",
)  # fmt: skip
@deadline_option
@watch_options
@click.option("--plain", is_flag=True, help="Log lines instead of the live view.")
def run(
    target: str,
    workers: int | None,
    pool: int | None,
    scales: bool,
    scale_threshold: float | None,
    scale_report: float | None,
    scale_reports: int | None,
    scale_most: int | None,
    no_ingress: bool,
    no_durable: bool,
    plain: bool,
    ui_address: tuple[str, int] | None,
    metrics_address: tuple[str, int] | None,
    otlp: str | None,
    openlineage: str | None,
    **settings: Any,
) -> None:
    """Run the pipeline NAME declared in FILE until its sources end.

    NAME is optional if the file has one pipeline. A run resumes where the last run on the same store ended, however it
    ended. Ctrl-C and SIGTERM stop it after the epochs in flight are committed; a second signal aborts.
    """
    # Here and not above: `holdfast run --help` should not wait for Spark's imports.
    from holdfast.cli.pipeline_file import load_pipeline
    from holdfast.engine.options import RunOptions
    from holdfast.run import run_until

    if workers is not None and settings["master"] is not None:
        raise click.UsageError("--cluster starts its own master: give either --cluster or --master")
    if pool is not None and workers is None:
        raise click.UsageError("--pool needs --cluster")
    scaling = _scaling(scales, threshold=scale_threshold, report=scale_report, reports=scale_reports, most=scale_most)
    options = RunOptions(ingress=not no_ingress, durable=not no_durable, scaling=scaling, **settings)
    pipeline = load_pipeline(target)
    pipeline.check()
    with (
        watched(options.store, options.meta, ui_address, metrics_address, otlp, openlineage),
        _view(pipeline, plain) as view,
        _cluster(pipeline, options, workers, pool) as (options, given),
    ):
        run_until(StopSignals(), pipeline, options, observer=view, **given)


@contextlib.contextmanager
def _cluster(
    pipeline: Pipeline, options: RunOptions, workers: int | None, pool: int | None
) -> Iterator[tuple[RunOptions, dict[str, Any]]]:
    """The options to run with, and the session and the pool of a cluster of its own, if there is to be one."""
    if workers is None:
        yield options, {}
        return
    from holdfast.scale.pool import OwnCluster
    from holdfast.spark.session import log_file

    with OwnCluster(workers, 1 if pool is None else pool) as cluster:
        app, log = f"holdfast {pipeline.name}", log_file(options.store)
        spark = cluster.session(app, options.conf, log=log, detection=options.detection)
        yield replace(options, conf={}), {"spark": spark, "pool": cluster.pool}


def _scaling(wanted: bool, **given: Any) -> Scaling | None:
    from holdfast.engine.scaling_rules import Scaling

    known = {name: value for name, value in given.items() if value is not None}
    if known and not wanted:
        raise click.UsageError(f"--scale-{next(iter(known))} needs --scale")
    return Scaling(**known) if wanted else None


def _view(pipeline: Pipeline, plain: bool) -> View:
    from rich.console import Console

    from holdfast.ui.progress import Progress, event_unit
    from holdfast.ui.terminal_graph import TerminalGraph
    from holdfast.ui.views import LiveView, PlainView

    progress = Progress(pipeline.name, event_unit(pipeline), time.time())
    if plain or not sys.stdout.isatty():
        return PlainView(progress, click.echo)
    return LiveView(progress, Console(), graph=TerminalGraph.of(pipeline))
