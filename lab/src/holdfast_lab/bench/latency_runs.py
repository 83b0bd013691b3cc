"""How long rows take in Holdfast, from their arrival to the commit of the epoch that contains them.

The commit makes the epoch's state and output durable in one transaction: whatever fails after it, the row is part of
every result that depends on it, once. A sliding window puts its rows out when it closes; that a row is contained in the
partial counts of its windows is what the commit says. Files of results are published every second, as their sink is by
default; that wait is not counted, as for the other systems.
"""

from __future__ import annotations

import http.client
import json
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
from pyspark.sql import SparkSession

from holdfast.connect.sinks.file_sink import parquet
from holdfast.connect.sources.push import push
from holdfast.engine.observer import Observer
from holdfast.engine.options import RunOptions
from holdfast.epoch.epoch_times import EpochTimes, mean_times
from holdfast.epoch.report import EpochReport
from holdfast.errors import HoldfastError
from holdfast.graph.aggregates.sums import count
from holdfast.graph.pipeline import Pipeline
from holdfast.graph.policies import DELTA
from holdfast.graph.stream import Stream
from holdfast.graph.windows import sliding
from holdfast.run import start
from holdfast_lab.bench.open_loop import SCHEMA, CommitLog, LatencyOfRows, RowSchedule, ScheduledSource
from holdfast_lab.bench.push_client import PushedBatch, post
from holdfast_lab.workloads.queries import running_totals

__all__ = ["LOADS", "measured_latency"]

LATENCY = "10ms"
_SECONDS_TO_STAND = 120.0
"""Until the first row is committed: a crew starts meanwhile."""
_SECONDS_OF_CLIENT = 4.0
"""Until a client has started."""
_PATIENCE = 1.0
"""How many times the measured time is waited for rows that are not committed."""


def _sliding(rows: Stream, place: Path) -> None:
    counts = rows.key_by("key").window(sliding(60, 1), name="counts").agg(n=count())
    counts.sink("out", parquet(place))


def _keyed(rows: Stream, place: Path) -> None:
    totals = rows.key_by("key").process(
        running_totals,
        state={"n": pl.Int64, "total": pl.Int64},
        output={"key": pl.Int64, "event_time": pl.Int64, "n": pl.Int64, "total": pl.Int64},
        keep_forever=True,
        event_time="event_time",
        name="totals",
    )
    totals.sink("out", parquet(place))


LOADS: Mapping[str, tuple[Callable[[Stream, Path], None], int, bool]] = {
    "sliding": (_sliding, 1_000, False),
    "keyed": (_keyed, 100_000, False),
    "pushed": (_sliding, 1_000, True),
}
"""What is done with the rows, of how many keys, and whether clients push them: counts by key over 60 s every second, a
keyed process, and the same counts of rows that come over HTTP."""


class _Watch(Observer):
    """Notes the commits; says where the receivers listen, once they do."""

    def __init__(self) -> None:
        self.log = CommitLog()
        self.times: list[EpochTimes] = []
        self.port: int | None = None
        self._rows = 0

    def epoch_committed(self, report: EpochReport) -> None:
        self._rows += report.rows
        self.log.add(self._rows, report.committed)
        if report.times is not None:
            self.times.append(report.times)

    def wait(self, rows: int, gives_up: float) -> None:
        """Until so many rows are committed, or until a time."""
        _until(lambda: self._rows >= rows, gives_up)

    def listening(self, addresses: Mapping[str, Mapping[str, str]]) -> None:
        self.port = int(addresses["rows"]["http"].rpartition(":")[2])


def measured_latency(
    spark: SparkSession, load: str, rate: float, warm: float, seconds: float, place: Path
) -> tuple[LatencyOfRows, EpochTimes | None]:
    """Run a load at a rate; how long its rows took, and where the time of its epochs went."""
    build, keys, pushed = LOADS[load]
    schedule = RowSchedule(rate, warm, seconds, keys)
    begun: list[RowSchedule] = []
    pipeline = Pipeline("latency")
    source = push(SCHEMA, http="127.0.0.1:0", push_up=False) if pushed else ScheduledSource(schedule, begun.append)
    lateness = {"lateness": "1s"} if pushed else {}
    build(pipeline.source("rows", source, event_time="event_time", time_unit="us", **lateness), place / "out")
    options = RunOptions(store=place / "store", latency=LATENCY, executor="crew", checkpoint=DELTA)
    watch = _Watch()
    with start(pipeline, options, observer=watch, spark=spark) as running:
        if pushed:
            found = _pushed(schedule, watch)
        else:
            _until(lambda: bool(begun), time.time() + _SECONDS_TO_STAND)
            if not begun:
                raise _not_ready()
            watch.wait(schedule.rows, begun[0].end + _PATIENCE * seconds)
            found = watch.log.latency(begun[0], time.time())
        running.stop()
        running.wait()
    return found, mean_times(watch.times[len(watch.times) // 3 :])


def _until(ready: Callable[[], bool], gives_up: float) -> None:
    while not ready() and time.time() < gives_up:
        time.sleep(0.02)


def _not_ready() -> HoldfastError:
    return HoldfastError("the pipeline was not ready in time", cure="is the machine very busy? try again")


def _pushed(schedule: RowSchedule, watch: _Watch) -> LatencyOfRows:
    """A client in another process pushes; which rows are in a commit follows from their places in the p-stream."""
    _until(lambda: watch.port is not None, time.time() + _SECONDS_TO_STAND)
    if watch.port is None:
        raise _not_ready()
    connection = http.client.HTTPConnection("127.0.0.1", watch.port, timeout=60)
    post(connection, replace(schedule, began=time.time()).frame(0, 1), 0.0)
    connection.close()
    watch.wait(1, time.time() + _SECONDS_TO_STAND)
    schedule = replace(schedule, began=time.time() + _SECONDS_OF_CLIENT)
    given = (watch.port, schedule.keys, schedule.rate, schedule.warm, schedule.seconds, schedule.began)
    said = subprocess.run(
        [sys.executable, "-m", "holdfast_lab.bench.push_client", *map(str, given)],
        stdout=subprocess.PIPE, check=True, timeout=10 * (schedule.warm + schedule.seconds) + 60,
    )  # fmt: skip
    batches = [PushedBatch(*batch) for batch in json.loads(said.stdout)]
    counted = [batch for batch in batches if batch.due >= schedule.began + schedule.warm]
    watch.wait(batches[-1].offset + batches[-1].rows, schedule.end + _PATIENCE * schedule.seconds)
    rows = [batch.rows for batch in counted]  # rows are counted, not batches
    last = np.repeat(np.asarray([batch.offset + batch.rows - 1 for batch in counted], dtype=np.int64), rows)
    due = np.repeat(np.asarray([batch.due for batch in counted]), rows)
    return watch.log.latency_of(last, due, counted[0].offset, time.time())
