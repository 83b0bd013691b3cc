"""Epochs from Structured Streaming: each micro-batch of a streaming DataFrame is an epoch.

`foreachBatch` hands over a DataFrame and a batch number. Structured Streaming runs a batch again after a failure with
the same number and the same rows, so epoch = batch + 1, and a batch whose epoch is committed already is dropped.
"""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame

from holdfast.engine.events import Stopped
from holdfast.engine.instructions import Finish, PlanEpoch
from holdfast.engine.loop import Loop
from holdfast.engine.options import RunOptions
from holdfast.errors import EpochFailedError, HoldfastError, PipelineChangedError
from holdfast.graph.nodes import SparkInput
from holdfast.plan.program import Program
from holdfast.spark.jobs import SparkJobs

__all__ = ["run_on_batches"]


def run_on_batches(loop: Loop, jobs: SparkJobs, program: Program, options: RunOptions, home: Path) -> None:
    """Run the pipeline until its streaming query ends or the run is stopped; what is left to do is to finish."""
    node = program.spark_input
    assert node is not None
    assert isinstance(node.source, SparkInput)
    while not isinstance(loop.machine.next(), PlanEpoch | Finish):
        loop.step()
    checkpoint = home / "spark-checkpoint"
    _same_age(checkpoint, loop.machine.committed, program.name)
    failure: list[Exception] = []
    running = threading.Lock()

    def on_batch(rows: DataFrame, batch: int) -> None:
        with running:
            if _ends(loop):
                # Fails the batch, so that Spark does not count it as done: it comes again at the next start.
                raise _StoppedError
            try:
                loop.planner.batch = batch
                with jobs.on_batch(rows):
                    while loop.machine.committed < batch + 1:
                        if isinstance(loop.step(), Finish | None):
                            raise _StoppedError
            except _StoppedError:
                raise
            except Exception as error:
                failure.append(error)
                raise

    writer = node.source.frame.writeStream.foreachBatch(on_batch).option("checkpointLocation", str(checkpoint))
    writer = (
        writer.trigger(availableNow=True)
        if options.until_idle
        else writer.trigger(processingTime=f"{round((options.trigger_seconds or 0.0) * 1000)} milliseconds")
    )
    query = writer.start()
    try:
        while query.isActive and not _ends(loop):
            loop.authority.renew()
            # A batch that runs publishes itself what is due, and is only looked after here.
            if running.acquire(blocking=False):
                try:
                    loop.committer.publish_due()
                finally:
                    running.release()
            else:
                jobs.look_after(loop.machine.committed + 1, stopping=False)
            query.awaitTermination(1)
        while not running.acquire(timeout=1):  # an epoch in flight is committed first
            loop.authority.renew()
            jobs.look_after(loop.machine.committed + 1, stopping=True)
        running.release()
    except PySparkException as error:
        if failure or not _ends(loop):
            raise _cause(failure, error) from error
    finally:
        query.stop()  # also while a batch hangs, whose end would be waited for in vain
    if failure:
        raise failure[0]
    loop.machine.on(Stopped())


def _ends(loop: Loop) -> bool:
    return loop.stopped or loop.limit_reached()


class _StoppedError(Exception):
    """The run was stopped before this batch began."""


def _same_age(checkpoint: Path, committed: int, pipeline: str) -> None:
    """Batch numbers only mean something together with the checkpoint that counted them."""
    if committed and not (checkpoint / "offsets").exists():
        raise PipelineChangedError(
            f"pipeline '{pipeline}' has {committed} committed epochs but its Spark checkpoint is gone",
            cure=f"restore {checkpoint}, or choose another --store to start afresh",
        )


def _cause(failure: list[Exception], error: PySparkException) -> Exception:
    if failure and isinstance(failure[0], HoldfastError):
        return failure[0]
    text: Any = str(error)
    return EpochFailedError(
        f"the streaming query failed: {text.strip().partition(chr(10))[0]}",
        cure="fix the Spark source or transformation; the next start goes on from the last commit",
    )
