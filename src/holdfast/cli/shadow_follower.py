"""`holdfast up --shadow`: new code follows a running pipeline, until there is a verdict; then it may take over."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

import click

from holdfast.cli.output import LongTask, long_task
from holdfast.signals import stop_on_signals

if TYPE_CHECKING:
    from holdfast.graph.pipeline import Pipeline
    from holdfast.meta import MetaStore
    from holdfast.plan.executor_choice import ExecutorName
    from holdfast.replica.seat_store import Agreement
    from holdfast.replica.shadow_report import ShadowReport

__all__ = ["follow_as_shadow", "take_the_seat"]

_SECONDS_TO_TAKE_OVER = 120.0


def follow_as_shadow(
    target: str,
    store: Path,
    meta: str | None,
    *,
    epochs: int,
    promote: bool,
    master: str | None,
    conf: Mapping[str, str],
    volatile: Path | None,
    executor: ExecutorName | None,
) -> None:
    """Exit code 0 if the output is equal, 1 if it is not or if there is no verdict."""
    from holdfast.cli.pipeline_file import load_pipeline
    from holdfast.engine.spark_platform import SparkPlatform
    from holdfast.engine.warmup import warm_up
    from holdfast.meta import FollowerNeeds, MetaStore
    from holdfast.meta.lease_holder import this_process
    from holdfast.replica.seat_store import Agreement
    from holdfast.replica.shadow import Shadow, ShadowSettings
    from holdfast.replica.shadow_checks import check_alone, succession
    from holdfast.replica.shadow_report import keep_shadow, kept_shadows
    from holdfast.replica.shadow_rows import with_rows
    from holdfast.spark.session import close_spark, log_file, open_spark
    from holdfast.watch.event_log import EventLog

    store = store.resolve()
    pipeline = load_pipeline(target)
    pipeline.check()
    opened = MetaStore(meta or store)
    try:
        agreement = Agreement(opened, this_process(), time.time)
        found = succession(pipeline, pipeline.target, opened, agreement, time.time())
        check_alone(kept_shadows(store), pipeline.name)
        settings = ShadowSettings(store=store, meta=meta, epochs=epochs, volatile=volatile, executor=executor)
        told = _Teller(epochs)
        with EventLog(store, "shadow") as log:
            spark = open_spark(
                master, app=f"holdfast shadow {pipeline.name}", config=dict(conf), log=log_file(store, "spark-shadow")
            )
            try:
                warm_up(spark, store / "hosts" / "shadow.work", executor=executor)
                shadow = Shadow(found, settings, SparkPlatform(spark), agreement, FollowerNeeds(opened), told)
                log.put(shadow.report.event("follows"))
                click.echo(f"{shadow.report.file} follows '{pipeline.name}', which runs {found.before.target}")
                with stop_on_signals(shadow.stop, lambda: click.echo("stopping")), told:
                    report = shadow.follow()
            finally:
                close_spark(spark)
            if report.state == "differs":
                old = load_pipeline(found.before.target)
                report = with_rows(report, shadow.differing, old, store, meta)
                keep_shadow(store, report)
            log.put(report.event(report.state))
        _show(report)
        if report.state != "equal":
            raise SystemExit(1)
        asked = sys.stdin.isatty() and sys.stdout.isatty()
        if promote or (asked and click.confirm("Let it take over now?")):
            take_the_seat(report, pipeline, opened, agreement, store, by="holdfast up --shadow")
        else:
            click.echo(f"to have it take over: holdfast promote {pipeline.name} --store {store}")
    finally:
        opened.close()


def take_the_seat(
    report: ShadowReport,
    pipeline: Pipeline,
    meta: MetaStore,
    agreement: Agreement,
    store: Path,
    *,
    by: str,
    differing: bool = False,
) -> None:
    """Promote, and wait until the hosts have committed with the new code."""
    from holdfast.replica.promotion import await_code, promote

    began = time.monotonic()
    promoted, deployment = promote(report, pipeline, meta, agreement, store, by=by, differing=differing)
    hosts = await_code(deployment, meta, agreement, _SECONDS_TO_TAKE_OVER)
    click.echo(
        f"{promoted.file} has taken over '{promoted.pipeline}'"
        + (f" on {hosts}" if hosts else "")
        + f", {time.monotonic() - began:.1f} s after the request"
    )


class _Teller(AbstractContextManager[None]):
    """Shows how far the shadow has come: as a bar on a terminal, else as a line every few seconds."""

    _SECONDS = 5.0

    def __init__(self, epochs: int) -> None:
        self._bar = long_task("equal epochs", epochs)
        self._task = LongTask()
        self._next = 0.0

    def __enter__(self) -> None:
        self._task = self._bar.__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.__exit__(kind, error, trace)

    def __call__(self, report: ShadowReport) -> None:
        self._task.at(report.equal_epochs)
        now = time.monotonic()
        if report.state == "follows" and report.equal_epochs and now >= self._next:
            self._next = now + self._SECONDS
            click.echo(report.verdict)


def _show(report: ShadowReport) -> None:
    click.echo(f"{report.file}: {report.verdict}")
    for line in report.rows_text():
        click.echo(f"  {line}")
    if report.state == "differs" and report.problem:
        click.echo(f"  {report.problem}")
