"""What the schemes are held against: the same query in plain Structured Streaming, its driver killed and started again.

`python -m holdfast.experiment.plain_restart SETTINGS` runs it until somebody kills it, where SETTINGS is a
`PlainSettings` as JSON. Whoever watches sees its progress in the directory of its checkpoint, where every batch that is
committed leaves a file.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

from holdfast.errors import EpochFailedError

__all__ = ["PlainSettings", "Restarted", "restarted"]

_POLL = 0.005
_PATIENCE = 180.0
_WARM_BATCHES = 8


@dataclass(frozen=True, slots=True)
class PlainSettings:
    """Visits come at a rate, and a batch is made every `tick` seconds, as the epochs of Holdfast."""

    home: str
    users: int
    rate: float
    tick: float

    @property
    def checkpoint(self) -> Path:
        return Path(self.home) / "checkpoint"

    def to_json(self) -> str:
        return json.dumps(asdict(self))


@dataclass(frozen=True, slots=True)
class Restarted:
    """`seconds` from the kill to the first batch that was committed after it; the start began at once. `gap` is the
    time without a batch."""

    seconds: float
    gap: float


def restarted(asked: PlainSettings, kills: int, say: Callable[[str], None]) -> list[Restarted]:
    """Run it, kill it so often when it has a rhythm, and start it again at once."""
    Path(asked.home).mkdir(parents=True)
    found = []
    process = _start(asked)
    try:
        for number in range(kills):
            _until(asked, _batches(asked) + _WARM_BATCHES)
            say(f"Structured Streaming: kill -9 {number + 1} of {kills}")
            killed = time.time()
            _kill(process)
            last, seen = _last_commit(asked), _batches(asked)
            process = _start(asked)
            _until(asked, seen + 1)
            again = _last_commit(asked)
            found.append(Restarted(again - killed, again - last))
    finally:
        _kill(process)
    return found


def _start(asked: PlainSettings) -> subprocess.Popen[bytes]:
    with (Path(asked.home) / "log").open("ab") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "holdfast.experiment.plain_restart", asked.to_json()],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )


def _kill(process: subprocess.Popen[bytes]) -> None:
    """kill -9 of Python and Java."""
    with contextlib.suppress(psutil.NoSuchProcess):
        driver = psutil.Process(process.pid)
        for each in (driver, *driver.children(recursive=True)):
            with contextlib.suppress(psutil.NoSuchProcess):
                each.kill()
    process.wait()


def _commits(asked: PlainSettings) -> list[Path]:
    place = asked.checkpoint / "commits"
    return [path for path in place.iterdir() if path.name.isdecimal()] if place.exists() else []


def _batches(asked: PlainSettings) -> int:
    return max((int(path.name) + 1 for path in _commits(asked)), default=0)


def _last_commit(asked: PlainSettings) -> float:
    return max(path.stat().st_mtime for path in _commits(asked))


def _until(asked: PlainSettings, batches: int) -> None:
    deadline, known = time.monotonic() + _PATIENCE, -1
    while (seen := _batches(asked)) < batches:
        if seen > known:
            deadline, known = time.monotonic() + _PATIENCE, seen
        if time.monotonic() > deadline:
            told = (Path(asked.home) / "log").read_text(errors="replace")[-2000:]
            raise EpochFailedError(f"Structured Streaming makes no progress:\n{told}", cure="run it again")
        time.sleep(_POLL)


def main(asked: PlainSettings) -> None:
    """The query of `tidal.py`, with Spark's own state store and its recommended settings."""
    from pyspark.sql import functions as F  # noqa: N812 - the name every PySpark program uses

    from holdfast.bench.queries import session
    from holdfast.workloads.spark_run import SPARK_SETTINGS

    with session("spark") as spark:
        for key, value in {**SPARK_SETTINGS, "spark.sql.shuffle.partitions": "2"}.items():
            spark.conf.set(key, value)
        visits = spark.readStream.format("rate").option("rowsPerSecond", round(asked.rate)).load()
        user = F.pmod(F.xxhash64("value"), F.lit(asked.users)).alias("user")
        size = F.pmod(F.col("value"), F.lit(200_000)).alias("bytes")
        page = F.concat(F.lit("/shop/item/"), F.pmod(F.col("value"), F.lit(10**8)), F.lit("?from=search")).alias("page")
        totals = (
            visits.select(user, size, page)
            .groupBy("user")
            .agg(F.count("*").alias("visits"), F.sum("bytes").alias("bytes"), F.last("page").alias("page"))
        )
        totals.writeStream.format("noop").outputMode("update").trigger(processingTime=f"{asked.tick} seconds").option(
            "checkpointLocation", str(asked.checkpoint)
        ).start().awaitTermination()


if __name__ == "__main__":
    main(PlainSettings(**json.loads(sys.argv[1])))
