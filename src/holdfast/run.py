"""Running a pipeline from Python: `holdfast.run(pipeline)`."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from holdfast.graph.pipeline import Pipeline
from holdfast.graph.policies import PolicyLike, as_policy
from holdfast.scale.settings import Scaling

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from holdfast.epoch.checkpoints import CheckpointReport
    from holdfast.epoch.driver import EpochReport
    from holdfast.epoch.record import EpochRecord
    from holdfast.epoch.recovery import RecoveryReport
    from holdfast.scale.autoscaler import ScalingDecision
    from holdfast.scale.coordinator import ExecutorPool
    from holdfast.scale.pool import OwnCluster

__all__ = ["close_session", "cluster", "open_session", "run"]


def open_session(
    master: str | None = None, *, app: str = "holdfast", config: Mapping[str, str] | None = None
) -> SparkSession:
    """A Spark session set up for epochs, e.g. to make the streaming DataFrame for `Pipeline.from_spark` in.

    `config` has the last word over Holdfast's own settings. A process has one session: while one is open, it is
    returned as it is.
    """
    from holdfast.epoch import session

    return session.open_session(master, app=app, config=config)


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
    """Run a pipeline until its sources end. `options` are those of `RunOptions`, e.g. `store`, `latency`.

    Returns the last record of each fragment, by its name; a pipeline that no p-stream cuts is one fragment with the
    pipeline's name. `fragments` names those to run here, where others are run by another process. `ingress=False`
    leaves it to `holdfast ingress` to listen for push sources. `checkpoint` says when state is made durable:
    `hf.delta()`, `hf.interval("5s")`, `hf.eventual("2s")`, `hf.none()`, or, by default, as costs least and keeps the
    pipeline's guarantee. With `scaling`, operators get more
    or fewer partitions as their load asks for; `on_scaling` is told of each decision, and again when it was carried
    out. Executors for new partitions come from the `pool` of a cluster, if one is given.

    Without `spark` a session is opened on `master` (by default this machine) and closed at the end. A second call on
    the same store goes on where the first one ended, however it ended.
    """
    # Spark takes a second to import, and declaring a pipeline does not need it.
    from holdfast.epoch.driver import RunOptions
    from holdfast.epoch.fragments import FragmentsRun
    from holdfast.epoch.session import close_session, open_session, slots
    from holdfast.ingress.opening import embedded_receivers
    from holdfast.scale.autoscaler import autoscaling

    settings = RunOptions(checkpoint=as_policy(checkpoint), **options)
    session = spark if spark is not None else open_session(master, app=f"holdfast {pipeline.name}")
    try:
        receivers = (
            embedded_receivers(pipeline, settings.store, meta=settings.meta, sync=settings.durable)
            if ingress
            else contextlib.nullcontext()
        )
        told = autoscaling(scaling, settings, slots(session) // 2, on_epoch or (lambda report: None), on_scaling, pool)
        with receivers, told as tell:
            return FragmentsRun(
                pipeline,
                session,
                settings,
                only=fragments,
                on_epoch=tell,
                on_recovery=on_recovery,
                on_checkpoint=on_checkpoint,
            ).run()
    finally:
        if spark is None:
            close_session(session)
