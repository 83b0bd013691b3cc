"""Spark as the platform of runs: crews or jobs for epochs, and Structured Streaming for streaming DataFrames."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from pyspark import InheritableThread
from pyspark.sql import SparkSession

from holdfast.engine.background_merges import BackgroundMerges
from holdfast.engine.loop import Loop
from holdfast.engine.merge_worker import MergeProcess
from holdfast.engine.options import RunOptions
from holdfast.engine.warmup import warm_up
from holdfast.epoch.deadline import Deadlines
from holdfast.epoch.execution import Batches, Executor
from holdfast.graph.nodes import SparkInput
from holdfast.plan.executor_choice import CrewSize, ExecutorChoice, choose_executor, crew_size
from holdfast.plan.program import Program
from holdfast.spark.batches import SparkBatches
from holdfast.spark.crew import Crew
from holdfast.spark.executor_switch import ExecutorSwitch
from holdfast.spark.jobs import JOB_ATTEMPTS, SparkJobs
from holdfast.spark.reach import check_reach, shared_places
from holdfast.spark.session import is_lost, parallelism, slots
from holdfast.spark.stall import StallWatch
from holdfast.store import DirectoryStore, Tiers
from holdfast.task.work_directory import WorkDirectory
from holdfast.threads import Thread

__all__ = ["SparkPlatform"]


class SparkPlatform:
    """Spark under the runs of fragments."""

    def __init__(self, spark: SparkSession, *, other_runs: int = 0) -> None:
        """`other_runs` share the session with this one."""
        self._spark = spark
        self._other_runs = other_runs

    def has_died(self) -> bool:
        return is_lost(self._spark)

    def shared(self, runs: int) -> SparkPlatform:
        return SparkPlatform(self._spark, other_runs=runs - 1)

    def start(self, work: Callable[[], None], name: str) -> Thread:
        thread = InheritableThread(target=work, name=name, daemon=True)  # with the caller's settings of the session
        thread.start()
        return thread

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
        chosen: Callable[[ExecutorChoice], None],
        *,
        alone: bool,
    ) -> tuple[Executor, Batches | None]:
        batches = _batches_of(program, options)
        choice = choose_executor(
            options.executor,
            streaming_frame=batches is not None,
            tasks=options.tasks,
            fragments=1 + self._other_runs,
            slots=slots(self._spark),
            parallelism=parallelism(self._spark),
        )
        chosen(choice)
        # If another host can continue, it should do so at once.
        tries = JOB_ATTEMPTS if alone else 1

        def jobs() -> SparkJobs:
            stalls = StallWatch(self._spark, work, program, deadlines, waits_for_slots=alone)
            return SparkJobs(self._spark, work, tiers, clock, deadlines, stalls, tries, self._other_runs, batches)

        if choice.executor == "jobs":
            return jobs(), batches

        def crew() -> Crew:
            return Crew(self._spark, work, tiers, clock, deadlines, partial(self._crew_size, options.tasks), tries)

        def another() -> Crew | None:
            return crew() if self._crew_size(options.tasks) else None

        def switched(why: str | None) -> None:
            given_up = f"the crew was given up, because {why}"
            chosen(choice if why is None else ExecutorChoice("jobs", given_up))

        return ExecutorSwitch(crew(), another, jobs, switched), None

    def _crew_size(self, tasks: int) -> CrewSize | None:
        return crew_size(tasks, 1 + self._other_runs, slots(self._spark), parallelism(self._spark))

    def merges_of(self, program: Program, work: WorkDirectory, store: DirectoryStore) -> BackgroundMerges:
        return BackgroundMerges(program, store, MergeProcess(work, store))

    def warm_up(self, work: WorkDirectory, options: RunOptions) -> None:
        warm_up(self._spark, work.root, options.tasks, options.executor)

    def drive(self, loop: Loop) -> bool:
        return loop.run()


def _batches_of(program: Program, options: RunOptions) -> SparkBatches | None:
    """What cuts the epochs of a streaming DataFrame."""
    if program.spark_input is None:
        return None
    source = program.spark_input.source
    assert isinstance(source, SparkInput)
    checkpoint = options.store.resolve() / program.name / "spark-checkpoint"
    return SparkBatches(program.name, source.frame, checkpoint, options.until_idle, options.trigger_seconds or 0.0)
