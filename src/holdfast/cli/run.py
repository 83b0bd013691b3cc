"""`holdfast run`: run a pipeline, show what it does, and stop it cleanly."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from holdfast.cli.group import HoldfastCommand
from holdfast.cli.options import LocalPath, conf_option, deadline_option, meta_option, store_option
from holdfast.signals import stop_on_signals

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from holdfast.epoch.driver import RunOptions
    from holdfast.graph.pipeline import Pipeline
    from holdfast.scale.coordinator import ExecutorPool
    from holdfast.scale.settings import Scaling
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
    help="On a cluster, an executor that has been silent for so long is given up.",
)  # fmt: skip
@click.option("--partitions", type=click.IntRange(min=1), default=2, show_default=True, help="Of stateful operators.")
@click.option("--tasks", type=click.IntRange(min=1), default=2, show_default=True, help="How many tasks read.")
@click.option("--retain", type=click.IntRange(min=1), default=16, show_default=True, help="Epochs kept for `state`.")
@click.option("--until-idle", is_flag=True, help="Stop when the sources have nothing new.")
@click.option("--max-epochs", type=click.IntRange(min=1), metavar="N", help="Stop after epoch N.")
@click.option(
    "--max-seconds", type=click.FloatRange(min=0), metavar="S", help="Stop so many seconds after the start of Spark."
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
    help="When state is made durable: delta, interval(5s), eventual(2s), none, or auto: as costs least.",
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
    store: Path,
    master: str | None,
    conf: dict[str, str],
    workers: int | None,
    pool: int | None,
    fragments: tuple[str, ...],
    scales: bool,
    scale_threshold: float | None,
    scale_report: float | None,
    scale_reports: int | None,
    scale_most: int | None,
    no_ingress: bool,
    no_durable: bool,
    plain: bool,
    checkpoint: str,
    memory: str | None,
    **settings: Any,
) -> None:
    """Run the pipeline NAME declared in FILE until its sources end.

    NAME may be left out if the file has one pipeline. A run on the same store goes on where the last one ended,
    however it ended. Ctrl-C and SIGTERM stop it after the epochs in flight are committed; a second one aborts.
    """
    # Here and not above: `holdfast run --help` should not wait for Spark's imports.
    from holdfast.cli.load import load_pipeline
    from holdfast.completeness.journal import journalled
    from holdfast.epoch.driver import RunOptions
    from holdfast.epoch.fragments import FragmentsRun
    from holdfast.epoch.session import slots
    from holdfast.graph.policies import as_policy
    from holdfast.ingress.opening import embedded_receivers
    from holdfast.scale.autoscaler import autoscaling

    if workers is not None and master is not None:
        raise click.UsageError("a cluster has a master of its own: give one of the two, --cluster or --master")
    if pool is not None and workers is None:
        raise click.UsageError("a pool is part of a cluster: give --cluster too")
    scaling = _scaling(scales, threshold=scale_threshold, report=scale_report, reports=scale_reports, most=scale_most)
    options = RunOptions(
        store=store,
        durable=not no_durable,
        checkpoint=as_policy(checkpoint),
        memory=memory,
        **settings,
    )
    pipeline = load_pipeline(target)
    pipeline.check()
    session = _session(pipeline, options, master, conf, workers, 1 if pool is None else pool)
    with _view(pipeline, options, fragments, plain) as view, session as (spark, executors):
        receivers = (
            contextlib.nullcontext()
            if no_ingress
            else embedded_receivers(
                pipeline, store, meta=options.meta, sync=options.durable, on_open=lambda s: view.listening(s)
            )
        )
        told = autoscaling(
            scaling,
            options,
            slots(spark) // 2,
            view.epoch,
            lambda decision: view.scaled(str(decision)),
            executors,
        )
        with told as tell:
            running = FragmentsRun(
                pipeline,
                spark,
                options,
                only=fragments,
                on_epoch=journalled(pipeline, store.resolve(), options.meta, tell),
                on_recovery=view.recovered,
                on_full=view.full,
                on_notice=view.notice,
            )
            with stop_on_signals(running.stop, view.stopping), receivers:
                view.started()
                running.run()


@contextlib.contextmanager
def _session(
    pipeline: Pipeline, options: RunOptions, master: str | None, conf: dict[str, str], workers: int | None, pool: int
) -> Iterator[tuple[SparkSession, ExecutorPool | None]]:
    from holdfast.epoch.session import close_session, log_file, open_session
    from holdfast.scale.pool import OwnCluster

    app, log = f"holdfast {pipeline.name}", log_file(options.store)
    if workers is not None:
        with OwnCluster(workers, pool) as cluster:
            spark = cluster.session(app, conf, log=log, detection=options.detection)
            yield spark, cluster.pool
        return
    spark = open_session(master, app=app, config=conf, log=log, detection=options.detection)
    try:
        yield spark, None
    finally:
        close_session(spark)


def _scaling(wanted: bool, **given: Any) -> Scaling | None:
    from holdfast.scale.settings import Scaling

    known = {name: value for name, value in given.items() if value is not None}
    if known and not wanted:
        raise click.UsageError(f"--scale-{next(iter(known))} says how to scale; give --scale too")
    return Scaling(**known) if wanted else None


def _view(pipeline: Pipeline, options: RunOptions, fragments: tuple[str, ...], plain: bool) -> View:
    from rich.console import Console

    from holdfast.ui.progress import Progress, event_unit
    from holdfast.ui.views import LiveView, PlainView

    progress = Progress(pipeline.name, event_unit(pipeline), time.time(), _last_epoch(pipeline, options, fragments))
    if plain or not sys.stdout.isatty():
        return PlainView(progress, click.echo)
    return LiveView(progress, Console())


def _last_epoch(pipeline: Pipeline, options: RunOptions, fragments: tuple[str, ...]) -> int:
    """The last committed epoch of the pipeline, or of those of its fragments that are run here. An error if another
    process runs the pipeline, before Spark is started in vain; who runs a fragment is seen when the fragment starts."""
    from holdfast.epoch.lease import is_dead
    from holdfast.errors import AlreadyRunningError
    from holdfast.meta import MetaStore

    meta = MetaStore(options.meta or options.store, sync=options.durable)
    try:
        holder = meta.owner_of(pipeline.name)
        parts = [name for name in meta.pipelines() if name == pipeline.name or name.startswith(f"{pipeline.name}.")]
        short = {fragment.removeprefix(f"{pipeline.name}.") for fragment in fragments}
        parts = [name for name in parts if not short or name.removeprefix(f"{pipeline.name}.") in short]
        commits = [meta.last_commit(name) for name in parts]
    finally:
        meta.close()
    if holder is not None and holder[1] > time.time() and not is_dead(holder[0]):
        raise AlreadyRunningError(
            f"pipeline '{pipeline.name}' is being run by {holder[0]} (host:process:start)",
            cure="stop that process first, or give another --store",
        )
    return max((commit.epoch for commit in commits if commit is not None), default=0)
