"""Watching over workers: one that is stopped is noticed by itself, while the pipeline runs and while it waits."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from pyspark.sql import SparkSession

from crew_runs import EPOCHS, FRAME, ROWS, output, run, undisturbed_output
from holdfast.connect.base import Position, Take
from holdfast.connect.sources.memory import MemorySource
from holdfast.epoch.crew_messages import Enrol
from holdfast.spark.crew import Crew
from holdfast.spark.crew_roster import CrewMember, CrewRoster
from holdfast.spark.crew_watch import CrewWatch
from holdfast.task.channel import Channel


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    return undisturbed_output(tmp_path_factory.mktemp("expected"))


@pytest.mark.spark
def test_a_worker_that_is_stopped_is_given_up(spark: SparkSession, tmp_path: Path, expected: list[Any]) -> None:
    stopped: list[int] = []
    commits: list[float] = []

    def stop(crew: Crew, epoch: int) -> None:
        commits.append(time.monotonic())
        if epoch == 6:
            stopped.append(min(crew.workers))
            os.kill(stopped[0], signal.SIGSTOP)

    run(spark, tmp_path, stop)
    assert output(tmp_path) == expected
    assert max(after - before for before, after in itertools.pairwise(commits)) < 10, "it was waited for"
    deadline = time.monotonic() + 10
    while psutil.pid_exists(stopped[0]):  # whoever started it has to notice, too
        assert time.monotonic() < deadline
        time.sleep(0.1)


class Pausing(MemorySource):
    """Half of the rows, and the others when there is a certain file."""

    until: Path

    def take(self, position: Position, rows: int, pieces: int) -> Take:
        if position["row"] >= EPOCHS // 2 * ROWS and not self.until.exists():
            return Take((), position)
        return super().take(position, rows, pieces)


@pytest.mark.spark
def test_a_worker_that_is_stopped_is_replaced_while_no_rows_come(
    spark: SparkSession, tmp_path: Path, expected: list[Any]
) -> None:
    source = Pausing([FRAME], epochs=False)
    source.until = tmp_path / "more"
    seen: list[tuple[int, list[int]]] = []
    commits: list[float] = []

    def go_on_when_it_is_replaced(crew: Crew, pid: int) -> None:
        deadline = time.monotonic() + 30
        while pid in crew.workers and time.monotonic() < deadline:
            time.sleep(0.05)
        seen.append((pid, crew.workers))
        source.until.touch()

    def stop(crew: Crew, epoch: int) -> None:
        commits.append(time.monotonic())
        if epoch == EPOCHS // 2:
            pid = min(crew.workers)
            os.kill(pid, signal.SIGSTOP)
            threading.Thread(target=go_on_when_it_is_replaced, args=(crew, pid)).start()

    run(spark, tmp_path, stop, source=source)
    [(pid, workers)] = seen
    assert len(commits) == EPOCHS
    assert pid not in workers, "before there was anything to do"
    assert len(workers) == 2
    assert output(tmp_path) == expected


@contextlib.contextmanager
def member(machine: str, heard: float) -> Iterator[tuple[CrewMember, Channel]]:
    here, there = socket.socketpair()
    yield CrewMember(Channel(here), Enrol(7, 0, "127.0.0.1", 1, machine, os.getpid()), heard), Channel(there)
    here.close()
    there.close()


def test_a_silent_worker_of_another_machine_is_given_up_and_its_job_cancelled() -> None:
    now = time.monotonic()
    with member("elsewhere", now) as (one, _):
        cancelled: list[int] = []
        watch = CrewWatch(CrewRoster(1, members=[one]), cancelled.append)
        for step in range(1, 20):
            watch.look(now + step / 4)
        assert cancelled == [], "a worker may be busy"
        for step in range(20, 24):
            watch.look(now + step / 4)
        assert cancelled == [7], "once"


def test_a_driver_that_was_away_blames_nobody() -> None:
    now = time.monotonic()
    with member("elsewhere", now) as (one, _):
        cancelled: list[int] = []
        watch = CrewWatch(CrewRoster(1, members=[one]), cancelled.append)
        watch.look(now)
        watch.look(now + 60)
        watch.look(now + 61)
        assert cancelled == []
        for step in range(1, 20):
            watch.look(now + 61 + step / 4)
        assert cancelled == [7], "but it is not excused for ever"
