"""The toll notifications of Linear Road in Flink: a job of the DataStream API in Java, its fastest form.

From Python every report would pass through a Python process, and SQL cannot say what a trip or an accident is without
joins of streams by minute that wait for watermarks. The classes in `linear_road/flink/` are compiled here, by the JDK's
compiler. There is one keyed operator, by expressway and direction, so reports are exchanged once and stay in order. Its
state is on the heap, where Flink is fastest, each entry packed into one long.

Checkpoints are aligned and exactly once, one in every `latency` seconds. The file sink shows what a checkpoint has
completed, so an answer is there when the first checkpoint is complete that has its report: readers note how far they
were with each of them. What the sink takes to rename files after that is not counted, as elsewhere.
"""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from holdfast.errors import EpochFailedError, HoldfastError
from holdfast.spark.java import find_java
from holdfast_lab.bench.open_loop import CommitLog
from holdfast_lab.bench.road_elsewhere import TOLLS, RoadPeer, RoadSchedule
from holdfast_lab.bench.road_run import RoadOptions
from holdfast_lab.workloads.flink_cluster import FlinkJob, flink_session
from holdfast_lab.workloads.flink_install import ensure_flink
from holdfast_lab.workloads.flink_run import flink_settings

__all__ = ["compile_job", "flink_peer"]

_SOURCES = Path(__file__).parents[1] / "linear_road" / "flink"
_REPORT = np.dtype(
    {
        "names": ["after", "time", "vid", "pos", "spd", "lane", "dir", "seg"],
        "formats": ["<f8", "<i4", "<i4", "<i4", "<i2", "i1", "i1", "i1"],
        "itemsize": 32,
    }
)
"""A record of the file that `ArrivingReports.java` reads."""
_HEAP = "6g"
_SECONDS_TO_COMPILE = 300
_SECONDS_TO_SHOW = 60.0
_LOOK = 0.1


@contextmanager
def flink_peer(schedule: RoadSchedule, options: RoadOptions, place: Path) -> Iterator[RoadPeer]:
    """Flink in a Java process of its own."""
    classes = compile_job(place / "classes")
    _write(schedule, place / "reports")
    settings = {
        **flink_settings(place, checkpoints=True, heap=True),
        "execution.checkpointing.interval": f"{round(1_000 * options.latency)} ms",
        "parallelism.default": str(options.partitions),
        "taskmanager.numberOfTaskSlots": str(options.partitions),
        "restart-strategy.type": "none",
        "web.checkpoints.history": "100000",
    }

    def start(java: Any, configuration: Any) -> Any:
        reports = java.road.ArrivingReports(
            str(place / "reports"), str(schedule.began), str(place / "position"), schedule.roads.count,
            schedule.roads.vehicles, schedule.warm,
        )  # fmt: skip
        return java.road.TollJob.start(configuration, reports, (place / "answers").as_uri())

    with flink_session(place / "flink", settings, classes=classes, heap=_HEAP) as session:
        job = session.submit(start)
        try:
            yield _FlinkPeer(job, options.partitions, place)
        finally:
            job.cancel()


def compile_job(classes: Path) -> Path:
    """Compile the job into a directory."""
    beside = find_java().home / "bin" / "javac"
    compiler = str(beside) if beside.exists() else shutil.which("javac")
    if compiler is None:
        raise HoldfastError(
            "Linear Road's job for Flink is in Java, and there is no compiler for it",
            cure="install a JDK of version 17 or newer and set JAVA_HOME to its directory",
        )
    sources = [str(path) for path in sorted(_SOURCES.glob("*.java"))]
    command = [compiler, "-nowarn", "-d", str(classes), "-cp", str(ensure_flink() / "*"), *sources]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS_TO_COMPILE)
    if done.returncode:
        raise HoldfastError(
            f"Linear Road's job for Flink was not compiled: {done.stderr.strip()[-2_000:]}",
            cure="use a JDK of version 17 or newer",
        )
    return classes


def _write(schedule: RoadSchedule, path: Path) -> None:
    """The reports of the one expressway, with the seconds after which each arrives."""
    one = pl.read_ipc(schedule.roads.path)
    records = np.zeros(one.height, _REPORT)
    records["after"][schedule.warm :] = schedule.after
    for name in _REPORT.names[1:] if _REPORT.names else ():
        records[name] = one[name].to_numpy()
    records.tofile(path)


class _FlinkPeer:
    def __init__(self, job: FlinkJob, readers: int, place: Path) -> None:
        self._job, self._readers, self._place = job, readers, place
        self._log = CommitLog()
        self._completed = 0

    def commits(self) -> CommitLog:
        told = self._job.get("/checkpoints")
        if told is None or not self._job.running():
            self._job.wait()  # says what went wrong
            raise EpochFailedError("Flink's job has ended", cure="see flink.log")
        before = self._positions()
        new = [entry for entry in told["history"] if entry["status"] == "COMPLETED" and entry["id"] > self._completed]
        for entry in sorted(new, key=lambda entry: int(entry["id"])):
            self._completed = int(entry["id"])
            if self._completed in before:
                done = entry["trigger_timestamp"] + entry["end_to_end_duration"]
                self._log.add(before[self._completed], done / 1_000)
        return self._log

    def _positions(self) -> dict[int, int]:
        """By checkpoint, how many reports all readers have read before it; of those that all of them have noted."""
        read: dict[int, list[int]] = {}
        for path in self._place.glob("position-*"):
            for line in path.read_text().splitlines(keepends=True):
                if line.endswith("\n"):
                    checkpoint, _, rows = map(int, line.split(","))
                    read.setdefault(checkpoint, []).append(rows)
        return {checkpoint: min(rows) for checkpoint, rows in read.items() if len(rows) == self._readers}

    def answers(self) -> pl.LazyFrame:
        """The sink renames the files of a checkpoint when it hears that it is complete, before it takes part in the one
        after the next."""
        last, end = self._completed, time.time() + _SECONDS_TO_SHOW
        while self._completed < last + 2:
            if time.time() > end:
                raise EpochFailedError("Flink completes no checkpoint any more", cure="see flink.log")
            time.sleep(_LOOK)
            self.commits()
        files = sorted((self._place / "answers").glob("part-*"))
        if not files:
            return pl.LazyFrame(schema=TOLLS)
        return pl.scan_csv(files, has_header=False, schema=TOLLS)
