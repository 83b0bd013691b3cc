"""Epochs from Structured Streaming: each micro-batch of a streaming DataFrame is an epoch.

`foreachBatch` hands over a DataFrame and a batch number. Structured Streaming runs a batch again after a failure with
the same number and the same rows, so epoch = batch + 1, and a batch whose epoch is committed already is dropped.
"""

from __future__ import annotations

import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame

from holdfast.errors import EpochFailedError, HoldfastError, PipelineChangedError
from holdfast.graph.nodes import SourceNode, SparkInput

if TYPE_CHECKING:
    from holdfast.epoch.driver import PipelineRun

__all__ = ["run_on_batches"]


def run_on_batches(run: PipelineRun, node: SourceNode) -> None:
    """Run the pipeline until its streaming query ends or the run is stopped."""
    assert isinstance(node.source, SparkInput)
    checkpoint = run.home / "spark-checkpoint"
    _same_age(checkpoint, run.committed, run.program.name)
    failure: list[Exception] = []
    running = threading.Lock()

    def on_batch(rows: DataFrame, batch: int) -> None:
        with running:
            if run.should_stop():
                # Fails the batch, so that Spark does not count it as done: it comes again at the next start.
                raise _StoppedError
            try:
                run.run_batch(node.name, rows, batch)
            except Exception as error:
                failure.append(error)
                raise

    writer = node.source.frame.writeStream.foreachBatch(on_batch).option("checkpointLocation", str(checkpoint))
    writer = (
        writer.trigger(availableNow=True)
        if run.until_idle
        else writer.trigger(processingTime=f"{round(run.trigger_seconds * 1000)} milliseconds")
    )
    query = writer.start()
    try:
        while query.isActive and not run.should_stop():
            run.keep_lease()
            if running.acquire(blocking=False):  # a batch that runs publishes itself what is due
                try:
                    run.publish_due()
                finally:
                    running.release()
            query.awaitTermination(1)
        with running:
            pass  # an epoch in flight is committed first
    except PySparkException as error:
        if failure or not run.should_stop():
            raise _cause(failure, error) from error
    finally:
        query.stop()  # also while a batch hangs, whose end would be waited for in vain
    if failure:
        raise failure[0]


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
        cure="mend the Spark source or transformation; the next start goes on from the last commit",
    )
