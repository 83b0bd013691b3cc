"""Traffic on any number of expressways: that of one, repeated, with vehicles and requests of their own on each.

Each row of the one expressway is followed by its twins on the others, so times stay in order. Rows are put together
where they are read, from a file that every reader maps: a task makes tens of millions of them in a second.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa

from holdfast.connect.base import Chunk, Position, Slice, Source, Take
from holdfast.connect.source_need import SourceNeed
from holdfast_lab.linear_road.small_traffic import INPUT_SCHEMA

__all__ = ["ArrivingRoads", "ManyExpressways", "arrivals"]

_CHUNK = 400_000


@dataclass(frozen=True, slots=True)
class ManyExpressways:
    """`count` expressways with the traffic of one, which is in a file. Vehicle v of expressway x has the number
    x · `vehicles` + v, and so have requests."""

    path: Path
    count: int
    rows: int
    vehicles: int
    requests: int

    @staticmethod
    def of(one: pl.DataFrame, count: int, path: Path) -> ManyExpressways:
        """Writes the traffic of one expressway to the path."""
        one.write_ipc(path, compression="uncompressed")
        vehicles, requests = (int(one.select(pl.col(name).max()).item()) + 1 for name in ("vid", "qid"))
        return ManyExpressways(path, count, one.height, vehicles, requests)

    def frame(self, start: int, stop: int, columns: tuple[str, ...] = tuple(INPUT_SCHEMA)) -> pl.DataFrame:
        """These rows of the one expressway, each once for every expressway."""
        one = _mapped(self.path)
        return pl.DataFrame([self._column(name, one[name][start:stop].to_numpy()) for name in columns])

    def _column(self, name: str, values: npt.NDArray[Any]) -> pl.Series:
        apart = {"xway": 1, "vid": self.vehicles, "qid": self.requests}.get(name)
        if apart is None:
            return pl.Series(name, np.repeat(values, self.count))
        steps = (np.arange(self.count) * apart).astype(values.dtype)
        spread = np.where(values[:, None] < 0, values[:, None], values[:, None] + steps)
        return pl.Series(name, spread.ravel())

    def table(self, one: pl.DataFrame) -> pl.DataFrame:
        """A table by vehicle, as that of past tolls, for all expressways."""
        twins = [
            one.with_columns(
                pl.col("vid") + pl.lit(number * self.vehicles, pl.Int32), xway=pl.lit(number, one.schema["xway"])
            )
            for number in range(self.count)
        ]
        return pl.concat(twins).select(one.columns)


@lru_cache(maxsize=2)
def _mapped(path: Path) -> pl.DataFrame:
    with pa.memory_map(str(path)) as file:
        frame = pl.from_arrow(pa.ipc.open_file(file).read_all())
    assert isinstance(frame, pl.DataFrame)
    return frame


def arrivals(one: pl.DataFrame) -> npt.NDArray[np.float64]:
    """When each row arrives, in seconds: those of a second one after the other, evenly."""
    times = one["time"].to_numpy()
    starts = np.searchsorted(times, times, side="left")
    ends = np.searchsorted(times, times, side="right")
    return times + (np.arange(len(times)) - starts) / (ends - starts)


class ArrivingRoads(Source):
    """What has arrived of the traffic by the clock, whoever reads it. The first `warm` rows of the one expressway are
    there at once; those after them arrive `speed` times as fast as they are timed, from `begin` on.

    `begin`, `due` and `take` belong to the process that plans.
    """

    keeps = True

    def __init__(
        self,
        roads: ManyExpressways,
        arrives: npt.NDArray[np.float64],
        warm: int,
        speed: float,
        clock: Callable[[], float],
        columns: tuple[str, ...] = tuple(INPUT_SCHEMA),
    ) -> None:
        self._roads, self._columns, self._warm, self._clock = roads, columns, warm, clock
        self._after = (arrives[warm:] - (arrives[warm] if warm < len(arrives) else 0.0)) / speed
        self._began: list[float] = []
        """Empty until it begins. A list, since those that are `narrowed` share it."""
        self.schema = pl.Schema({name: INPUT_SCHEMA[name] for name in columns})

    def __getstate__(self) -> dict[str, object]:
        return {"_roads": self._roads, "_columns": self._columns, "schema": self.schema}

    @property
    def end(self) -> float | None:
        """When the last row arrives, once that is known."""
        return self._began[0] + float(self._after[-1]) if self._began else None

    def begin(self) -> None:
        self._began.append(self._clock())

    def arrived(self) -> npt.NDArray[np.float64]:
        """When each row after the first `warm` ones arrived, by the clock."""
        return self._began[0] + self._after

    def due(self) -> int:
        """How many rows of the one expressway are there."""
        if not self._began:
            return self._warm
        return self._warm + int(np.searchsorted(self._after, self._clock() - self._began[0], side="right"))

    def start(self) -> Position:
        return {"row": 0}

    def take(self, position: Position, rows: int, pieces: int) -> Take:
        start, count = int(position["row"]), self._roads.count
        stop = min(self.due(), start + max(1, rows // count))
        if stop <= start:
            return Take((), position)
        ends = [start + (stop - start) * piece // pieces for piece in range(pieces + 1)]
        slices = tuple(
            Slice(low * count, (high - low) * count, {"start": low, "stop": high})
            for low, high in itertools.pairwise(ends)
            if high > low
        )
        return Take(slices, {"row": stop})

    def read(self, piece: Slice) -> Iterator[Chunk]:
        start, stop = int(piece.where["start"]), int(piece.where["stop"])
        step = max(1, _CHUNK // self._roads.count)
        for low in range(start, stop, step):
            yield Chunk(self._roads.frame(low, min(low + step, stop), self._columns), ordered=True)

    def narrowed(self, need: SourceNeed) -> Source:
        narrow = object.__new__(ArrivingRoads)
        narrow.__dict__.update(self.__dict__)
        narrow._columns = tuple(name for name in self._columns if name in need.columns)
        narrow.schema = pl.Schema({name: INPUT_SCHEMA[name] for name in narrow._columns})
        return narrow

    def lag(self, position: Position) -> int | None:
        return (self.due() - int(position["row"])) * self._roads.count

    def row_bytes(self) -> float | None:
        return 50.0
