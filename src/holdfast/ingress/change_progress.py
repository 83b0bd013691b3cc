"""How far the changes of a table are durable: a place in the database's log, as a count in the p-stream.

It is committed in one transaction with the rows that lead there, like the count of a client that counts its lines.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable

import polars as pl

from holdfast.connect.sources.postgres_changes import ChangesSource
from holdfast.errors import StoreFullError, StoreUnreachableError, StreamFullError, TakenBeforeError
from holdfast.ingress.change_rows import ChangeRows
from holdfast.ingress.replication_connection import ReplicationConnection
from holdfast.ingress.target import StreamTarget
from holdfast.meta import Count

__all__ = ["AGAIN_SECONDS", "MOST_AGAIN_SECONDS", "STATUS_SECONDS", "TakenChanges"]

_MOST_BYTES, _MOST_ROWS = 8 << 20, 50_000
"""So much is put together before it is written."""
STATUS_SECONDS = 5.0
AGAIN_SECONDS, MOST_AGAIN_SECONDS = 0.2, 10.0
_log = logging.getLogger(__name__)


class TakenChanges:
    """What is durable: places in the log, by the counts of the p-stream."""

    def __init__(
        self, target: StreamTarget, source: ChangesSource, stopping: threading.Event, log: ReplicationConnection
    ) -> None:
        self.target = target
        self.source = source
        self.stopping = stopping
        self._log = log
        self.name = f"changes {source.slot}"
        self.at = target.appender.position(self.name)
        self.rows = ChangeRows(source)
        self.streaming = False
        self.confirmed = 0

    @property
    def is_large(self) -> bool:
        """Whether the rows have to be written before more come."""
        return self.rows.bytes >= _MOST_BYTES or self.rows.height >= _MOST_ROWS

    def write(self, frame: pl.DataFrame, count: Count) -> bool:
        """Make rows durable; False where that is not possible before the stop."""
        pause = AGAIN_SECONDS
        while True:
            try:
                answer = self.target.submit(frame, None, count)
                while not answer.done():
                    self._stay_alive(answer.exception, STATUS_SECONDS)
                answer.result()
                return True
            except TakenBeforeError:
                # An answer of ours was lost: it is there.
                if self.target.appender.position(count.client) == count.behind:
                    return True
                raise
            except (StreamFullError, StoreFullError, StoreUnreachableError) as error:
                if self.stopping.is_set():
                    return False
                if pause >= MOST_AGAIN_SECONDS:
                    _log.warning("source '%s' waits: %s", self.target.name, error)
            self._stay_alive(self.stopping.wait, pause)
            pause = min(2 * pause, MOST_AGAIN_SECONDS)

    def write_whole(self, frame: pl.DataFrame, end: int) -> bool:
        """Rows of whole transactions, up to this place."""
        if not self.write(frame, Count(self.name, self.at, end)):
            return False
        self.at = end
        return True

    def _stay_alive(self, wait: Callable[[float], object], seconds: float) -> None:
        """Wait, and let the server know that we are there."""
        with contextlib.suppress(TimeoutError):
            wait(seconds)
        self.confirm(self.confirmed)

    def confirm(self, lsn: int, *, answer: bool = False) -> None:
        if self.streaming:
            self.confirmed = max(self.confirmed, lsn)
            self._log.confirm(self.confirmed, answer=answer)
