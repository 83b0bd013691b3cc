"""Running a pipeline from Python: `holdfast.run(pipeline)`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from holdfast.graph.pipeline import Pipeline

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from holdfast.epoch.driver import EpochReport
    from holdfast.epoch.record import EpochRecord

__all__ = ["run"]


def run(
    pipeline: Pipeline,
    *,
    spark: SparkSession | None = None,
    master: str | None = None,
    on_epoch: Callable[[EpochReport], None] | None = None,
    **options: Any,
) -> EpochRecord:
    """Run a pipeline until its sources end. `options` are those of `RunOptions`, e.g. `store`, `latency`.

    Without `spark` a session is opened on `master` (by default this machine) and closed at the end. A second call on
    the same store goes on where the first one ended, however it ended.
    """
    # Spark takes a second to import, and declaring a pipeline does not need it.
    from holdfast.epoch.driver import PipelineRun, RunOptions
    from holdfast.epoch.session import close_session, open_session

    session = spark if spark is not None else open_session(master, app=f"holdfast {pipeline.name}")
    try:
        return PipelineRun(pipeline, session, RunOptions(**options), on_epoch=on_epoch).run()
    finally:
        if spark is None:
            close_session(session)
