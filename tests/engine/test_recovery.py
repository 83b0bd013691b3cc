"""Input, crash, resumed output: processes die by SIGKILL, and the output is the one of a run without faults.

What is killed runs in a process of its own, the leader of its own session; the functions named `victim_...` run there.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import polars as pl
import psutil
import pytest
from polars.testing import assert_frame_equal
from pyspark.sql import SparkSession

import holdfast as hf
from commits import around_commits
from holdfast.connect.base import Chunk, Receipt, Slice
from holdfast.connect.sinks.file_sink import FileSink, published_epochs
from holdfast.connect.sources.memory import Item, MemorySource
from holdfast.epoch.plan import EpochPlan
from holdfast.epoch.record_change import record_of
from holdfast.epoch.report import EpochReport
from holdfast.meta import Commit, Lease, MetaStore, PlannedEpoch
from holdfast.spark.session import open_spark
from holdfast_lab.chaos.victim import MeteredSource
from holdfast_lab.chaos.victim_process import _spark_home_in
from observers import watching

pytestmark = pytest.mark.spark

PIPELINE = "sums"
EVENTS = pl.DataFrame(
    {"ts": range(0, 40_000, 20), "k": [i % 5 for i in range(2000)], "v": [(i * 7919) % 101 for i in range(2000)]}
)
ROWS_PER_WINDOW = 250
EXECUTOR = "org.apache.spark.executor.CoarseGrainedExecutorBackend"


def frames(rows: int) -> list[pl.DataFrame]:
    return [EVENTS[start : start + rows] for start in range(0, EVENTS.height, rows)]


def declare(source: hf.source.Source, sink: hf.sink.Sink) -> hf.Pipeline:
    pipeline = hf.Pipeline(PIPELINE)
    (
        pipeline.source("events", source, event_time="ts", time_unit="ms")
        .key_by("k")
        .window(hf.window.tumbling("5s"))
        .agg(n=hf.count(), total=hf.sum("v"))
        .sink("results", sink)
    )
    return pipeline


def sums(frame: pl.DataFrame = EVENTS) -> pl.DataFrame:
    """The oracle: what a run without faults puts out."""
    return (
        frame.group_by("k", (pl.col("ts") // 5000 * 5000).alias("window_start"))
        .agg(n=pl.len().cast(pl.Int64), total=pl.col("v").sum())
        .with_columns(window_end=pl.col("window_start") + 5000)
        .select("k", "window_start", "window_end", "n", "total")
    )


def same(left: pl.DataFrame, right: pl.DataFrame) -> None:
    assert_frame_equal(left, right, check_row_order=False)


def run(home: Path, source: hf.source.Source, sink: hf.sink.Sink | None = None, **options: Any) -> None:
    pipeline = declare(source, sink if sink is not None else hf.sink.parquet(home / "out"))
    hf.run(pipeline, store=home / "store", **options)


def output(home: Path) -> pl.DataFrame:
    return hf.read_output(home / "out", "parquet")


def stored(home: Path) -> tuple[list[Commit], list[PlannedEpoch]]:
    """The commits, oldest first, and what was planned and not committed."""
    meta = MetaStore(home / "store")
    try:
        return meta.commits(PIPELINE)[::-1], meta.planned(PIPELINE)
    finally:
        meta.close()


def last_epoch(home: Path) -> int:
    commits, _ = stored(home)
    return commits[-1].epoch if commits else 0


class Victim:
    """A process that runs one of the `victim_...` functions, and everything that it starts."""

    def __init__(self, function: Callable[[Path], None], home: Path, **environment: str) -> None:
        self._log = home / "log"
        here = Path(__file__).parent
        roots = [str(here), str(here.parent), *filter(None, [os.environ.get("PYTHONPATH")])]
        code = f"import {function.__module__} as it, pathlib; it.{function.__name__}(pathlib.Path({str(home)!r}))"
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-c", code],
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log, start_new_session=True,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(roots), **environment},
            )  # fmt: skip

    def wait_ready(self) -> None:
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == b"ready\n", self._log.read_text()

    def wait(self) -> int:
        """How it ended."""
        code = self.process.wait(120)
        assert code in (0, -signal.SIGKILL), self._log.read_text()
        return code

    def members(self) -> list[psutil.Process]:
        """The living processes of the session: also workers, which Spark puts into a group of their own."""
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(ProcessLookupError, PermissionError, psutil.NoSuchProcess):
                if os.getsid(process.pid) == self.process.pid and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
        return found

    def executors(self) -> list[psutil.Process]:
        found = []
        for process in self.members():
            with contextlib.suppress(psutil.NoSuchProcess):
                if EXECUTOR in process.cmdline():
                    found.append(process)
        return found

    def kill_all(self) -> None:
        while left := self.members():
            for process in left:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
            time.sleep(0.005)
        # Reaped last: while the leader is a zombie, nobody else can get its number.
        self.process.wait()


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Victim]]:
    """Starts victims, and ends what is left of them after the test."""
    victims: list[Victim] = []

    def starting(function: Callable[[Path], None], **environment: str) -> Victim:
        victims.append(Victim(function, tmp_path, **environment))
        return victims[-1]

    yield starting
    for victim in victims:
        victim.kill_all()


# A crash in the middle of the input.


def victim_crash(home: Path, spark: SparkSession | None = None) -> None:
    first, *rest = frames(1000)
    items: list[Item] = [first, hf.source.Crash(home / "crashed"), *rest]
    run(home, hf.source.memory(items), spark=spark, least_rows=300, most_rows=300)


def test_a_crash_in_the_middle_of_the_input(start: Callable[..., Victim], tmp_path: Path, spark: SparkSession) -> None:
    assert start(victim_crash).wait() == -signal.SIGKILL
    assert (tmp_path / "crashed").exists()
    before = output(tmp_path)
    assert before.height < sums().height
    victim_crash(tmp_path, spark)
    same(output(tmp_path), sums())
    assert output(tmp_path)[: before.height].equals(before), "what readers have seen stays as it was"


# A crash between commit and publish.

LOST = 3


class DyingSink(FileSink):
    """Kills its process when it is asked to publish epoch `LOST`."""

    def publish(self, epoch: int, receipts: Sequence[Receipt]) -> None:
        if epoch == LOST:
            os.kill(os.getpid(), signal.SIGKILL)
        super().publish(epoch, receipts)


def victim_publish(home: Path) -> None:
    source = hf.source.memory(frames(ROWS_PER_WINDOW), epochs=True)
    run(home, source, DyingSink(home / "out", "parquet"))


@pytest.mark.long  # publishing again is tested with the sinks
def test_a_crash_between_commit_and_publish(start: Callable[..., Victim], tmp_path: Path, spark: SparkSession) -> None:
    assert start(victim_publish).wait() == -signal.SIGKILL
    commits, _ = stored(tmp_path)
    assert commits[-1].epoch == LOST, "committed"
    assert published_epochs(tmp_path / "out") == [2], "but not visible; the first epoch closes no window"

    reports: list[EpochReport] = []
    run(
        tmp_path,
        hf.source.memory(frames(ROWS_PER_WINDOW), epochs=True),
        spark=spark,
        observer=watching(epoch_committed=reports.append),
    )
    assert [report.epoch for report in reports] == [4, 5, 6, 7, 8], "the committed epoch is published, not run again"
    assert published_epochs(tmp_path / "out") == [2, 3, 4, 5, 6, 7, 8]
    published = pl.read_parquet(tmp_path / "out" / f"epoch={LOST:012d}" / "*.parquet", hive_partitioning=False)
    same(published, sums(frames(ROWS_PER_WINDOW)[LOST - 2]))
    same(output(tmp_path), sums())


# A crash while two epochs are in flight.


class SlowSource(MemorySource):
    """Takes so long to read that the next epoch is worth launching meanwhile."""

    def read(self, piece: Slice) -> Iterator[Chunk]:
        time.sleep(0.2)
        yield from super().read(piece)


def victim_overlap(home: Path) -> None:
    def dying(meta: MetaStore, lease: Lease, epoch: int) -> None:
        if len(meta.planned(PIPELINE)) == 2:
            os.kill(os.getpid(), signal.SIGKILL)

    around_commits(before=dying)
    run(home, SlowSource([EVENTS], epochs=False), least_rows=250, most_rows=250)


def test_epochs_that_were_planned_run_as_planned(
    start: Callable[..., Victim], tmp_path: Path, spark: SparkSession
) -> None:
    assert start(victim_overlap).wait() == -signal.SIGKILL
    _, planned = stored(tmp_path)
    assert len(planned) == 2

    # Planned anew, they would have other rows.
    reports: list[EpochReport] = []
    source = SlowSource([EVENTS], epochs=False)
    run(tmp_path, source, spark=spark, least_rows=400, most_rows=400, observer=watching(epoch_committed=reports.append))
    commits = {commit.epoch: commit for commit in stored(tmp_path)[0]}
    for item in planned:
        assert commits[item.epoch].plan == item.plan
        assert record_of(commits[item.epoch]).positions == EpochPlan.decode(item.plan).positions
    assert [report.epoch for report in reports[:2]] == [item.epoch for item in planned]
    assert [report.rows for report in reports[:3]] == [250, 250, 400]
    same(output(tmp_path), sums())


# Crashes at random moments.


EPOCHS = 40


def metered(pause: float) -> hf.source.Source:
    """`EPOCHS` epochs, at least `pause` seconds apart."""
    return MeteredSource(hf.source.memory(frames(EVENTS.height // EPOCHS), epochs=True), pause)


def victim_metered(home: Path) -> None:
    spark = open_spark(os.environ.get("VICTIM_MASTER"), app="victim")
    print("ready", flush=True)
    run(home, metered(0.1), spark=spark)


@pytest.mark.long  # `holdfast chaos` does it
@pytest.mark.parametrize("seed", [1, 2])
def test_crashes_at_random_moments(
    start: Callable[..., Victim], tmp_path: Path, spark: SparkSession, seed: int
) -> None:
    rng = random.Random(seed)
    for _ in range(2):
        victim = start(victim_metered)
        victim.wait_ready()
        time.sleep(rng.uniform(0.0, 3.5))
        victim.kill_all()
    assert last_epoch(tmp_path) < EPOCHS, "there is something left to do"
    run(tmp_path, metered(0.0), spark=spark)
    assert last_epoch(tmp_path) == EPOCHS
    same(output(tmp_path), sums())


# The loss of an executor.


@pytest.mark.long  # `holdfast chaos --kinds executor` does it
def test_a_killed_executor_is_replaced(start: Callable[..., Victim], tmp_path: Path) -> None:
    cluster = "local-cluster[2,1,1024]"
    victim = start(victim_metered, VICTIM_MASTER=cluster, SPARK_HOME=str(_spark_home_in(tmp_path)))
    victim.wait_ready()
    while last_epoch(tmp_path) < 3:
        assert victim.process.poll() is None
        time.sleep(0.05)
    before = victim.executors()
    assert len(before) == 2
    before[0].kill()
    assert last_epoch(tmp_path) < EPOCHS / 2, "most of the input is still to come"
    assert victim.wait() == 0
    assert last_epoch(tmp_path) == EPOCHS
    same(output(tmp_path), sums())
