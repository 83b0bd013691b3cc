"""The Spark job of an epoch: one DataFrame from source slices to commit messages."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import col
from pyspark.sql.types import BinaryType, IntegerType, StructField, StructType

from holdfast.epoch.messages import Message, raise_errors, unpack
from holdfast.errors import JobLostError, gist
from holdfast.spark.session import log_of
from holdfast.store import Tiers
from holdfast.task.spark_task import SparkTask
from holdfast.task.work_directory import WorkDirectory

__all__ = ["EpochJob", "build_job", "cancel_jobs", "lacks_slots", "run_job", "running_tasks", "tagged"]

_SCHEMA = StructType(
    [
        StructField("part", IntegerType(), False),
        StructField("head", BinaryType(), False),
        StructField("blob", BinaryType(), False),
    ]
)


@dataclass(frozen=True, slots=True)
class EpochJob:
    """A job that is built and can be run."""

    epoch: int
    tasks: tuple[int, ...]
    frame: DataFrame


def build_job(
    spark: SparkSession,
    work: WorkDirectory,
    epoch: int,
    tasks: Sequence[int],
    tiers: Tiers,
    rows: DataFrame | None = None,
) -> EpochJob:
    """Stage after stage: `tasks` says how many tasks each has. `rows` are the input of a `from_spark` epoch.

    Nothing of the epoch's plan is in here, so a job can be built before its epoch is planned.
    """
    frame = spark.range(0, tasks[0], 1, tasks[0]) if rows is None else rows
    frame = frame.mapInArrow(SparkTask(work, epoch, 0, tiers), _SCHEMA)
    for stage, count in enumerate(tasks[1:], start=1):
        frame = frame.repartitionById(count, col("part")).mapInArrow(SparkTask(work, epoch, stage, tiers), _SCHEMA)
    return EpochJob(epoch, tuple(tasks), frame)


def run_job(job: EpochJob) -> list[Message]:
    """Run the job and return what its tasks said. A typed error of a task is raised as it is."""
    try:
        table = job.frame.toArrow()
    except (PySparkException, Py4JError) as error:
        raise JobLostError(
            f"the Spark job failed: {gist(error)}",
            cure=f"{_where_to_look(job)}; the epoch was not committed and is run again at the next start",
            epoch=job.epoch,
        ) from error
    messages = list(unpack(table.to_batches()))
    raise_errors(messages)
    return messages


def _where_to_look(job: EpochJob) -> str:
    log = log_of(job.frame.sparkSession)
    return "see what Spark logs" if log is None else f"see Spark's log, {log}"


@contextmanager
def tagged(spark: SparkSession, tag: str) -> Iterator[None]:
    """Jobs that this thread starts inside can be cancelled by their tag."""
    add, remove, _ = _tagging(spark)
    add(tag)
    try:
        yield
    finally:
        with suppress(PySparkException, Py4JError):  # the session may be what has failed
            remove(tag)


def cancel_jobs(spark: SparkSession, tag: str) -> None:
    """End the jobs with this tag that run now; whoever waits for one gets a `JobLostError`."""
    _tagging(spark)[2](tag)


def running_tasks(spark: SparkSession, tag: str) -> int:
    """How many tasks of the jobs with this tag are running now."""
    tracker, jobs = spark.sparkContext.statusTracker(), _jobs_of(spark, tag)
    stages = [stage for job in jobs if (info := tracker.getJobInfo(job)) is not None for stage in info.stageIds]
    return sum(found.numActiveTasks for stage in stages if (found := tracker.getStageInfo(stage)) is not None)


def lacks_slots(spark: SparkSession, tag: str) -> bool:
    """Whether Spark has a job with this tag, and runs no task of it."""
    return len(_jobs_of(spark, tag)) > 0 and running_tasks(spark, tag) == 0


def _jobs_of(spark: SparkSession, tag: str) -> Sequence[int]:
    found: Sequence[int] = spark.sparkContext._jsc.sc().statusTracker().getJobIdsForTag(tag)
    return found


def _tagging(spark: SparkSession) -> tuple[Callable[[str], object], Callable[[str], object], Callable[[str], object]]:
    """How to add, to remove and to cancel by a tag. Classic Spark knows the tags of its context; those of the session
    cancel nothing there. Spark Connect has no context."""
    try:
        context = spark.sparkContext
    except (PySparkException, AttributeError):
        return spark.addTag, spark.removeTag, spark.interruptTag
    return context.addJobTag, context.removeJobTag, context.cancelJobsWithTag
