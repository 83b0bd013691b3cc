"""Running a pipeline from Python: `holdfast.run(pipeline)`, and `holdfast.start(pipeline)` in the background."""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Unpack

from holdfast.engine.observer import Observer, Observers
from holdfast.engine.options import RunArguments, RunOptions, options_with
from holdfast.engine.summary import RunSummary, Tally
from holdfast.errors import AlreadyRunningError, ClusterError, WrongTypeError
from holdfast.graph.pipeline import Pipeline, check_pipeline
from holdfast.meta import MetaStore
from holdfast.run_handle import Running
from holdfast.signals import StopSignals, are_unhandled

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from holdfast.scale.coordinator import ExecutorPool
    from holdfast.scale.pool import OwnCluster

__all__ = ["close_spark", "open_spark", "run", "run_until", "spark_cluster", "start"]


def open_spark(
    master: str | None = None,
    *,
    app: str = "holdfast",
    config: Mapping[str, str] | None = None,
    log: Path | str | None = None,
) -> SparkSession:
    """A Spark session set up for epochs, e.g. to make the streaming DataFrame for `Pipeline.from_spark` in.

    `config` has the last word over Holdfast's own settings. What Spark has to say goes to the file `log`; without one
    its errors go to the terminal. A process has one session: while one is open, it is returned as it is.
    """
    from holdfast.spark import session  # noqa: PLC0415 - Spark is slow to import

    return session.open_spark(master, app=app, config=config, log=log)


def spark_cluster(workers: int = 1, pool: int = 1, cores: int = 2, memory: str = "1g") -> OwnCluster:
    """A Spark cluster on this machine, for `with`: `workers` of so many `cores` (tasks at a time) and `memory` each,
    and a `pool` of more that are up and wait.

    `.session()` opens the session on it, `.pool.acquire(n)` and `.pool.release(n)` make that session larger and smaller
    while it runs. Every process ends with the `with` block, or with this process if that is killed.
    """
    from holdfast.scale.pool import OwnCluster  # noqa: PLC0415 - Spark is slow to import

    return OwnCluster(workers, pool, cores, memory)


def close_spark(spark: SparkSession) -> None:
    """Stop Spark and end every process it has started."""
    from holdfast.spark import session  # noqa: PLC0415 - Spark is slow to import

    session.close_spark(spark)


def run(
    pipeline: Pipeline,
    options: RunOptions | None = None,
    *,
    observer: Observer | None = None,
    spark: SparkSession | None = None,
    pool: ExecutorPool | None = None,
    **named: Unpack[RunArguments],
) -> RunSummary:
    """Run a pipeline until its sources end, and return a summary.

    How it is run is said by `options`, a `RunOptions`, or by name, as in `hf.run(pipeline, store="clicks",
    latency=0.5)`; with both, what is said by name wins. The `observer` is called with what happens meanwhile.

    Without `spark` a session is opened on the `master` of the options (by default this machine), and closed at the end.
    With `scaling`, executors for new partitions come from the `pool` of a cluster, if one is given.

    A second call on the same store goes on where the first one ended, however it ended.

    Ctrl-C and SIGTERM stop it after the epochs in flight are committed, and a second one aborts, unless the program has
    handlers of its own. After Ctrl-C this returns as at the end of the sources, with a summary of no fragments if no
    epoch had begun; after SIGTERM it raises SystemExit, because the process is to end.
    """
    _check_given("hf.run", pipeline, observer)
    signals = StopSignals() if are_unhandled() else None
    chosen = options_with(options, named)
    try:
        summary = run_until(signals, pipeline, chosen, observer=observer, spark=spark, pool=pool)
    except KeyboardInterrupt:
        if signals is None or signals.first is None or signals.aborted:
            raise
        summary = RunSummary(pipeline.name, "ended")
    if signals is not None and signals.first == signal.SIGTERM:
        raise SystemExit(0)
    return summary


def start(
    pipeline: Pipeline,
    options: RunOptions | None = None,
    *,
    observer: Observer | None = None,
    spark: SparkSession | None = None,
    pool: ExecutorPool | None = None,
    **named: Unpack[RunArguments],
) -> Running:
    """Run a pipeline in the background, and return a handle with `stop()`, `status()` and `wait()`.

    Takes what `run` takes. Spark is started and the pipeline is checked before this returns, so a mistake in its
    declaration is raised here. Several pipelines can be started in one process: those without `spark` share a session,
    which is closed with the last of them. Signals are left to the program.
    """
    _check_given("hf.start", pipeline, observer)
    tally = Tally(pipeline.name)
    with contextlib.ExitStack() as stack:
        work = _Work(stack, tally, pipeline, options_with(options, named), observer, spark, pool)
        return Running(tally, work.run, work.stop, stack.pop_all())


def run_until(
    signals: StopSignals | None,
    pipeline: Pipeline,
    options: RunOptions,
    *,
    observer: Observer | None = None,
    spark: SparkSession | None = None,
    pool: ExecutorPool | None = None,
) -> RunSummary:
    """Run a pipeline until its sources end, or until a signal stops it, if `signals` are to be seen to: `hf.run` and
    `holdfast run` are this. Raises KeyboardInterrupt if it is stopped before it has begun, or aborted."""
    with signals or contextlib.nullcontext(), contextlib.ExitStack() as stack:
        work = _Work(stack, Tally(pipeline.name), pipeline, options, observer, spark, pool)
        if signals is not None:
            signals.stop = work.stop
        return work.run()


