"""Input that arrives by the clock, at a rate that rises: the workload of the experiments about scaling.

A `Ramp` says when each row is due; a `RisingSource` gives rows when they are. Closed loop: what was not read in time
waits. Open loop: with a `patience` the source skips rows that have waited longer when it plans, and counts them, as a
network card does that nobody reads from. The position holds when the input began and how many rows were dropped, so a
restart goes on.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import ceil, floor
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from holdfast.connect.base import Chunk, Position, Slice, Source, Take
from holdfast.connect.sources.offsets import cut_evenly

__all__ = ["TIME", "Ramp", "RisingSource", "RisingTake"]

TIME = "time"
"""The event time of a row: when it was due, in milliseconds from the beginning of the input."""

_CHUNK = 100_000

MakeRows = Callable[[int, int], pl.DataFrame]


@dataclass(frozen=True, slots=True)
class Ramp:
    """`low` rows a second at first, rising evenly within `rise` seconds to `high`, which lasts `hold` seconds."""

    low: float
    high: float
    rise: float
    hold: float

    @property
    def seconds(self) -> float:
        return self.rise + self.hold

    @property
    def rows(self) -> int:
        return floor(self.until(self.seconds))

    def rate(self, at: float) -> float:
        if not 0 <= at < self.seconds:
            return 0.0
        return self.low + (self.high - self.low) * min(1.0, at / self.rise) if self.rise else self.high

    def until(self, at: float) -> float:
        """How many rows are due within so many seconds of the beginning."""
        at = max(0.0, min(at, self.seconds))
        risen = min(at, self.rise)
        grown = (self.high - self.low) * risen * risen / (2 * self.rise) if self.rise else 0.0
        return self.low * risen + grown + self.high * (at - risen)

    def due(self, rows: NDArray[np.float64]) -> NDArray[np.float64]:
        """When each of these rows is due, in seconds from the beginning."""
        top = self.until(self.rise)
        after = self.rise + (rows - top) / self.high
        if not self.rise or self.high == self.low:
            return after if not self.rise else rows / self.high
        slope = (self.high - self.low) / self.rise
        within = (np.sqrt(self.low**2 + 2 * slope * np.minimum(rows, top)) - self.low) / slope
        return np.asarray(np.where(rows < top, within, after), dtype=np.float64)


@dataclass(frozen=True, slots=True)
class RisingTake:
    """What was taken for an epoch: rows `start` to `stop`, after `dropped` in all were skipped. Input began at
    `since`, in seconds of the clock."""

    at: float
    since: float
    start: int
    stop: int
    dropped: int


class RisingSource(Source):
    """The rows of `make(start, stop)`, a pure function, each there when the ramp says so, with its time.

    `on_take` hears of each take that makes an epoch; it stays in the process that plans.
    """

    bounded = True
    keeps = True

    def __init__(
        self,
        make: MakeRows,
        ramp: Ramp,
        *,
        patience: float | None = None,
        on_take: Callable[[RisingTake], None] = lambda taken: None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.make = make
        self.ramp = ramp
        self.patience = patience
        self.schema = pl.Schema({TIME: pl.Int64(), **make(0, 1).schema})
        self._on_take = on_take
        self._clock = clock

    def __getstate__(self) -> dict[str, Any]:
        return {"make": self.make, "ramp": self.ramp, "schema": self.schema}

    def start(self) -> Position:
        return {"offset": 0, "dropped": 0}

    def take(self, position: Position, rows: int, pieces: int) -> Take:
        start, dropped = int(position["offset"]), int(position["dropped"])
        now = self._clock()
        since = float(position.get("since", now))
        total = self.ramp.rows
        if self.patience is not None:
            oldest = min(total, ceil(self.ramp.until(now - since - self.patience)))
            dropped += max(0, oldest - start)
            start = max(start, oldest)
        # The first row is due at once, so that the first take has one, and its position holds the beginning.
        due = min(total, floor(self.ramp.until(now - since)) + 1)
        stop = min(due, start + max(1, rows))
        done = stop >= total
        if stop <= start and not done:
            return Take((), position)
        self._on_take(RisingTake(now, since, start, stop, dropped))
        slices = tuple(
            Slice(base=low, rows=high - low, where={"start": low, "stop": high})
            for low, high in cut_evenly(start, stop, pieces)
        )
        return Take(slices, {"offset": stop, "dropped": dropped, "since": since}, done)

    def read(self, piece: Slice) -> Iterator[Chunk]:
        start, stop = int(piece.where["start"]), int(piece.where["stop"])
        for low in range(start, stop, _CHUNK):
            high = min(low + _CHUNK, stop)
            due = self.ramp.due(np.arange(low, high, dtype=np.float64))
            times = pl.Series(TIME, (due * 1_000).astype(np.int64))
            yield Chunk(self.make(low, high).select(times, pl.all()), ordered=True)

    def lag(self, position: Position) -> int | None:
        since = position.get("since")
        if since is None:
            return 0
        return max(0, floor(self.ramp.until(self._clock() - float(since))) - int(position["offset"]))

    def describe(self) -> str:
        ramp = self.ramp
        return f"{ramp.low:,.0f} to {ramp.high:,.0f} rows/s within {ramp.seconds:g} s"
