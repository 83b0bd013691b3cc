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
from holdfast.cli.options import LocalPath, conf_option, deadline_option, meta_option, store_option
from holdfast.signals import StopSignals

if TYPE_CHECKING:
    from holdfast.engine.options import RunOptions
    from holdfast.engine.scaling import Scaling
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
              help="Workers of that cluster that are up and wait to be needed.  [default: 1]")  # fmt: skip
@click.option(
    "--latency", type=click.FloatRange(min=0, min_open=True), default=1.0, show_default=True, metavar="SECONDS",
    help="How long an epoch may take: the pipeline makes its epochs as large as fit.",
)  # fmt: skip
@click.option("--trigger", metavar="DURATION",
              help="Begin an epoch at most so often, e.g. '1 min', and take all that has come; or 'available now': "
              "take what is there and stop.")  # fmt: skip
@click.option(
    "--detection", type=click.FloatRange(min=1), default=10.0, show_default=True, metavar="SECONDS",
    help="On a cluster, an executor that has been silent for so long is given up; less than 3 counts as 3.",
)  # fmt: skip
@click.option("--partitions", type=click.IntRange(min=1), default=2, show_default=True, help="Of stateful operators.")
@click.option("--tasks", type=click.IntRange(min=1), default=2, show_default=True, help="How many tasks read.")
@click.option("--executor", type=click.Choice(["jobs", "crew"]), default="jobs", show_default=True,
              help="What runs epochs: a Spark job for each, or workers that stay.")  # fmt: skip
@click.option("--retain", type=click.IntRange(min=1), default=16, show_default=True, help="Epochs kept for `state`.")
@click.option("--until-idle", is_flag=True, help="Stop when the sources have nothing new.")
@click.option("--max-epochs", type=click.IntRange(min=1), metavar="N", help="Stop after epoch N.")
@click.option(
    "--max-seconds",
    type=click.FloatRange(min=0),
    metavar="S",
    help="Stop so many seconds after the start of the first epoch.",
)
@click.option(
    "--fragment", "fragments", multiple=True, metavar="NAME",
    help="Run only this fragment of a pipeline that p-streams cut; can be given several times.",
)  # fmt: skip
@click.option("--scale", "scales", is_flag=True, help="Change the parallelism of operators as their load asks for.")
@click.option(
    "--scale-threshold", type=click.FloatRange(min=0, max=1, min_open=True), metavar="SHARE",
    help="Split what uses more of a CPU than this.  [default: 0.7]",
)  # fmt: skip
@click.option(
    "--scale-report", type=click.FloatRange(min=0, min_open=True), metavar="SECONDS",
    help="How often CPU use is looked at.  [default: 5]",
)  # fmt: skip
@click.option(
    "--scale-reports", type=click.IntRange(min=1), metavar="K",
    help="Split after so many reports in a row above the threshold.  [default: 2]",
)  # fmt: skip
@click.option(
    "--scale-most", type=click.IntRange(min=1), metavar="N",
    help="The most partitions of an operator.  [default: half of Spark's slots]",
)  # fmt: skip
@click.option("--no-ingress", is_flag=True, help="Do not listen for push sources: `holdfast ingress` does.")
@click.option("--no-durable", is_flag=True, help="Do not sync to disk: survives a crash of the process, not of power.")
@click.option(
    "--checkpoint", default="auto", show_default=True, metavar="POLICY",
    help="When state is made durable, e.g. delta, interval(5s), eventual(2s) or none; auto: as costs least.",
)  # fmt: skip
@click.option(
    "--recovery", metavar="DURATION",
    help="How long it may take to have lost state back, e.g. 2s.  [default: as the pipeline's guarantee says]",
)  # fmt: skip
@click.option(
    "--volatile", type=LocalPath(file_okay=False), metavar="DIR",
    help="Where state lies that is not durable yet.  [default: in memory]",
)  # fmt: skip
@click.option(
    "--backup", "backups", multiple=True, type=LocalPath(file_okay=False), metavar="DIR",
    help="Another location that keeps a copy of the state; can be given several times.",
)  # fmt: skip
@click.option(
    "--memory", metavar="SIZE", help="Budget of the volatile tier, e.g. 2GB; what is beyond it spills to disk."
)
@click.option(
    "--recovery-partitions", type=click.IntRange(min=1), metavar="N",
    help="Replay lost state with so many partitions per operator, and go on with them.",
)  # fmt: skip
@deadline_option
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
    **settings: Any,
) -> None:
    """Run the pipeline NAME declared in FILE until its sources end.

    NAME may be left out if the file has one pipeline. A run on the same store goes on where the last one ended,
    however it ended. Ctrl-C and SIGTERM stop it after the epochs in flight are committed; a second one aborts.
    """
    # Here and not above: `holdfast run --help` should not wait for Spark's imports.
    from holdfast.cli.load import load_pipeline
    from holdfast.engine.options import RunOptions
    from holdfast.run import run_until

    if workers is not None and settings["master"] is not None:
        raise click.UsageError("a cluster has a master of its own: give one of the two, --cluster or --master")
    if pool is not None and workers is None:
        raise click.UsageError("a pool is part of a cluster: give --cluster too")
    scaling = _scaling(scales, threshold=scale_threshold, report=scale_report, reports=scale_reports, most=scale_most)
    options = RunOptions(ingress=not no_ingress, durable=not no_durable, scaling=scaling, **settings)
    pipeline = load_pipeline(target)
    pipeline.check()
    with _view(pipeline, plain) as view, _cluster(pipeline, options, workers, pool) as (options, given):
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
    from holdfast.engine.scaling import Scaling

    known = {name: value for name, value in given.items() if value is not None}
    if known and not wanted:
        raise click.UsageError(f"--scale-{next(iter(known))} says how to scale; give --scale too")
    return Scaling(**known) if wanted else None


def _view(pipeline: Pipeline, plain: bool) -> View:
    from rich.console import Console

    from holdfast.ui.progress import Progress, event_unit
    from holdfast.ui.views import LiveView, PlainView

    progress = Progress(pipeline.name, event_unit(pipeline), time.time())
    if plain or not sys.stdout.isatty():
        return PlainView(progress, click.echo)
    return LiveView(progress, Console())
