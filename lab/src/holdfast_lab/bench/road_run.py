"""Linear Road at one number of expressways: its rows arrive by the clock, and every answer is timed and checked.

It begins with the traffic of the minutes before, as fast as it can be taken, so that every vehicle on the road is known
and has an account; then rows arrive in real time, or so many times faster, however far the system is behind. An answer
has taken from the arrival of its row to the commit of the epoch that contains it: the commit makes it durable, with all
state, and whatever fails after it the answer will be seen, once. Of each epoch it is known how many answers its rows
must get, and so whether they came with it; all answers are compared with the expected ones when the run is over.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl
from pyspark import cloudpickle
from pyspark.sql import SparkSession

from holdfast.connect.sinks.file_sink import parquet
from holdfast.engine.observer import Observer
from holdfast.engine.options import RunOptions
from holdfast.epoch.epoch_times import EpochTimes, mean_times
from holdfast.epoch.report import EpochReport
from holdfast.errors import HoldfastError
from holdfast.graph.policies import PolicyLike
from holdfast.run import start
from holdfast.run_handle import Running
from holdfast_lab.bench.memory_watch import MemoryUse, MemoryWatch, processor_seconds
from holdfast_lab.linear_road.expected_answers import ANSWER_KINDS, ExpectedAnswers, Verdict, past_tolls
from holdfast_lab.linear_road.expressway import Expressway
from holdfast_lab.linear_road.many_expressways import ArrivingRoads, ManyExpressways, arrivals

__all__ = [
    "LIMITS",
    "RoadFigures",
    "RoadOptions",
    "RoadTraffic",
    "answer_latency",
    "application",
    "bytes_of_files",
    "measure_roads",
]

LIMITS = {"toll": 5.0, "accident": 5.0, "balance": 5.0, "expenditure": 10.0}
"""Seconds within which answers must be there."""
_SECONDS_TO_STAND = 300.0
_PATIENCE = 20.0
"""Seconds that are waited after the last row has arrived."""
_LOOK = 0.05
_DISK_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class RoadOptions:
    """`minutes` of the heaviest traffic are measured, or all three hours if there are as many; `compress` is how many
    times faster than real time they arrive; `warm` minutes before them are taken first."""

    minutes: float = 1.0
    warm: float = 1.0
    compress: float = 1.0
    seed: int = 1
    latency: float = 0.5
    checkpoint: PolicyLike = "delta"
    partitions: int = 2


@dataclass(frozen=True, slots=True)
class RoadTraffic:
    """The traffic of one expressway, and what it must be answered."""

    one: pl.DataFrame
    history: pl.DataFrame
    expected: ExpectedAnswers
    warm: int
    """How many of its rows come before those that are measured."""

    @staticmethod
    def of(expressway: Expressway, warm_seconds: float) -> RoadTraffic:
        one = expressway.rows()
        history = past_tolls(one)
        warm = int(one["time"].search_sorted(warm_seconds))
        return RoadTraffic(one, history, ExpectedAnswers.of(one, history), warm)

    @staticmethod
    def heaviest(options: RoadOptions) -> RoadTraffic:
        return RoadTraffic.of(Expressway.peak(options.seed, options.warm + options.minutes), 60 * options.warm)


@dataclass(frozen=True, slots=True)
class AnswerLatency:
    """Of one kind of answers, in seconds."""

    answers: int
    p50: float
    p95: float
    p99: float
    most: float
    late: int

    @staticmethod
    def of(seconds: npt.NDArray[np.float64], twins: int, limit: float) -> AnswerLatency:
        p50, p95, p99, most = (round(float(value), 4) for value in np.quantile(seconds, [0.5, 0.95, 0.99, 1.0]))
        return AnswerLatency(len(seconds) * twins, p50, p95, p99, most, int(np.count_nonzero(seconds > limit)) * twins)


@dataclass(frozen=True, slots=True)
class RoadFigures:
    """Of one number of expressways. `verdict` is None if not all rows were committed in time; `unsteady` are epochs in
    which other answers came than those of their rows. Bytes are the most that were seen."""

    expressways: int
    tuples_per_s: float
    seconds: float
    latency: Mapping[str, AnswerLatency]
    overall: AnswerLatency | None
    verdict: Verdict | None
    unsteady: int
    warm_tuples_per_s: float
    cpu_us_per_tuple: float
    epochs: int
    times: EpochTimes | None
    memory: MemoryUse
    disk: int
    state_rows: int
    engine: str = "holdfast"

    @property
    def holds(self) -> bool:
        """All answers are right and in time."""
        right = self.verdict is not None and self.verdict.right and not self.unsteady
        return right and not any(found.late for found in self.latency.values())

    @property
    def answers(self) -> str:
        """Which ones are given."""
        return "answers" if self.engine == "holdfast" else "toll notifications"

    def lines(self) -> list[str]:
        kept = "all answers right and in time" if self.holds else "does not hold"
        part = "" if self.engine == "holdfast" else f" ({self.engine}, {self.answers} alone)"
        lines = [f"L = {self.expressways}{part}: {kept}; {self.tuples_per_s:,.0f} tuples/s for {self.seconds:.0f} s"]
        for name, found in self.latency.items():
            late = f", {found.late:,} late" if found.late else ""
            lines.append(
                f"  {name}: {found.answers:,} answers, p50 {found.p50:.3f}, p95 {found.p95:.3f}, p99 {found.p99:.3f}, "
                f"most {found.most:.3f} s{late}"
            )
        if self.verdict is None:
            lines.append("  it did not keep up: not all rows were committed")
        elif not self.verdict.right:
            lines.append(f"  missing {self.verdict.missing}, extra {self.verdict.extra}")
        if self.unsteady:
            lines.append(f"  {self.unsteady} epochs had other answers than those of their rows")
        memory = (self.memory.driver + self.memory.java + self.memory.workers) / 1e9
        epochs = f"{self.epochs} epochs of {self.times}" if self.times else f"{self.epochs} commits"
        rows = f", {self.state_rows:,} rows of state" if self.state_rows else ""
        lines.append(
            f"  {epochs}; {self.cpu_us_per_tuple:.2f} µs of CPU per tuple; memory "
            f"{memory:.1f} GB, disk {self.disk / 1e9:.2f} GB{rows}; before it, "
            f"{self.warm_tuples_per_s:,.0f} tuples/s"
        )
        return lines

    def to_json(self) -> dict[str, Any]:
        return {
            "l": self.expressways,
            "engine": self.engine,
            "holds": self.holds,
            "tuples_per_s": round(self.tuples_per_s),
            "seconds": round(self.seconds, 1),
            "latency_s": {name: asdict(found) for name, found in self.latency.items()},
            "overall_s": None if self.overall is None else asdict(self.overall),
            "verdict": None if self.verdict is None else asdict(self.verdict),
            "checked": f"all {self.answers} of all expressways",
            "unsteady_epochs": self.unsteady,
            "warm_up_tuples_per_s": round(self.warm_tuples_per_s),
            "cpu_us_per_tuple": round(self.cpu_us_per_tuple, 3),
            "epochs": self.epochs,
            "times_ms": None if self.times is None else {n: round(1e3 * s, 2) for n, s in self.times.parts().items()},
            "memory_bytes": self.memory.to_json(),
            "disk_bytes": self.disk,
            "state_rows": self.state_rows,
        }


@lru_cache(maxsize=1)
def application() -> Any:
    """The module of the example that declares the pipeline. Tasks get its functions by value, as from a script."""
    folder = Path(__file__).parents[4] / "examples" / "linear_road"
    if not (folder / "road.py").exists():
        raise HoldfastError(
            "the example `linear_road` is not here", cure="run the benchmark from a checkout of the project"
        )
    sys.path.insert(0, str(folder))
    try:
        road = import_module("road")
        for name in ("road", "trips", "tolls", "accounts"):
            cloudpickle.register_pickle_by_value(sys.modules[name])  # type: ignore[no-untyped-call]
    finally:
        sys.path.remove(str(folder))
    return road


@dataclass(slots=True)
class _RoadWatch(Observer):
    """Notes the commits. The clock of the traffic begins when what comes before it is committed."""

    source: ArrivingRoads
    warm: int
    rows: list[int] = field(default_factory=lambda: [0])
    committed: list[float] = field(default_factory=lambda: [0.0])
    answers: list[int] = field(default_factory=lambda: [0])
    times: list[EpochTimes] = field(default_factory=list)
    used: float = 0.0
    state_rows: int = 0

    def epoch_committed(self, report: EpochReport) -> None:
        self.rows.append(self.rows[-1] + report.rows)
        self.committed.append(report.committed)
        self.answers.append(report.output_rows)
        self.state_rows = report.state_rows
        if self.source.end is not None and report.times is not None:
            self.times.append(report.times)
        if self.source.end is None and self.rows[-1] >= self.warm:
            self.used = processor_seconds()
            self.source.begin()


def measure_roads(
    spark: SparkSession, expressways: int, traffic: RoadTraffic, options: RoadOptions, place: Path
) -> RoadFigures:
    """Run the application on so many expressways."""
    place.mkdir(parents=True, exist_ok=True)
    roads = ManyExpressways.of(traffic.one, expressways, place / "one.arrow")
    source = ArrivingRoads(roads, arrivals(traffic.one), traffic.warm, options.compress, time.time)
    watch = _RoadWatch(source, traffic.warm * expressways)
    pipeline = application().linear_road(source, roads.table(traffic.history), parquet(place / "answers"))
    settings = RunOptions(
        store=place / "store",
        latency=options.latency,
        partitions=options.partitions,
        checkpoint=options.checkpoint,
        executor="crew",
    )
    began, most_disk, every = time.time(), 0, roads.rows * expressways
    with MemoryWatch() as memory, start(pipeline, settings, observer=watch, spark=spark) as running:
        looked = 0.0
        while watch.rows[-1] < every and not _ended(running):
            now, end = time.time(), source.end
            if now > (began + _SECONDS_TO_STAND if end is None else end + _PATIENCE):
                break
            if now - looked > _DISK_SECONDS:
                most_disk, looked = max(most_disk, bytes_of_files(place)), now
        gave_up, used = time.time(), processor_seconds() - watch.used
        running.stop()
        running.wait()
    if source.end is None:
        raise HoldfastError(
            f"the traffic before the measurement was not taken within {_SECONDS_TO_STAND:.0f} s",
            cure="measure fewer expressways",
        )
    whole = watch.rows[-1] >= every
    verdict = traffic.expected.compare(pl.scan_parquet(place / "answers"), roads) if whole else None
    return _figures(
        traffic, roads, source, watch, verdict, gave_up, used, memory.most, max(most_disk, bytes_of_files(place))
    )


def answer_latency(
    traffic: RoadTraffic, count: int, contained: npt.NDArray[np.int64], done: npt.NDArray[np.float64],
    arrived: npt.NDArray[np.float64],
) -> tuple[dict[str, AnswerLatency], AnswerLatency | None]:  # fmt: skip
    """By kind, and of all kinds: from the arrival of a row to the first commit that contains it. Commits contain so
    many rows of the one expressway; the last time in `done` is that of what none of them contains."""
    warm = traffic.warm
    seconds = done[np.searchsorted(contained, np.arange(warm, traffic.one.height), side="right")] - arrived
    latency = {
        name: AnswerLatency.of(seconds[gets], count, LIMITS[name])
        for kind, name in ANSWER_KINDS.items()
        if (gets := traffic.expected.gets(kind)[warm:]).any()
    }
    any_kind = traffic.expected.kinds[warm:] > 0
    return latency, AnswerLatency.of(seconds[any_kind], count, LIMITS["toll"]) if any_kind.any() else None


def _figures(
    traffic: RoadTraffic, roads: ManyExpressways, source: ArrivingRoads, watch: _RoadWatch, verdict: Verdict | None,
    gave_up: float, used: float, memory: MemoryUse, disk: int,
) -> RoadFigures:  # fmt: skip
    contained, warm = np.asarray(watch.rows) // roads.count, traffic.warm
    done = np.append(np.asarray(watch.committed), gave_up)
    latency, overall = answer_latency(traffic, roads.count, contained, done, source.arrived())
    due = np.diff(traffic.expected.answers()[contained]) * roads.count
    first = int(np.searchsorted(contained, warm))
    committed = int(watch.rows[-1]) - warm * roads.count
    last = source.end or gave_up
    return RoadFigures(
        expressways=roads.count,
        tuples_per_s=(roads.rows - warm) * roads.count / (last - float(source.arrived()[0])),
        seconds=last - float(source.arrived()[0]),
        latency=latency,
        overall=overall,
        verdict=verdict,
        unsteady=int(np.count_nonzero(due != np.asarray(watch.answers)[1:])),
        warm_tuples_per_s=(warm * roads.count - watch.rows[1]) / max(1e-6, watch.committed[first] - watch.committed[1]),
        cpu_us_per_tuple=1e6 * used / max(1, committed),
        epochs=len(watch.times),
        times=mean_times(watch.times),
        memory=memory,
        disk=disk,
        state_rows=watch.state_rows,
    )


def _ended(running: Running) -> bool:
    """Whether it has ended by itself, after a moment."""
    try:
        running.wait(_LOOK)
    except TimeoutError:
        return False
    return True


def bytes_of_files(folder: Path) -> int:
    """The bytes of all files below; those that go meanwhile do not count."""
    total = 0
    for path in folder.rglob("*"):
        try:
            total += path.stat().st_size if path.is_file() else 0
        except FileNotFoundError:
            continue
    return total
