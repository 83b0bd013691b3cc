"""`holdfast bench linear-road --profile`: where each microsecond of CPU time per tuple goes.

The tasks run in this process, one after the other, with Polars in one thread: what is spent is counted as CPU time, and
does not depend on what else the machine does. Functions of the product stand for the parts of the work; what one of
them calls that stands for another part counts there. The clock of the traffic moves by the latency from epoch to epoch.
"""

from __future__ import annotations

import inspect
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from functools import wraps
from pathlib import Path
from typing import Any

from holdfast.connect.sinks.file_sink import parquet
from holdfast.engine.committer import Committer
from holdfast.engine.fragment_run import FragmentRun
from holdfast.engine.in_process_platform import InProcessPlatform
from holdfast.engine.observer import Observer
from holdfast.engine.options import RunOptions
from holdfast.epoch import messages
from holdfast.epoch.report import EpochReport
from holdfast.operators import keyed_process, keyed_state
from holdfast.operators.keyed_process import process_output
from holdfast.state.tables import KeyedTable
from holdfast.store import OpenSegments
from holdfast.task import assembly_task
from holdfast.task.origin import Origin
from holdfast.task.outbox import Outbox
from holdfast.task.prepared_output import PreparedOutput
from holdfast.testkit.stepping import CutPace, EpochCut
from holdfast_lab.bench.road_run import RoadTraffic, application
from holdfast_lab.linear_road.expressway import Expressway
from holdfast_lab.linear_road.many_expressways import ArrivingRoads, ManyExpressways, arrivals

__all__ = ["PartMeter", "ProfileOptions", "RoadProfile", "measure_profile", "profiled_apart"]

MOST_ROWS = 2_000_000
_WARM_SECONDS = 30
_MINUTES = 1.0
"""Half of them are the warm-up: every vehicle has reported."""
PARTS = {
    "read": "making or reading the rows of an epoch",
    "lift": "stateless operators, and what is selected for each edge",
    "exchange": "rows by partition, into messages and out of them",
    "order": "rows of several upstream partitions in one order",
    "lookup": "keys found, and their state read",
    "function": "the functions of the application",
    "update": "state changed in memory",
    "write": "changes of state, encoded and appended",
    "notify": "answers into the files of the sink",
    "sync": "the CPU time of syncs, not the wait",
    "commit": "record and commit in the meta store, and what the driver does with it",
    "rest": "what is between",
}


@dataclass(frozen=True, slots=True)
class ProfileOptions:
    """`epochs` are those that are measured, each with the traffic of `latency` seconds."""

    expressways: int
    latency: float = 1.0
    epochs: int = 6
    partitions: int = 2
    checkpoint: str = "delta"
    seed: int = 1


@dataclass(frozen=True, slots=True)
class RoadProfile:
    """Microseconds of CPU time per tuple, by part."""

    expressways: int
    tuples: int
    epochs: int
    parts: dict[str, float]

    @property
    def total(self) -> float:
        return sum(self.parts.values())

    def lines(self) -> list[str]:
        lines = [f"L = {self.expressways}: {self.tuples:,} tuples in {self.epochs} epochs"]
        for name, spent in self.parts.items():
            share = spent / self.total if self.total else 0.0
            lines.append(f"  {name:<9}{spent:6.3f} µs {share:6.1%}  {PARTS[name]}")
        return [*lines, f"  {'all':<9}{self.total:6.3f} µs of CPU per tuple"]

    def to_json(self) -> dict[str, Any]:
        rounded = {name: round(spent, 4) for name, spent in self.parts.items()}
        return {**asdict(self), "parts": rounded, "cpu_us_per_tuple": round(self.total, 4)}


@dataclass(slots=True)
class PartMeter:
    """CPU time by part. It counts for the part that was entered last and not left."""

    _spent: dict[str, float] = field(default_factory=lambda: dict.fromkeys(PARTS, 0.0))
    _entered: list[str] = field(default_factory=lambda: ["rest"])
    _since: float = field(default_factory=time.process_time)

    def enter(self, part: str) -> None:
        self._count()
        self._entered.append(part)

    def leave(self) -> None:
        self._count()
        self._entered.pop()

    def reset(self) -> None:
        self._count()
        self._spent = dict.fromkeys(PARTS, 0.0)

    def taken(self) -> dict[str, float]:
        """Seconds by part, up to now."""
        self._count()
        return dict(self._spent)

    def _count(self) -> None:
        now = time.process_time()
        self._spent[self._entered[-1]] += now - self._since
        self._since = now

    def watch(self, owner: Any, name: str, part: str) -> None:
        """Have a function, or a generator, count for a part."""
        function = inspect.getattr_static(owner, name)
        setattr(owner, name, self._stepwise(function, part) if inspect.isgeneratorfunction(function)
                else self._whole(function, part))  # fmt: skip

    def _whole(self, function: Callable[..., Any], part: str) -> Callable[..., Any]:
        @wraps(function)
        def watched(*args: Any, **named: Any) -> Any:
            self.enter(part)
            try:
                return function(*args, **named)
            finally:
                self.leave()

        return watched

    def _stepwise(self, function: Callable[..., Iterator[Any]], part: str) -> Callable[..., Iterator[Any]]:
        @wraps(function)
        def watched(*args: Any, **named: Any) -> Iterator[Any]:
            made = function(*args, **named)
            while True:
                self.enter(part)
                try:
                    item = next(made)
                except StopIteration:
                    return
                finally:
                    self.leave()
                yield item

        return watched


