"""Structured Streaming's micro-batches as the input of epochs: each batch of a streaming DataFrame is an epoch.

`foreachBatch` passes a DataFrame and a batch number, in one of Spark's threads, and regards the batch as done when the
call returns. So the call runs the epoch's job and waits until the epoch is committed. After a failure, Structured
Streaming runs a batch again with the same number and the same rows. So epoch = batch + 1, and a batch whose epoch is
already committed is dropped.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery

from holdfast.errors import EpochFailedError, PipelineChangedError

__all__ = ["SparkBatches"]

Work = Callable[[DataFrame], None]


@dataclass(slots=True)
class SparkBatches:
    """The batches of one streaming query, which begins when the first one is asked for. It reads what there is and ends
    (`until_idle`), or has a batch every so many seconds."""

    fragment: str
    frame: DataFrame
    checkpoint: Path
    """Where Spark keeps the numbers of batches."""
    until_idle: bool
    trigger_seconds: float
    _query: StreamingQuery | None = None
    _arrived: queue.SimpleQueue[int] = field(default_factory=queue.SimpleQueue)
    _arrival: threading.Event = field(default_factory=threading.Event)
    _orders: queue.SimpleQueue[Work | None] = field(default_factory=queue.SimpleQueue)
    """What the thread of the batch that has arrived is to do; None lets it return."""
    _current: int | None = None
    _stopped: bool = False

    def next(self, committed: int) -> int | None:
        """The number of the next batch behind what is `committed`; None if there is none yet."""
        if self._query is None:
            self._query = self._start(committed)
        try:
            batch = self._arrived.get_nowait()
        except queue.Empty:
            return None
        self._current = batch
        if batch + 1 <= committed:
            self.committed(batch + 1)
            return None
        return batch

    def wait(self, seconds: float) -> None:
        """Until a batch arrives, but no longer than so many seconds."""
        self._arrival.wait(seconds)
        self._arrival.clear()

    @property
    def ended(self) -> bool:
        """Whether the query has ended, so that no batch comes any more. Raises if it has failed."""
        if self._query is None or self._query.isActive or not self._arrived.empty():
            return False
        error = self._query.exception()
        if error is not None:
            raise EpochFailedError(
                f"the streaming query failed: {str(error).strip().partition(chr(10))[0]}",
                cure="fix the Spark source or transformation; the next start resumes from the last commit",
            ) from error
        return True

    def runs(self, epoch: int, work: Work) -> bool:
        """Have work done on the rows of the batch that is this epoch, in its thread. False if there is none."""
        if self._current != epoch - 1:
            return False
        self._orders.put(work)
        return True

    def committed(self, epoch: int) -> None:
        """The epoch is committed: Spark may continue."""
        if self._current == epoch - 1:
            self._current = None
            self._orders.put(None)

    def stop(self) -> None:
        """End the query. A batch that is not committed fails, so that Spark does not count it as done: it comes again
        at the next start."""
        self._stopped = True
        self._orders.put(None)
        if self._query is not None:
            self._query.stop()  # also while a batch hangs, whose end would go unseen

    def _start(self, committed: int) -> StreamingQuery:
        """Batch numbers only mean something together with the checkpoint that counted them."""
        if committed and not (self.checkpoint / "offsets").exists():
            raise PipelineChangedError(
                f"pipeline '{self.fragment}' has {committed} committed epochs but its Spark checkpoint is gone",
                cure=f"restore {self.checkpoint}, or choose another --store to start from the beginning",
            )
        writer = self.frame.writeStream.foreachBatch(self._on_batch)
        writer = writer.option("checkpointLocation", str(self.checkpoint))
        if self.until_idle:
            writer = writer.trigger(availableNow=True)
        else:
            writer = writer.trigger(processingTime=f"{round(self.trigger_seconds * 1000)} milliseconds")
        return writer.start()

    def _on_batch(self, rows: DataFrame, batch: int) -> None:
        """In the thread of Spark's."""
        self._arrived.put(batch)
        self._arrival.set()
        while not self._stopped and (work := self._orders.get()) is not None:
            work(rows)
        if self._stopped:
            raise _StoppedError


class _StoppedError(Exception):
    """The run was stopped before this batch was committed."""
