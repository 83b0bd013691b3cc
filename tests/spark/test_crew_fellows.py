"""Workers of a crew that do not reach each other: a connection is made once more, and a worker that still cannot be
reached is given up."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from pyspark.sql import SparkSession

from crew_runs import EPOCHS, ROWS, options, output, run, totals, undisturbed_output
from holdfast.engine.fragment_run import FragmentRun
from holdfast.engine.in_process_platform import InProcessPlatform
from holdfast.spark.crew import Crew
from holdfast.task import crew_worker, parcel_credits
from holdfast.task.channel import ChannelClosedError, connect
from holdfast.task.parcel_credits import ParcelCredits
from holdfast_lab.chaos.fellow_connections import cut_between, make_unreachable


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    return undisturbed_output(tmp_path_factory.mktemp("expected"))


@pytest.mark.spark
def test_a_connection_between_workers_that_is_cut_is_made_again(
    spark: SparkSession, tmp_path: Path, expected: list[Any]
) -> None:
    workers: list[list[int]] = []
    cut: list[bool] = []

    def strike(crew: Crew, epoch: int) -> None:
        if epoch in (4, 8, 12):
            cut.append(cut_between(crew.workers, 0.5))
        if epoch in (4, 20):
            workers.append(crew.workers)

    run(spark, tmp_path, strike)
    assert any(cut)
    assert workers[0] == workers[1], "nobody was given up for it"
    assert output(tmp_path) == expected


def deaf(flag: Path) -> Callable[[pl.DataFrame], pl.DataFrame]:
    """A function that makes one worker deaf: whoever connects to it from then on gets no answer."""

    def function(frame: pl.DataFrame) -> pl.DataFrame:
        if any(thread.name == "beats" for thread in threading.enumerate()) and frame["ts"].max() > 29 * 5 * ROWS:
            with contextlib.suppress(FileExistsError):
                os.close(os.open(flag, os.O_CREAT | os.O_EXCL))
                flag.write_text(str(os.getpid()))
                crew_worker.accept = lambda link, secret: time.sleep(3600)  # type: ignore[assignment, attr-defined]
        return frame

    return function


@pytest.mark.spark
def test_a_worker_that_no_fellow_reaches_is_given_up(spark: SparkSession, tmp_path: Path, expected: list[Any]) -> None:
    flag = tmp_path / "deaf"
    workers: list[list[int]] = []

    def strike(crew: Crew, epoch: int) -> None:
        if flag.exists() and not workers:
            assert cut_between(crew.workers, 0.5)
            workers.append(crew.workers)
        if epoch == EPOCHS - 1:
            workers.append(crew.workers)

    run(spark, tmp_path, strike, deaf(flag))
    [before, after] = workers
    given_up = int(flag.read_text())
    assert set(before) - set(after) == {given_up}, "it, and nobody else"
    assert output(tmp_path) == expected


@pytest.mark.spark
def test_a_worker_that_cannot_be_reached_is_given_up(spark: SparkSession, tmp_path: Path, expected: list[Any]) -> None:
    """It beats, and nothing that its fellows send arrives: that is noticed where they send, not by a late epoch."""
    workers: list[list[int]] = []
    struck: list[bool] = []

    def strike(crew: Crew, epoch: int) -> None:
        if not any(struck):
            workers[:] = [crew.workers]
            struck.append(make_unreachable(crew.workers, 0.0))
        elif epoch == EPOCHS - 1:
            workers.append(crew.workers)

    began = time.monotonic()
    run(spark, tmp_path, strike)
    assert any(struck)
    assert workers[0] != workers[1], "another one has its place"
    assert output(tmp_path) == expected
    assert time.monotonic() - began < 40.0


def without_credit(flags: Path) -> Callable[[pl.DataFrame], pl.DataFrame]:
    """A function that gives all rows one key, and leaves workers no credit from the first epoch to the last but two.
    There is a flag of each that was kept from reading ahead."""

    def function(frame: pl.DataFrame) -> pl.DataFrame:
        if any(thread.name == "beats" for thread in threading.enumerate()):
            early = frame["ts"].max() < 29 * (EPOCHS - 3) * ROWS

            def left(credits: ParcelCredits) -> bool:
                found = all(size < parcel_credits.MOST_BYTES for size in credits._sent.values())
                if not found:
                    (flags / str(os.getpid())).touch()
                return found

            parcel_credits.MOST_BYTES = 1 if early else 1 << 30
            ParcelCredits.left = property(left)  # type: ignore[method-assign, assignment]
        return frame.with_columns(key=pl.lit(7, pl.Int64))

    return function


@pytest.mark.spark
def test_workers_without_credit_do_not_read_ahead_and_do_not_wait_for_each_other(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of two has all keys. The bound is smaller than any parcel."""
    monkeypatch.setattr("holdfast.engine.planner._WORTH_OVERLAPPING", -1.0, raising=False)
    flags = tmp_path / "flags"
    flags.mkdir()
    run(spark, tmp_path, function=without_credit(flags))
    assert list(flags.iterdir())
    alone = tmp_path / "alone"
    FragmentRun(totals(alone, without_credit(flags)), InProcessPlatform(), options(alone)).run()
    assert output(tmp_path) == output(alone)


@contextlib.contextmanager
def black_hole() -> Iterator[tuple[str, int]]:
    """An address that takes no connection and refuses none, as behind a firewall: its queue is full."""
    with socket.create_server(("127.0.0.1", 0), backlog=0) as server:
        address = server.getsockname()[:2]
        with contextlib.ExitStack() as waiting:
            for _ in range(4):
                link = waiting.enter_context(socket.socket())
                link.setblocking(False)
                link.connect_ex(address)
            yield address


@contextlib.contextmanager
def silence() -> Iterator[tuple[str, int]]:
    """An address where a connection is made, and then nobody says anything."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[:2]


@pytest.mark.parametrize("place", [black_hole, silence])
def test_a_connection_that_does_not_come_about_is_given_up_in_time(
    place: Callable[[], contextlib.AbstractContextManager[tuple[str, int]]],
) -> None:
    with place() as (host, port):
        began = time.monotonic()
        with pytest.raises((OSError, ChannelClosedError), match="timed out"):
            connect(host, port, b"s" * 32, 0.3)
        assert 0.2 < time.monotonic() - began < 20
