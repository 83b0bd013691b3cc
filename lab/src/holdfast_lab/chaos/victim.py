"""The process that chaos kills: runs a query on a bounded input and tells of every commit.

`python -m holdfast_lab.chaos.victim SETTINGS` where SETTINGS is a `VictimSettings` as JSON. What happens is
appended to a file of JSON lines, which survives the process.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.connect.base import Chunk, Position, Slice, Source, Take
from holdfast.connect.sources.replay import ReplaySource, replay
from holdfast.engine.options import RunOptions
from holdfast.graph.durations import ticks
from holdfast.graph.policies import as_policy
from holdfast.plan.executor_choice import ExecutorName
from holdfast_lab.chaos.run_events import EventWriter, WriteEvent, run_with_events
from holdfast_lab.workloads.queries import Query, query

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["PIPELINE", "MeteredSource", "VictimSettings", "bounded_input", "endless_input", "rows_per_epoch"]

PIPELINE = "victim"

_LEAST_ROWS, _MOST_ROWS = 1_000, 500_000
_INTERVAL = 2.0


@dataclass(frozen=True, slots=True)
class VictimSettings:
    """What to run and where. Epochs have exactly `epoch_rows` rows and are at least `pause` seconds apart. With
    `persist` the events go through a p-stream, whose two sides both run in the victim."""

    query: str
    rows: int
    epoch_rows: int
    pause: float
    home: str
    input: str
    master: str | None = None
    partitions: int = 2
    persist: bool = False
    checkpoint: str = "auto"
    executor: ExecutorName | None = None
    source: str = "replay"
    sink: str = "parquet"
    servers: Mapping[str, str] = field(default_factory=dict)
    """Where the servers of source and sink are, by their names (`campaign_ends.py`)."""

    @property
    def volatile(self) -> Path:
        return Path(self.home) / "volatile"

    @property
    def store(self) -> Path:
        return Path(self.home) / "store"

    @property
    def output(self) -> Path:
        return Path(self.home) / "out"

    @property
    def events(self) -> Path:
        return Path(self.home) / "events.jsonl"

    @property
    def fragment(self) -> str:
        """The fragment that puts out the results: what a person waits for after a fault."""
        return f"{PIPELINE}.results" if self.persist else PIPELINE

    def to_json(self) -> str:
        return json.dumps(asdict(self))


class MeteredSource(Source):
    """Whole takes of another source, at least `pause` seconds apart in the process that plans them.

    A rate of the source itself would cut epochs by the clock; these are the same in every run.
    """

    def __init__(self, inner: Source, pause: float) -> None:
        self.inner = inner
        self.pause = pause
        self.schema = inner.schema
        self.bounded = inner.bounded
        self.keeps = inner.keeps
        self.in_order = inner.in_order
        self._next = 0.0

    def start(self) -> Position:
        return self.inner.start()

    def take(self, position: Position, rows: int, pieces: int) -> Take:
        now = time.monotonic()
        if now < self._next:
            return Take((), position)
        self._next = now + self.pause
        return self.inner.take(position, rows, pieces)

    def read(self, piece: Slice) -> Iterator[Chunk]:
        return self.inner.read(piece)

    def lag(self, position: Position) -> int | None:
        return self.inner.lag(position)


def rows_per_epoch(asked: Query) -> int:
    """So many rows that about every second epoch closes a window, within reason."""
    if not asked.sizes:
        return 5 * _LEAST_ROWS
    events = asked.dataset.load()
    per_second = events.height * ticks("1s", asked.dataset.time_unit) / asked.dataset.period(events)
    return int(min(_MOST_ROWS, max(_LEAST_ROWS, per_second * asked.slide / 2)))


def bounded_input(asked: Query, rows: int, directory: Path) -> ReplaySource:
    """The first `rows` rows of the query's dataset, repeated with shifted times."""
    return _replayed(asked, rows, directory)


def endless_input(asked: Query, directory: Path) -> ReplaySource:
    """The same rows, without an end."""
    return _replayed(asked, None, directory)


def _replayed(asked: Query, rows: int | None, directory: Path) -> ReplaySource:
    events = asked.dataset.load()
    return replay(events, asked.dataset.event_time, rows=rows, period=asked.dataset.period(events), directory=directory)


def main(settings: VictimSettings) -> int:
    """Run the query to the end of its input, wherever an earlier process has left it."""
    from holdfast.engine.fragment_runs import FragmentsRun  # noqa: PLC0415 - Spark is slow to import
    from holdfast.engine.spark_platform import SparkPlatform  # noqa: PLC0415 - Spark is slow to import
    from holdfast_lab.chaos.campaign_ends import sink_of, source_of  # noqa: PLC0415 - it needs this module

    def prepare(tell: WriteEvent) -> Callable[[SparkSession], object]:
        asked = query(settings.query)
        source, sink = source_of(settings, asked), sink_of(settings)
        persist: dict[str, object] | None = {} if settings.persist else None
        pipeline = asked.build(source, sink, pipeline_name=PIPELINE, persist=persist)
        options = RunOptions(
            store=settings.store,
            partitions=settings.partitions,
            least_rows=settings.epoch_rows,
            most_rows=settings.epoch_rows,
            checkpoint=as_policy(settings.checkpoint),
            volatile=settings.volatile,
            executor=settings.executor,
            interval=_INTERVAL,
            poll=min(0.02, settings.pause / 4) if settings.pause else 0.02,
        )

        return lambda spark: FragmentsRun(pipeline, SparkPlatform(spark), options, observer=EventWriter(tell)).run()

    return run_with_events(settings.events, prepare, app="holdfast victim", master=settings.master)


if __name__ == "__main__":
    sys.exit(main(VictimSettings(**json.loads(sys.argv[1]))))
