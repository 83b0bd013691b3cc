"""Spark as the platform of runs: jobs for epochs, and Structured Streaming for those that it cuts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from pyspark.sql import SparkSession

from holdfast.engine.background_merges import Compacting
from holdfast.engine.batches import run_on_batches
from holdfast.engine.loop import Loop
from holdfast.engine.merge_worker import MergeProcess
from holdfast.engine.options import RunOptions
from holdfast.engine.warmup import warm_up
from holdfast.epoch.deadline import Deadlines
from holdfast.plan.program import Program
from holdfast.spark.jobs import JOB_ATTEMPTS, SparkJobs
from holdfast.spark.reach import check_reach, shared_places
from holdfast.spark.stall import StallWatch
from holdfast.store import DirectoryStore, Tiers
from holdfast.task.work_directory import WorkDirectory

__all__ = ["SparkPlatform"]


class SparkPlatform:
    """Spark under the runs of fragments."""

    def __init__(self, spark: SparkSession, *, beside: int = 0) -> None:
        """`beside` is how many other runs share the session."""
        self._spark = spark
        self._beside = beside

    def sees_volatile(self, program: Program, options: RunOptions, tiers: Tiers) -> bool:
        """Whether all tasks see the same volatile tier; raises if they do not all see what they must."""
        places = shared_places(program, options.store.resolve(), tiers, options.volatile)
        return check_reach(self._spark, places, tiers.volatile)

    def executor(
        self,
        program: Program,
        work: WorkDirectory,
        tiers: Tiers,
        clock: Callable[[], float],
        deadlines: Deadlines,
        *,
        alone: bool,
    ) -> SparkJobs:
        stalls = StallWatch(self._spark, work, program, deadlines, waits_for_slots=alone)
        # Where another host can go on, it is to do so at once.
        tries = JOB_ATTEMPTS if alone else 1
        return SparkJobs(self._spark, work, tiers, clock, deadlines, stalls, tries, self._beside)

    def compacting(self, program: Program, work: WorkDirectory, store: DirectoryStore) -> Compacting:
        return Compacting(program, store, MergeProcess(work, store))

    def warm_up(self, work: WorkDirectory, tasks: int) -> None:
        warm_up(self._spark, work.root, tasks)

    def drive(self, loop: Loop, program: Program, options: RunOptions, home: Path) -> bool:
        if program.spark_input is not None:
            assert isinstance(loop.executor, SparkJobs)
            run_on_batches(loop, loop.executor, program, options, home)
        return loop.run()
