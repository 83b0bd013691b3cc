"""Rows that arrive by a schedule, whoever reads them, and how long each took to be part of a committed result.

Row n arrives at the beginning of the schedule plus n divided by the rate: it does not wait for the system, so a system
that falls behind makes all later rows wait, and that is counted (an open loop). The arrival time is the row's event
time. A row counts as done when the first commit that contains it is there.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import polars as pl
from numpy.typing import NDArray

from holdfast.connect.base import Chunk, Position, Slice, Source, Take

__all__ = ["SCHEMA", "SPREAD", "CommitLog", "LatencyOfRows", "RowSchedule", "ScheduledSource", "checkpoint_latency"]

SCHEMA = pl.Schema({"event_time": pl.Int64(), "key": pl.Int64(), "value": pl.Int64()})
SPREAD = 2_654_435_761
_MOST_SAMPLES = 2_000_000


@dataclass(frozen=True, slots=True)
class RowSchedule:
    """The schedule: `rate` rows per second from the time `began` on, for `warm` and then `seconds` seconds that are
    measured. `keys` take turns in an order that looks random. The first row is there from the start, for a system to
    begin with."""

    rate: float
    warm: float
    seconds: float
    keys: int
    began: float = 0.0

    @property
    def first(self) -> int:
        """The first row that is measured."""
        return round(self.rate * self.warm)

    @property
    def rows(self) -> int:
        """How many there are in all."""
        return round(self.rate * (self.warm + self.seconds))

    @property
    def end(self) -> float:
        return self.began + self.warm + self.seconds

    def due(self, now: float) -> int:
        """How many rows have arrived."""
        return min(self.rows, max(1, int((now - self.began) * self.rate)))

    def frame(self, start: int, stop: int) -> pl.DataFrame:
        numbers = np.arange(start, stop, dtype=np.int64)
        times = (self.began * 1e6 + numbers * (1e6 / self.rate)).astype(np.int64)
        return pl.DataFrame({"event_time": times, "key": numbers * SPREAD % self.keys, "value": numbers % 1_000})


class ScheduledSource(Source):
    """The rows that have arrived. The schedule begins when the first row was taken and more is asked for, so that all
    that starts once stands by then; `on_begin` hears of it, in the process that plans."""

    schema = SCHEMA
    keeps = True

    def __init__(
        self,
        schedule: RowSchedule,
        on_begin: Callable[[RowSchedule], None] = lambda schedule: None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._schedule = schedule
        self._on_begin = on_begin
        self._clock = clock
        self._begun = False

    def __getstate__(self) -> dict[str, RowSchedule]:
        return {"_schedule": self._schedule}

    def start(self) -> Position:
        return {"row": 0}

    def take(self, position: Position, rows: int, pieces: int) -> Take:
        start = int(position["row"])
        if not self._begun:
            self._begun, self._schedule = start > 0, replace(self._schedule, began=self._clock())
            if self._begun:
                self._on_begin(self._schedule)
        stop = min(self._schedule.due(self._clock()), start + max(1, rows))
        if stop <= start:
            return Take((), position)
        ends = [start + (stop - start) * piece // pieces for piece in range(pieces + 1)]
        began = self._schedule.began
        slices = tuple(
            Slice(low, high - low, {"start": low, "stop": high, "began": began})
            for low, high in itertools.pairwise(ends)
            if high > low
        )
        return Take(slices, {"row": stop})

    def read(self, piece: Slice) -> Iterator[Chunk]:
        schedule = replace(self._schedule, began=float(piece.where["began"]))
        yield Chunk(schedule.frame(int(piece.where["start"]), int(piece.where["stop"])), ordered=True)

    def lag(self, position: Position) -> int | None:
        return self._schedule.due(self._clock()) - int(position["row"])


@dataclass(frozen=True, slots=True)
class LatencyOfRows:
    """Of the rows that were measured, in milliseconds. If not all of them were committed in time, it did not keep up:
    the rest count with the time they had waited by then."""

    p50: float
    p99: float
    p999: float
    rows: int
    commits: int
    kept_up: bool

    @staticmethod
    def of(latencies: NDArray[np.float64], rows: int, commits: int, *, kept_up: bool) -> LatencyOfRows:
        p50, p99, p999 = (round(1_000 * float(value), 2) for value in np.quantile(latencies, [0.5, 0.99, 0.999]))
        return LatencyOfRows(p50, p99, p999, rows, commits, kept_up)


@dataclass(slots=True)
class CommitLog:
    """How many rows were contained in all commits so far, and when that was."""

    rows: list[int] = field(default_factory=list)
    times: list[float] = field(default_factory=list)

    def add(self, rows: int, when: float) -> None:
        """A commit after which the first `rows` rows are part of the result."""
        self.rows.append(rows)
        self.times.append(when)

    def latency(self, schedule: RowSchedule, gave_up: float) -> LatencyOfRows:
        """Of the measured rows of a schedule; `gave_up` is when nobody waited any longer."""
        step = max(1, (schedule.rows - schedule.first) // _MOST_SAMPLES)
        numbers = np.arange(schedule.first, schedule.rows, step, dtype=np.int64)
        return self.latency_of(numbers, schedule.began + numbers / schedule.rate, schedule.first, gave_up)

    def latency_of(
        self, numbers: NDArray[np.int64], arrived: NDArray[np.float64], first: int, gave_up: float
    ) -> LatencyOfRows:
        """Of rows with these places in the order of commits, and these arrival times."""
        contained = np.asarray(self.rows, dtype=np.int64)
        times = np.asarray([*self.times, gave_up])
        done = times[np.searchsorted(contained, numbers, side="right")]
        commits = int(np.count_nonzero(contained > first))
        kept_up = bool(len(contained)) and int(contained[-1]) > int(numbers.max())
        return LatencyOfRows.of(done - arrived, int(numbers.size), commits, kept_up=kept_up)


def checkpoint_latency(
    checkpoints: Sequence[tuple[float, float]], schedule: RowSchedule, *, kept_up: bool
) -> LatencyOfRows | None:
    """Where results are seen with a checkpoint: from the arrival of a row to the end of the first checkpoint that was
    begun after it. `checkpoints` are when they began and ended."""
    known = sorted(checkpoints)
    if not known:
        return None
    begun, ended = (np.asarray(column) for column in zip(*known, strict=True))
    arrived = np.linspace(schedule.began + schedule.warm, schedule.end, 100_001)
    arrived = arrived[arrived <= begun[-1]]
    if not arrived.size:
        return None
    latencies = ended[np.searchsorted(begun, arrived, side="left")] - arrived
    return LatencyOfRows.of(latencies, arrived.size, len(known), kept_up=kept_up)