def _watch_all(meter: PartMeter) -> None:
    meter.watch(ArrivingRoads, "read", "read")
    meter.watch(Origin, "collect", "lift")
    meter.watch(Outbox, "_cut", "exchange")
    meter.watch(assembly_task, "decode_frame", "exchange")
    meter.watch(messages, "_batch", "exchange")
    meter.watch(assembly_task, "_by_time", "order")
    meter.watch(keyed_process, "open_state", "lookup")
    meter.watch(process_output, "_call", "function")
    meter.watch(keyed_state._ResidentState, "write", "update")
    meter.watch(KeyedTable, "write", "write")
    meter.watch(KeyedTable, "append", "write")
    meter.watch(PreparedOutput, "deliver", "notify")
    meter.watch(OpenSegments, "sync", "sync")
    meter.watch(Committer, "commit", "commit")


@dataclass(slots=True)
class _Epochs(Observer):
    """Moves the clock of the traffic, once its warm-up is over, and ends the measurement."""

    source: ArrivingRoads
    warm: int
    meter: PartMeter
    options: ProfileOptions
    now: float = 0.0
    rows: int = 0
    measured: list[int] = field(default_factory=list)
    parts: dict[str, float] = field(default_factory=dict)

    def epoch_committed(self, report: EpochReport) -> None:
        self.rows += report.rows
        begun = self.source.end is not None
        if begun and len(self.measured) < self.options.epochs:
            self.measured.append(report.rows)
            if len(self.measured) == self.options.epochs:
                tuples, taken = max(1, sum(self.measured)), self.meter.taken()
                self.parts = {name: 1e6 * taken[name] / tuples for name in PARTS}
        elif not begun and self.rows >= self.warm:
            self.source.begin()
            self.meter.reset()
        self.now += self.options.latency


def measure_profile(options: ProfileOptions, place: Path) -> RoadProfile:
    """Run the application in this process. Functions of the product stay wrapped: it is a process for this alone."""
    traffic = RoadTraffic.of(Expressway.peak(options.seed, _MINUTES), _WARM_SECONDS)
    roads = ManyExpressways.of(traffic.one, options.expressways, place / "one.arrow")
    meter = PartMeter()
    source = ArrivingRoads(roads, arrivals(traffic.one), traffic.warm, 1.0, lambda: watch.now)
    watch = _Epochs(source, traffic.warm * options.expressways, meter, options)
    pipeline = application().linear_road(source, roads.table(traffic.history), parquet(place / "answers"))
    _watch_all(meter)
    settings = RunOptions(
        store=place / "store",
        volatile=place / "volatile",
        tasks=options.partitions,
        partitions=options.partitions,
        checkpoint=options.checkpoint,
        overlap=False,
        poll=0.0,
        max_epochs=options.epochs + 1 + -(-watch.warm // MOST_ROWS),
    )
    FragmentRun(
        pipeline, InProcessPlatform(), settings, observer=watch, pace=CutPace(EpochCut(rows=MOST_ROWS))
    ).run()  # fmt: skip
    return RoadProfile(options.expressways, sum(watch.measured), len(watch.measured), watch.parts)


def profiled_apart(options: ProfileOptions) -> RoadProfile:
    """Measured in a process of its own, in which Polars has one thread, as in the tasks of a crew."""
    done = subprocess.run(
        [sys.executable, "-m", "holdfast_lab.bench.road_profile", json.dumps(asdict(options))],
        env={**os.environ, "POLARS_MAX_THREADS": "1"}, stdout=subprocess.PIPE, text=True, check=True,
    )  # fmt: skip
    told = json.loads(done.stdout.splitlines()[-1])
    return RoadProfile(told["expressways"], told["tuples"], told["epochs"], told["parts"])


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="hf-road-") as directory:
        print(json.dumps(measure_profile(ProfileOptions(**json.loads(sys.argv[1])), Path(directory)).to_json()))
