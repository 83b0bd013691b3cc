"""Spark as the platform of runs: jobs for epochs, and Structured Streaming for those that it cuts."""

from __future__ import annotations

import logging
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
from holdfast.epoch.execution import Executor
from holdfast.plan.program import Program
from holdfast.spark.crew import Crew
from holdfast.spark.jobs import JOB_ATTEMPTS, SparkJobs
from holdfast.spark.reach import check_reach, shared_places
from holdfast.spark.session import slots
from holdfast.spark.stall import StallWatch
from holdfast.store import DirectoryStore, Tiers
from holdfast.task.work_directory import WorkDirectory

__all__ = ["SparkPlatform"]

_log = logging.getLogger(__name__)
_SLOTS_BESIDE = 2


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
        options: RunOptions,
        work: WorkDirectory,
        tiers: Tiers,
        clock: Callable[[], float],
        deadlines: Deadlines,
        *,
        alone: bool,
    ) -> Executor:
        if options.executor == "crew" and self._has_slots(program, options):
            return Crew(self._spark, work, tiers, clock, deadlines, options.tasks)
        stalls = StallWatch(self._spark, work, program, deadlines, waits_for_slots=alone)
        # Where another host can go on, it is to do so at once.
        tries = JOB_ATTEMPTS if alone else 1
        return SparkJobs(self._spark, work, tiers, clock, deadlines, stalls, tries, self._beside)

    def compacting(self, program: Program, work: WorkDirectory, store: DirectoryStore) -> Compacting:
        return Compacting(program, store, MergeProcess(work, store))

    def _has_slots(self, program: Program, options: RunOptions) -> bool:
        """Workers hold their slots for the whole run; jobs that are no epochs need some, too."""
        if program.spark_input is not None:
            _log.warning("%s: a streaming DataFrame is run by Spark's jobs, not by a crew", program.name)
            return False
        needed, found = options.tasks * (1 + self._beside) + _SLOTS_BESIDE, slots(self._spark)
        if found < needed:
            _log.warning(
                "%s: a crew needs %d slots, and there are %d: each epoch is a job instead", program.name, needed, found
            )
        return found >= needed

    def warm_up(self, work: WorkDirectory, tasks: int) -> None:
        warm_up(self._spark, work.root, tasks)

    def drive(self, loop: Loop, program: Program, options: RunOptions, home: Path) -> bool:
        if program.spark_input is not None:
            assert isinstance(loop.executor, SparkJobs)
            run_on_batches(loop, loop.executor, program, options, home)
        return loop.run()
