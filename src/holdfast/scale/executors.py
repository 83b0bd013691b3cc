"""The executors of a running session: which there are, asking for more, letting some go.

Spark's scheduler can do all of it on a standalone master, but offers it to Java only, so it is called through the
gateway. What works there (PySpark 4.3): the master starts executors up to the total that was last asked for, as long as
a worker has free cores; `spark.cores.max` must be unset, because it cannot be changed later, and
`spark.executor.instances` means nothing. The total holds when an executor dies: the master starts another one, wherever
there is room.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import polars as pl
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from holdfast.scale.cluster import HOST

__all__ = ["SparkExecutors", "executor_settings"]


def executor_settings(cores: int, memory: str) -> dict[str, str]:
    """What a session needs whose executors come and go: one executor fills one worker, and leaves in good order."""
    return {
        "spark.executor.cores": str(cores),
        "spark.executor.memory": memory,
        "spark.dynamicAllocation.enabled": "false",
        # Shuffle files of a killed executor are asked for three times; here, it does not come back in between.
        "spark.shuffle.io.maxRetries": "3",
        "spark.shuffle.io.retryWait": "500ms",
        # An executor that is let go finishes its tasks, and moves the shuffle files that other tasks still need.
        "spark.decommission.enabled": "true",
        "spark.storage.decommission.enabled": "true",
        "spark.storage.decommission.shuffleBlocks.enabled": "true",
    }


class SparkExecutors:
    """The executors of one session, with so many `cores` each."""

    def __init__(self, spark: SparkSession, cores: int) -> None:
        self._cores = cores
        context = spark.sparkContext
        self._spark = spark
        self._gateway: Any = context._gateway
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

    def warm(self, name: str) -> None:
        """Run a small task in each slot of an executor that has just come, and wait for it.

        Its Python has to start and import everything first, which takes seconds. These tasks take the slots meanwhile,
        so that those of an epoch run elsewhere instead of waiting there.
        """
        jvm = self._jvm
        row = jvm.org.apache.spark.sql.RowFactory.create(self._gateway.new_array(jvm.java.lang.Object, 0))
        there = jvm.PythonUtils.toSeq([f"executor_{HOST}_{name}"])
        places = jvm.PythonUtils.toSeq([jvm.scala.Tuple2(row, there) for _ in range(self._cores)])
        rows = self._scala.makeRDD(places, jvm.scala.reflect.ClassTag.apply(row.getClass()))
        nothing = jvm.org.apache.spark.sql.types.StructType()
        frame = DataFrame(self._spark._jsparkSession.createDataFrame(rows.toJavaRDD(), nothing), self._spark)
        frame.mapInArrow(_use_libraries, "n long").collect()

    def retire(self, ids: Iterable[str]) -> None:
        """Let executors finish their tasks and end. `request` fewer first, or others take their places."""
        why = self._jvm.org.apache.spark.scheduler.ExecutorDecommissionInfo("released", self._jvm.scala.Option.empty())
        for name in ids:
            self._scala.schedulerBackend().decommissionExecutor(name, why, False, False)

    def kill(self, ids: Iterable[str]) -> None:
        """End executors now; what they were running is run again elsewhere."""
        for name in ids:
            self._scala.killExecutor(name)


def _use_libraries(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """What the first task of a Python worker would do for the first time: group in Polars, pass Arrow on."""
    frame = pl.LazyFrame({"key": [1, 2, 1], "n": [1, 2, 3]}).filter(pl.col("n") > 0).group_by("key")
    yield from frame.agg(pl.col("n").sum()).select("n").collect().to_arrow().to_batches()
    yield from (batch for batch in batches if batch.num_rows < 0)


def _items(scala_map: Any) -> Iterable[Any]:
    pairs = scala_map.iterator()
    while pairs.hasNext():
        yield pairs.next()