class _Work:
    """One run, with what it needs, which is left to the `stack` to close."""

    def __init__(
        self,
        stack: contextlib.ExitStack,
        tally: Tally,
        pipeline: Pipeline,
        options: RunOptions,
        observer: Observer | None,
        spark: SparkSession | None,
        pool: ExecutorPool | None,
    ) -> None:
        # Spark takes a second to import: Ctrl-C is seen to by then.
        from holdfast.engine.fragment_runs import FragmentsRun  # noqa: PLC0415 - see above
        from holdfast.engine.spark_platform import SparkPlatform  # noqa: PLC0415 - see above
        from holdfast.ingress.hosted_receivers import hosted_receivers  # noqa: PLC0415 - see above
        from holdfast.laar.epoch_journal import PipelineJournal  # noqa: PLC0415 - see above
        from holdfast.pstream import Announcements  # noqa: PLC0415 - see above
        from holdfast.scale.autoscaler import autoscaling  # noqa: PLC0415 - see above
        from holdfast.spark.session import log_file, parallelism, shared_session  # noqa: PLC0415 - see above
        from holdfast.watch.event_log import EventLog  # noqa: PLC0415 - see above
        from holdfast.watch.pipeline_description import (  # noqa: PLC0415 - see above
            describe_pipeline,
            keep_description,
        )
        from holdfast.watch.run_events import RunEvents  # noqa: PLC0415 - see above

        pipeline.check()
        before = _last_epochs(pipeline, options)
        if spark is None:
            app, log = f"holdfast {pipeline.name}", log_file(options.store)
            spark = stack.enter_context(
                shared_session(options.master, app=app, config=options.conf, log=log, detection=options.detection)
            )
        elif options.conf or options.master:
            raise ClusterError(
                "both a session and settings to open one were given", cure="give either `spark`, or `master` and `conf`"
            )
        journal = stack.enter_context(
            contextlib.closing(PipelineJournal(pipeline, options.store.resolve(), options.meta))
        )
        users = Observers(observer or Observer())
        events = stack.enter_context(EventLog(options.store.resolve(), pipeline.name))
        self._events = RunEvents(events, pipeline.name)
        scaler = stack.enter_context(
            autoscaling(options, parallelism(spark) // 2, Observers(self._events, users), pool)
        )
        self._tally = tally
        self._observer = Observers(tally, journal, self._events, scaler, users)
        announcements = Announcements()
        self._fragments = FragmentsRun(
            pipeline, SparkPlatform(spark), options, only=options.fragments, observer=self._observer,
            announcements=announcements,
        )  # fmt: skip
        keep_description(
            options.store.resolve(), describe_pipeline(pipeline, self._fragments.cuts.fragments, options.latency)
        )
        self._before = {name: before.get(name, 0) for name in self._fragments.runs}
        self._receivers = (
            hosted_receivers(
                pipeline,
                options.store,
                announcements,
                meta=options.meta,
                sync=options.durable,
                on_open=lambda addresses: self._observer.listening(addresses),
                on_lost=self._fragments.stop,
            )
            if options.ingress
            else contextlib.nullcontext()
        )

    def run(self) -> RunSummary:
        try:
            with self._receivers:
                self._observer.started(self._before)
                self._fragments.run()
        except BaseException as error:
            self._events.failed(error)
            raise
        summary = self._tally.end(self._fragments.reasons)
        self._observer.ended(summary)
        return summary

    def stop(self) -> None:
        self._fragments.stop()
        if self._tally.summary().state == "running":
            self._observer.stopping()


def _check_given(function: str, pipeline: object, observer: object) -> None:
    check_pipeline(pipeline, function)
    if observer is None or isinstance(observer, Observer):
        return
    if isinstance(observer, type) and issubclass(observer, Observer):
        raise WrongTypeError(
            f"observer={observer.__name__} is a class, not an object",
            cure=f"create one: observer={observer.__name__}()",
        )
    raise WrongTypeError(
        f"observer={observer!r} is not an observer",
        cure="derive a class from hf.Observer, override the events you need, and pass an object of it",
    )


def _last_epochs(pipeline: Pipeline, options: RunOptions) -> dict[str, int]:
    """The last committed epoch of each fragment that has one. An error if another process runs the pipeline, before
    Spark is started for nothing; who runs a fragment is seen when the fragment starts."""
    meta = MetaStore(options.meta or options.store, sync=options.durable)
    try:
        runner = meta.runner_of(pipeline.name, time.time())
        if runner is not None:
            raise AlreadyRunningError(
                f"pipeline '{pipeline.name}' is being run by {runner.owner} (host:process:start)",
                cure="stop that process first, or give another store (--store)",
            )
        names = [name for name in meta.pipelines() if name == pipeline.name or name.startswith(f"{pipeline.name}.")]
        commits = {name: meta.last_commit(name) for name in names}
    finally:
        meta.close()
    return {name: commit.epoch for name, commit in commits.items() if commit is not None}
