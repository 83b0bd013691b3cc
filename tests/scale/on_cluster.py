"""What `test_cluster.py` runs in a process of its own, because a process has one Spark: see there for what it shows.

`on_cluster.py run HOME` runs the pipeline on a cluster while executors come, die and go, and prints what was seen as
JSON. `on_cluster.py linger` starts a cluster and waits to be killed.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import psutil

import holdfast as hf
from holdfast.engine.fragment_runs import FragmentsRun
from holdfast.engine.options import RunOptions
from holdfast.engine.spark_platform import SparkPlatform
from holdfast.epoch.report import EpochReport
from holdfast.scale.cluster import Cluster, Worker
from holdfast.scale.pool import OwnCluster
from holdfast.spark.session import slots

ROWS = 600_000
EPOCH_ROWS = 1_000
SECONDS = 240.0


def make_rows(start: int, stop: int) -> pl.DataFrame:
    at = pl.int_range(start, stop, eager=True)
    return pl.DataFrame({"time": at, "key": at * 7919 % 13, "value": at % 101})


def pipeline(sink: hf.sink.Sink) -> hf.Pipeline:
    made = hf.Pipeline("clustered")
    schema = {"time": pl.Int64, "key": pl.Int64, "value": pl.Int64}
    rows = made.source(
        "rows", hf.source.generator(make_rows, schema=schema, rows=ROWS), event_time="time", time_unit="ms"
    )
    windows = rows.filter(pl.col("value") > 3).key_by("key").window(hf.window.sliding("2s", "1s"))
    windows.agg(n=hf.count(), total=hf.sum("value")).sink("out", sink)
    return made


def until(true: Callable[[], bool], what: str) -> float:
    """How long it took to come true."""
    began = time.monotonic()
    while not true():
        if time.monotonic() - began > SECONDS:
            raise TimeoutError(what)
        time.sleep(0.02)
    print(f"{what}: {time.monotonic() - began:.1f} s", file=sys.stderr, flush=True)
    return time.monotonic() - began


def executor_of(worker: Worker) -> psutil.Process:
    for child in psutil.Process(worker.pid).children():
        with contextlib.suppress(psutil.NoSuchProcess):  # also a zombie, of which Spark's launcher leaves one
            if "--executor-id" in child.cmdline():
                return child
    raise LookupError(f"no executor on {worker}")


class Told(hf.Observer):
    """Passes on which epochs were committed."""

    def __init__(self, tell: Callable[[EpochReport], None]) -> None:
        self.epoch_committed = tell  # type: ignore[method-assign]


class Scenario:
    """Acquire, kill an executor, kill a worker, release; between any two, epochs go on."""

    def __init__(self, cluster: OwnCluster, spark: Any) -> None:
        self.cluster, self.spark = cluster, spark
        self.epochs = 0
        self.seen: dict[str, Any] = {}
        self.problem: BaseException | None = None

    def epoch(self, report: object) -> None:
        self.epochs += 1

    def play(self) -> None:
        pool = self.cluster.pool
        self.go_on("before")
        until(lambda: pool.available == 1, "the pool fills")
        self.seen["slots"] = [slots(self.spark)]
        began = time.monotonic()
        self.seen["acquired"] = pool.acquire(1, timeout=SECONDS)
        self.seen["acquire seconds"] = time.monotonic() - began
        self.seen["slots"].append(slots(self.spark))
        self.go_on("acquire")

        executors = self.executors()
        worker = next(worker for worker in self.cluster.workers() if worker.executors)
        executor_of(worker).kill()
        until(lambda: len(self.executors()) == 2 and self.executors() != executors, "a killed executor is replaced")
        self.seen["executor killed"] = self.go_on("executor killed")

        until(lambda: pool.available == 1, "the pool is refilled")
        psutil.Process(worker.pid).kill()
        until(lambda: worker.id not in self.workers(), "the worker is gone")
        until(lambda: len(self.executors()) == 2, "an idle worker takes over")
        self.seen["worker killed"] = self.go_on("worker killed")

        until(lambda: slots(self.spark) == 4, "both executors are registered")
        self.seen["released"] = pool.release(1)
        until(lambda: slots(self.spark) == 2, "the slots are gone")
        self.seen["slots"].append(slots(self.spark))
        self.seen["used"] = pool.used
        self.go_on("release")

    def go_on(self, after: str) -> float:
        now = self.epochs
        return until(lambda: self.epochs >= now + 3, f"epochs go on: {after}")

    def executors(self) -> set[str]:
        return {name for worker in self.cluster.workers() for name in worker.executors}

    def workers(self) -> set[str]:
        return {worker.id for worker in self.cluster.workers()}


def check_arguments(cluster: OwnCluster) -> None:
    """The secret of the cluster is in no process's arguments, and the file that has it is in a private directory."""
    secret = cluster._cluster.secrets()["spark.authenticate.secret"]
    place = cluster._cluster.directory
    assert secret in (place / "conf" / "spark-defaults.conf").read_text()
    assert place.stat().st_mode & 0o077 == 0
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            assert secret not in " ".join(process.cmdline())


def run(home: Path) -> None:
    declared = pipeline(hf.sink.parquet(home / "out"))
    with hf.spark_cluster(workers=1, pool=1, cores=2) as cluster:
        spark = cluster.session(app="on a cluster")
        assert spark.sparkContext.getConf().get("spark.authenticate") == "true"
        check_arguments(cluster)
        scenario = Scenario(cluster, spark)
        options = RunOptions(store=home / "store", least_rows=EPOCH_ROWS, most_rows=EPOCH_ROWS, durable=False)
        running = FragmentsRun(declared, SparkPlatform(spark), options, observer=Told(scenario.epoch))

        def play() -> None:
            try:
                scenario.play()
            except BaseException as error:  # noqa: BLE001 - raised below
                scenario.problem = error
            running.stop()

        player = threading.Thread(target=play, daemon=True)
        player.start()
        running.run()
        player.join()
        if scenario.problem is not None:
            raise scenario.problem
        scenario.seen["rows left"] = scenario.epochs * EPOCH_ROWS < ROWS
        hf.run(declared, spark=spark, store=home / "store", durable=False)
    print(json.dumps(scenario.seen))


def linger() -> None:
    with Cluster() as cluster:
        first = cluster.add_worker()
        cluster.remove_worker(first)
        second = cluster.add_worker()
        assert [worker.id for worker in cluster.workers()] == [second]
        print(
            json.dumps({"directory": str(cluster.directory), "master": cluster.master, "pid": os.getpid()}), flush=True
        )
        time.sleep(3600)


if __name__ == "__main__":
    linger() if sys.argv[1] == "linger" else run(Path(sys.argv[2]))
