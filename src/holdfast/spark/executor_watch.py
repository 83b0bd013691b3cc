"""Waiting for Spark, and saying so: a master that does not answer, executors that do not start or are gone.

Spark waits silently. `Waiting` logs what the run waits for after ten seconds, and again every minute.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

__all__ = ["ExecutorWatch", "Waiting", "meet_executors", "runs_in_driver"]

log = logging.getLogger(__name__)

_FIRST_SECONDS, _AGAIN_SECONDS = 5.0, 60.0
_LOOK_EVERY = 1.0
_MEET_EVERY = 0.1


def runs_in_driver(master: str) -> bool:
    """Whether tasks run in the driver's own Java, so that there are no executors that could be missing."""
    return master == "local" or master.startswith("local[")


class Waiting:
    """Says what is waited for, if it is waited for long. `look` is called again and again meanwhile."""

    def __init__(
        self,
        what: str,
        tell: Callable[[str], None] = log.warning,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._what = what
        self._tell = tell
        self._clock = clock
        self._began = clock()
        self._due = self._began + _FIRST_SECONDS

    def look(self) -> None:
        now = self._clock()
        if now >= self._due:
            self._due = now + _AGAIN_SECONDS
            self._tell(f"waiting for {now - self._began:.0f} s for {self._what}")


class ExecutorWatch:
    """Whether a session on a cluster has executors; says so while it has none."""

    def __init__(
        self,
        spark: SparkSession,
        tell: Callable[[str], None] = log.warning,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._tell = tell
        self._clock = clock
        self._looked = clock()
        self._waiting: Waiting | None = None
        try:
            self._context = spark.sparkContext
            self.master = self._context.master or ""
        except (PySparkException, AttributeError):  # Spark Connect
            self.master = ""

    @property
    def is_needed(self) -> bool:
        """Whether there are executors that can be missing, and can be counted."""
        return self.master != "" and not runs_in_driver(self.master)

    def missing(self) -> bool:
        """Whether there is no executor, as far as was seen in the last second."""
        now = self._clock()
        if not self.is_needed or (self._looked + _LOOK_EVERY > now and self._waiting is None):
            return False
        if self._looked + _LOOK_EVERY <= now:
            self._looked = now
            if self.count():
                self._waiting = None
            elif self._waiting is None:
                what = f"an executor from {self.master}: its workers are gone, or have no executor free"
                self._waiting = Waiting(what, self._tell, self._clock)
        if self._waiting is not None:
            self._waiting.look()
        return self._waiting is not None

    def count(self) -> int:
        """The executors that are registered now."""
        return int(self._context._jsc.sc().getExecutorIds().size())


def meet_executors(spark: SparkSession) -> None:
    """Wait until tasks can run at all; a signal ends it."""
    watch = ExecutorWatch(spark)
    if not watch.is_needed:
        return
    waiting = Waiting(
        f"a first executor from {watch.master}: does it have workers, with as many free cores and as much free memory"
        " as an executor needs?"
    )
    while not watch.count():
        waiting.look()
        time.sleep(_MEET_EVERY)
