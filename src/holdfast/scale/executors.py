"""The executors of a running session: which there are, asking for more, letting some go.

Spark's scheduler can do all of it on a standalone master, but offers it to Java only, so it is called through the
gateway. What works there (PySpark 4.3): the master starts executors up to the total that was last asked for, as long as
a worker has free cores; `spark.cores.max` must be unset, because it can not be changed later; `spark.executor.instances`
means nothing. The total holds when an executor dies: the master starts another one, wherever there is room.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from pyspark.sql import SparkSession

__all__ = ["SparkExecutors", "executor_settings"]


def executor_settings(cores: int, memory: str) -> dict[str, str]:
    """What a session needs whose executors come and go: one executor fills one worker, and leaves in good order."""
    return {
        "spark.executor.cores": str(cores),
        "spark.executor.memory": memory,
        "spark.dynamicAllocation.enabled": "false",
        # An executor that is let go finishes its tasks, and moves the shuffle files that other tasks still need.
        "spark.decommission.enabled": "true",
        "spark.storage.decommission.enabled": "true",
        "spark.storage.decommission.shuffleBlocks.enabled": "true",
    }


class SparkExecutors:
    """The executors of one session."""

    def __init__(self, spark: SparkSession) -> None:
        context = spark.sparkContext
        self._jvm: Any = context._jvm
        self._scala: Any = context._jsc.sc()

    def ids(self) -> frozenset[str]:
        """The executors that are registered: the session may run tasks on them."""
        text = str(self._scala.getExecutorIds().mkString(","))
        return frozenset(text.split(",")) if text else frozenset()

    def running(self) -> Mapping[str, int]:
        """How many tasks each executor runs now."""
        counts = self._scala.taskScheduler().runningTasksByExecutors()
        return {str(pair._1()): int(pair._2()) for pair in _items(counts)}

    def request(self, total: int) -> None:
        """Have so many executors from now on. Does not end those above it."""
        nowhere = getattr(getattr(self._jvm.scala.collection.immutable, "Map$EmptyMap$"), "MODULE$")
        self._scala.requestTotalExecutors(total, 0, nowhere)

    def retire(self, ids: Iterable[str]) -> None:
        """Let executors finish their tasks and end. `request` fewer first, or others take their places."""
        why = self._jvm.org.apache.spark.scheduler.ExecutorDecommissionInfo("released", self._jvm.scala.Option.empty())
        for name in ids:
            self._scala.schedulerBackend().decommissionExecutor(name, why, False, False)

    def kill(self, ids: Iterable[str]) -> None:
        """End executors now; what they were running is run again elsewhere."""
        for name in ids:
            self._scala.killExecutor(name)


def _items(scala_map: Any) -> Iterable[Any]:
    pairs = scala_map.iterator()
    while pairs.hasNext():
        yield pairs.next()
