"""Two copies of one worker: Spark may start a second one while the first still lives, cut off from the driver or slow.
One of them is the worker, and the other fails: if it came to a good end, Spark would take its job for done."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import msgspec
import pytest
from pyspark.sql import SparkSession

from crew_runs import EPOCHS, output, run, undisturbed_output, wait_for
from holdfast.epoch.crew_messages import CrewHead, Enrol, Welcome
from holdfast.spark.crew import Crew
from holdfast.task.channel import Channel, ChannelClosedError, connect, listen
from holdfast.task.crew_worker import CrewWorker
from holdfast.task.work_directory import unsealed_program

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    return undisturbed_output(tmp_path_factory.mktemp("expected"))


def enrolled(crew: Crew, number: int) -> Enrol:
    return crew._roster.numbered[number].enrolment


def jobs_of(spark: SparkSession) -> set[int]:
    return set(spark.sparkContext.statusTracker().getActiveJobsIds())


def heard(channel: Channel) -> list[CrewHead]:
    """All that a copy is told until its channel is closed."""
    heads: list[CrewHead] = []
    try:
        while True:
            heads.append(channel.receive()[0])
    except ChannelClosedError:
        return heads


def test_a_copy_that_comes_too_late_is_closed_out_and_told_nothing(
    spark: SparkSession, tmp_path: Path, expected: list[Any]
) -> None:
    told: list[CrewHead] = []
    seen: list[tuple[list[int], set[int]]] = []

    def enrol_once_more(crew: Crew, epoch: int) -> None:
        if epoch == 5:
            seen.append((crew.workers, jobs_of(spark)))
            of, task = enrolled(crew, 0), crew._task(enrolled(crew, 0).job)
            channel = connect(task.host, task.port, task.secret)
            channel.send(msgspec.structs.replace(of, attempt=of.attempt - 1))
            listening = threading.Thread(target=lambda: told.extend(heard(channel)))
            listening.start()
            wait_for(crew, lambda: not listening.is_alive())
        if epoch == EPOCHS - 1:
            seen.append((crew.workers, jobs_of(spark)))

    run(spark, tmp_path, enrol_once_more)
    assert told == [Welcome()], "nothing that would let it end well"
    assert seen[0] == seen[1], "the one that is wanted stays, and so does its job"
    assert output(tmp_path) == expected


def test_a_newer_copy_takes_the_place_of_a_worker_which_fails_and_is_tried_again(
    spark: SparkSession, tmp_path: Path, expected: list[Any]
) -> None:
    failed: list[ChannelClosedError] = []
    jobs: list[set[int]] = []

    def work(crew: Crew, driver: Channel, door: Any) -> None:
        task = crew._task(0)
        try:
            program = unsealed_program(driver.receive()[1], task.secret, "the program")
            CrewWorker(program, task.tiers, driver, door, task.secret).run()
        except ChannelClosedError as error:
            failed.append(error)

    def enrol_once_more(crew: Crew, epoch: int) -> None:
        if epoch == 5:
            jobs.append(jobs_of(spark))
            of, task = enrolled(crew, 1), crew._task(enrolled(crew, 1).job)
            channel, door = connect(task.host, task.port, task.secret), listen("127.0.0.1")
            copy = threading.Thread(target=work, args=(crew, channel, door))
            copy.start()
            channel.send(msgspec.structs.replace(of, attempt=of.attempt + 1, port=door.getsockname()[1]))
            wait_for(crew, lambda: not copy.is_alive())
        if epoch == EPOCHS - 1:
            jobs.append(jobs_of(spark))

    run(spark, tmp_path, enrol_once_more)
    assert failed, "Spark has tried the worker again, and the copy that was there had to go"
    assert jobs[0] == jobs[1], "no job has ended, and none was started"
    assert output(tmp_path) == expected
