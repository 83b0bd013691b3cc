"""What the schemes are held against: the same query in plain Structured Streaming, its driver killed and started again.

`python -m holdfast_lab.experiment.streammine3g.plain_restart SETTINGS` runs it until somebody kills it, where SETTINGS
is a `PlainSettings` as JSON. Whoever watches sees its progress in the directory of its checkpoint, where every batch
that is committed leaves a file.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import polars as pl
import psutil
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the name that everybody gives it

from holdfast.errors import EpochFailedError
from holdfast_lab.bench.query_runs import session
from holdfast_lab.experiment.streammine3g.tidal_visits import BLOCK_ROWS, TOLD_EVERY, read_block
from holdfast_lab.workloads.spark_run import SPARK_SETTINGS

__all__ = ["PlainSettings", "Restarted", "restarted"]

_POLL = 0.005
_PATIENCE = 180.0
_WARM_BATCHES = 8


@dataclass(frozen=True, slots=True)
class PlainSettings:
    """Visits of the same blocks come at a rate, and a batch is made every `tick` seconds, as the epochs of Holdfast."""

    home: str
    blocks: str
    rate: float
    tick: float
    padding: int

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
            [sys.executable, "-m", "holdfast_lab.experiment.streammine3g.plain_restart", asked.to_json()],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )


def _kill(process: subprocess.Popen[bytes]) -> None:
    """kill -9 of Python and Java."""
    with contextlib.suppress(psutil.NoSuchProcess):
        driver = psutil.Process(process.pid)
        for member in (driver, *driver.children(recursive=True)):
            with contextlib.suppress(psutil.NoSuchProcess):
                member.kill()
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
    """The query of `tidal.py`, with Spark's own state store and its recommended settings: the same blocks are read by
    the same Python function, the totals are as large, and what is told goes to Parquet files."""

    def read(numbers: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in numbers:
            for number in batch.column("value").to_pylist():
                yield from _as_spark(read_block(Path(asked.blocks), number)).to_batches()

    def told(totals: DataFrame, batch: int) -> None:
        every = totals.filter(F.pmod("visits", F.lit(TOLD_EVERY)) == 0).drop("page")
        every.write.mode("overwrite").parquet(f"{asked.home}/out/{batch}")

    with session("spark") as spark:
        for key, value in {**SPARK_SETTINGS, "spark.sql.shuffle.partitions": "2"}.items():
            spark.conf.set(key, value)
        blocks = spark.readStream.format("rate").option("rowsPerSecond", round(asked.rate / BLOCK_ROWS)).load()
        page = F.concat(F.last("page"), F.lit("." * asked.padding)).alias("page")
        totals = (
            blocks.select("value")
            .mapInArrow(read, "user long, page string, bytes long")
            .groupBy("user")
            .agg(F.count("*").alias("visits"), F.sum("bytes").alias("bytes"), page)
        )
        totals.writeStream.foreachBatch(told).outputMode("update").trigger(
            processingTime=f"{asked.tick} seconds"
        ).option("checkpointLocation", str(asked.checkpoint)).start().awaitTermination()


def _as_spark(visits: pl.DataFrame) -> pa.Table:
    """With the types that Spark takes for strings."""
    return visits.to_arrow(compat_level=pl.CompatLevel.oldest())


if __name__ == "__main__":
    main(PlainSettings(**json.loads(sys.argv[1])))
