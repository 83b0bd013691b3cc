"""Running a pipeline from Python: `holdfast.run(pipeline)`."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from holdfast.graph.pipeline import Pipeline
from holdfast.scale.settings import Scaling

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from holdfast.epoch.driver import EpochReport
    from holdfast.epoch.record import EpochRecord
    from holdfast.epoch.recovery import RecoveryReport
    from holdfast.scale.autoscaler import ScalingDecision

__all__ = ["close_session", "open_session", "run"]


def open_session(
    master: str | None = None, *, app: str = "holdfast", config: Mapping[str, str] | None = None
) -> SparkSession:
    """A Spark session set up for epochs, e.g. to make the streaming DataFrame for `Pipeline.from_spark` in.

    `config` has the last word over Holdfast's own settings. A process has one session: while one is open, it is
    returned as it is.
    """
    from holdfast.epoch import session

    return session.open_session(master, app=app, config=config)


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
    on_epoch: Callable[[EpochReport], None] | None = None,
    on_recovery: Callable[[RecoveryReport], None] | None = None,
    on_scaling: Callable[[ScalingDecision], None] | None = None,
    **options: Any,
) -> dict[str, EpochRecord]:
    """Run a pipeline until its sources end. `options` are those of `RunOptions`, e.g. `store`, `latency`.

    Returns the last record of each fragment, by its name; a pipeline that no p-stream cuts is one fragment with the
    pipeline's name. `fragments` names those to run here, where others are run by another process. `ingress=False`
    leaves it to `holdfast ingress` to listen for push sources. With `scaling`, operators get more or fewer partitions
    as their load asks for; `on_scaling` is told of each decision, and again when it was carried out.

    Without `spark` a session is opened on `master` (by default this machine) and closed at the end. A second call on
    the same store goes on where the first one ended, however it ended.
    """
    # Spark takes a second to import, and declaring a pipeline does not need it.
    from holdfast.epoch.driver import RunOptions
    from holdfast.epoch.fragments import FragmentsRun
    from holdfast.epoch.session import close_session, open_session, slots
    from holdfast.ingress.opening import embedded_receivers
    from holdfast.scale.autoscaler import autoscaling

    settings = RunOptions(**options)
    session = spark if spark is not None else open_session(master, app=f"holdfast {pipeline.name}")
    try:
        receivers = (
            embedded_receivers(pipeline, settings.store, meta=settings.meta, sync=settings.durable)
            if ingress
            else contextlib.nullcontext()
        )
        told = autoscaling(scaling, settings, slots(session) // 2, on_epoch or (lambda report: None), on_scaling)
        with receivers, told as tell:
            return FragmentsRun(
                pipeline, session, settings, only=fragments, on_epoch=tell, on_recovery=on_recovery
            ).run()
    finally:
        if spark is None:
            close_session(session)
