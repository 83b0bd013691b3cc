"""Running a pipeline from Python: `holdfast.run(pipeline)`, and `holdfast.start(pipeline)` beside the program."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.errors import ClusterError
from holdfast.graph.pipeline import Pipeline
from holdfast.graph.policies import PolicyLike, as_policy
from holdfast.running import Running
from holdfast.scale.settings import Scaling
from holdfast.signals import StopSignals, are_unhandled

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from holdfast.epoch.checkpoints import CheckpointReport
    from holdfast.epoch.driver import EpochReport
    from holdfast.epoch.record import EpochRecord
    from holdfast.epoch.recovery import RecoveryReport
    from holdfast.scale.autoscaler import ScalingDecision
    from holdfast.scale.coordinator import ExecutorPool
    from holdfast.scale.pool import OwnCluster

__all__ = ["close_session", "cluster", "open_session", "run", "start"]


def open_session(
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
    from holdfast.epoch import session

    return session.open_session(master, app=app, config=config, log=log)


def cluster(workers: int = 1, pool: int = 1, cores: int = 2, memory: str = "1g") -> OwnCluster:
    """A Spark cluster on this machine, for `with`: `workers` of so many `cores` (tasks at a time) and `memory` each,
    and a `pool` of more that are up and wait.

    `.session()` opens the session on it, `.pool.acquire(n)` and `.pool.release(n)` make that session larger and smaller
    while it runs. Every process ends with the `with` block, or with this process if that is killed.
    """
    from holdfast.scale.pool import OwnCluster

    return OwnCluster(workers, pool, cores, memory)


def close_session(spark: SparkSession) -> None:
    """Stop Spark and end every process it has started."""
    from holdfast.epoch import session

    session.close_session(spark)


def run(
    pipeline: Pipeline,
    *,
    spark: SparkSession | None = None,
    master: str | None = None,
    conf: Mapping[str, str] | None = None,
    fragments: Sequence[str] = (),
    ingress: bool = True,
    scaling: Scaling | None = None,
    pool: ExecutorPool | None = None,
    on_epoch: Callable[[EpochReport], None] | None = None,
    on_recovery: Callable[[RecoveryReport], None] | None = None,
    on_checkpoint: Callable[[CheckpointReport], None] | None = None,
    on_scaling: Callable[[ScalingDecision], None] | None = None,
    checkpoint: PolicyLike = None,
    **options: Any,
) -> dict[str, EpochRecord]:
    """Run a pipeline until its sources end. `options` are those of `RunOptions`, e.g. `store`, `latency`, `trigger`.

    Returns the last record of each fragment, by its name; a pipeline that no p-stream cuts is one fragment with the
    pipeline's name. `fragments` names those to run here, where others are run by another process. `ingress=False`
    leaves it to `holdfast ingress` to listen for push sources. `checkpoint` says when state is made durable:
    `hf.delta()`, `hf.interval("5s")`, `hf.eventual("2s")`, `hf.none()`, or, by default, as costs least and keeps the
    pipeline's guarantee. With `scaling`, operators get more
    or fewer partitions as their load asks for; `on_scaling` is told of each decision, and again when it was carried
    out. Executors for new partitions come from the `pool` of a cluster, if one is given.

    Without `spark` a session is opened on `master` (by default this machine), with the Spark settings of `conf`, and
    closed at the end. A second call on the same store goes on where the first one ended, however it ended.

    Ctrl-C and SIGTERM stop it after the epochs in flight are committed, and a second one aborts, unless the program has
    handlers of its own. After Ctrl-C this returns as at the end of the sources, with nothing if no epoch had begun;
    after SIGTERM it raises SystemExit, because the process is to end.
    """
    signals = StopSignals()
    records: dict[str, EpochRecord] = {}
    try:
        with signals if are_unhandled() else contextlib.nullcontext(), contextlib.ExitStack() as stack:
            work = _Work(
                stack, pipeline, spark=spark, master=master, conf=conf, fragments=fragments, ingress=ingress,
                scaling=scaling, pool=pool, on_epoch=on_epoch, on_recovery=on_recovery, on_checkpoint=on_checkpoint,
                on_scaling=on_scaling, checkpoint=checkpoint, **options,
            )  # fmt: skip
            signals.stop = work.stop
            records = work.run()
    except KeyboardInterrupt:
        if signals.first is None or signals.aborted:
            raise
    if signals.first == signal.SIGTERM:
        raise SystemExit(0)
    return records


def start(pipeline: Pipeline, **options: Any) -> Running:
    """Run a pipeline beside the program, and return a handle with `stop()`, `status()` and `wait()`.

    Takes what `run` takes. Several pipelines can be started in one process: those without `spark` share a session,
    which is closed with the last of them. Signals are left to the program.
    """
    running = Running(pipeline.name)
    told: Callable[[EpochReport], None] = options.pop("on_epoch", None) or (lambda report: None)

    def committed(report: EpochReport) -> None:
        running.committed(report)
        told(report)

    with contextlib.ExitStack() as stack:
        work = _Work(stack, pipeline, on_epoch=committed, **options)
        running.begin(work.run, work.stop, stack.pop_all().close)
    return running


class _Work:
    """One run, with what it needs. The session, if it is not given, is left to the `stack` to close."""

    def __init__(
        self,
        stack: contextlib.ExitStack,
        pipeline: Pipeline,
        *,
        spark: SparkSession | None = None,
        master: str | None = None,
        conf: Mapping[str, str] | None = None,
        fragments: Sequence[str] = (),
        ingress: bool = True,
        scaling: Scaling | None = None,
        pool: ExecutorPool | None = None,
        on_epoch: Callable[[EpochReport], None] | None = None,
        on_recovery: Callable[[RecoveryReport], None] | None = None,
        on_checkpoint: Callable[[CheckpointReport], None] | None = None,
        on_scaling: Callable[[ScalingDecision], None] | None = None,
        checkpoint: PolicyLike = None,
        **options: Any,
    ) -> None:
        # Spark takes a second to import, and declaring a pipeline does not need it.
        from holdfast.epoch.driver import RunOptions
        from holdfast.epoch.fragments import FragmentsRun
        from holdfast.epoch.session import log_file, shared_session, slots
        from holdfast.ingress.opening import embedded_receivers
        from holdfast.scale.autoscaler import autoscaling

        settings = RunOptions(checkpoint=as_policy(checkpoint), **options)
        if spark is None:
            app, log = f"holdfast {pipeline.name}", log_file(settings.store)
            spark = stack.enter_context(
                shared_session(master, app=app, config=conf, log=log, detection=settings.detection)
            )
        elif conf or master:
            raise ClusterError(
                "a session was given, and how to open one as well", cure="give `spark`, or `master` and `conf`"
            )
        self._tell = on_epoch or (lambda report: None)
        self._contexts = (
            embedded_receivers(pipeline, settings.store, meta=settings.meta, sync=settings.durable)
            if ingress
            else contextlib.nullcontext(),
            autoscaling(scaling, settings, slots(spark) // 2, self._tell, on_scaling, pool),
        )
        self._running = FragmentsRun(
            pipeline,
            spark,
            settings,
            only=fragments,
            on_epoch=lambda report: self._tell(report),
            on_recovery=on_recovery,
            on_checkpoint=on_checkpoint,
        )

    def run(self) -> dict[str, EpochRecord]:
        receivers, told = self._contexts
        with receivers, told as self._tell:
            return self._running.run()

    def stop(self) -> None:
        self._running.stop()
