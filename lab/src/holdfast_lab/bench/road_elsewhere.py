"""The toll notifications of Linear Road in another system, timed and checked as Holdfast's are.

It is a part of the benchmark: position reports alone arrive, and vehicles are told tolls, which depend on trips,
accidents and the statistics of segments. There are no alerts, accounts and requests. The reports before those that are
measured are there at once; when all of them are committed the clock begins, and the rest arrives in real time. A system
under measurement reads the same schedule in processes of its own, so it learns from a file when the clock has begun.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
import polars as pl

from holdfast.errors import HoldfastError
from holdfast_lab.bench.memory_watch import MemoryWatch, processor_seconds
from holdfast_lab.bench.open_loop import CommitLog
from holdfast_lab.bench.road_run import RoadFigures, RoadOptions, RoadTraffic, answer_latency, bytes_of_files
from holdfast_lab.linear_road.expected_answers import ExpectedAnswers
from holdfast_lab.linear_road.many_expressways import ManyExpressways, arrivals
from holdfast_lab.linear_road.small_traffic import INPUT_SCHEMA

__all__ = ["REPORT", "TOLLS", "OpenPeer", "RoadPeer", "RoadSchedule", "measure_peer", "tolls_alone"]

REPORT = ("time", "vid", "spd", "xway", "lane", "dir", "seg", "pos")
"""The columns of a position report."""
TOLLS = pl.Schema(
    [(name, INPUT_SCHEMA[name]) for name in ("time", "vid", "xway", "dir", "seg")]
    + [("lav", pl.Int16()), ("amount", pl.Int64())]
)
"""What is told."""

_SECONDS_TO_STAND = 300.0
_PATIENCE = 20.0
"""Seconds that are waited after the last report has arrived."""
_LOOK = 0.1


@dataclass(frozen=True, slots=True)
class RoadSchedule:
    """When reports arrive: the first `warm` of the one expressway at once, each of the others so many seconds `after`
    the time in the file `began`."""

    roads: ManyExpressways
    warm: int
    after: npt.NDArray[np.float64]
    began: Path

    @staticmethod
    def of(traffic: RoadTraffic, expressways: int, speed: float, place: Path) -> RoadSchedule:
        roads = ManyExpressways.of(traffic.one, expressways, place / "one.arrow")
        arrives = arrivals(traffic.one)[traffic.warm :]
        return RoadSchedule(roads, traffic.warm, (arrives - arrives[0]) / speed, place / "began")

    def begin(self, now: float) -> None:
        draft = self.began.with_suffix(".draft")
        draft.write_text(repr(now))
        draft.rename(self.began)

    def beginning(self) -> float | None:
        """None until it begins."""
        return float(self.began.read_text()) if self.began.exists() else None

    def due(self, now: float, beginning: float | None) -> int:
        """How many reports of the one expressway are there."""
        if beginning is None:
            return self.warm
        return self.warm + int(np.searchsorted(self.after, now - beginning, side="right"))


class RoadPeer(Protocol):
    """A system that runs."""

    def commits(self) -> CommitLog:
        """How many reports of the one expressway its commits contain, and when they were there. Raises if it has
        failed."""
        ...

    def answers(self) -> pl.LazyFrame:
        """What its sink shows, in the columns `TOLLS`, when all is committed."""
        ...


OpenPeer: TypeAlias = Callable[[RoadSchedule, RoadOptions, Path], AbstractContextManager[RoadPeer]]


def tolls_alone(traffic: RoadTraffic) -> RoadTraffic:
    """The position reports of the traffic, and the toll notifications they must get."""
    reports = (traffic.one["type"] == 0).to_numpy()
    rows = np.flatnonzero(reports)
    expected: ExpectedAnswers = traffic.expected.tolls_alone(rows)
    warm = int(np.count_nonzero(reports[: traffic.warm]))
    return RoadTraffic(traffic.one.filter(pl.col("type") == 0), traffic.history.clear(), expected, warm)


def measure_peer(
    engine: str, opened: OpenPeer, expressways: int, traffic: RoadTraffic, options: RoadOptions, place: Path,
    *, patience: float = _PATIENCE,
) -> RoadFigures:  # fmt: skip
    """Run it on so many expressways. `traffic` has position reports alone. After the last of them has arrived,
    `patience` seconds are waited for its commit."""
    place.mkdir(parents=True, exist_ok=True)
    schedule = RoadSchedule.of(traffic, expressways, options.compress, place)
    end: float | None = None
    warmed = used = 0.0
    with MemoryWatch() as memory, opened(schedule, options, place) as peer:
        started = time.time()
        while True:
            log, now = peer.commits(), time.time()
            contained = log.rows[-1] if log.rows else 0
            if end is None and contained >= schedule.warm:
                warmed, used = now - started, processor_seconds()
                schedule.begin(now)
                end = now + float(schedule.after[-1])
            gives_up = started + max(_SECONDS_TO_STAND, patience) if end is None else end + patience
            if contained >= schedule.roads.rows or now > gives_up:
                break
            time.sleep(_LOOK)
        used = processor_seconds() - used
        if end is None:
            raise HoldfastError(
                f"{engine} did not take the traffic before the measurement within {_SECONDS_TO_STAND:.0f} s",
                cure="measure fewer expressways",
            )
        whole = contained >= schedule.roads.rows
        answers = peer.answers() if whole else None
        disk = bytes_of_files(place)
    rows, count, seconds = schedule.roads.rows, expressways, float(schedule.after[-1])
    arrived = end - seconds + schedule.after
    latency, overall = answer_latency(traffic, count, np.asarray(log.rows), np.append(log.times, now), arrived)
    return RoadFigures(
        expressways=count,
        tuples_per_s=(rows - schedule.warm) * count / seconds,
        seconds=seconds,
        latency=latency,
        overall=overall,
        verdict=None if answers is None else traffic.expected.compare(_as_answers(answers), schedule.roads),
        unsteady=0,
        warm_tuples_per_s=schedule.warm * count / warmed,
        cpu_us_per_tuple=1e6 * used / max(1, (contained - schedule.warm) * count),
        epochs=sum(when > end - seconds for when in log.times),
        times=None,
        memory=memory.most,
        disk=disk,
        state_rows=0,
        engine=engine,
    )


def _as_answers(tolls: pl.LazyFrame) -> pl.LazyFrame:
    return tolls.with_columns(type=pl.lit(0, pl.Int8), qid=pl.lit(None, pl.Int32))
