"""Input that arrives at a fixed rate, whoever reads it: what comes while a run is down is there when it is back."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

from holdfast.connect.base import Chunk, Position, Slice, Source, Take

__all__ = ["ArrivingSource"]


class ArrivingSource(Source):
    """Whole takes of `rows` rows of another source; the n-th is there n times `pause` seconds after the first, and the
    first `ahead` are there at the start.

    What arrives while nobody reads waits. A rate of the source itself would cut epochs by the clock; these are the same
    in every run, so that sums of floats are too. `on_take` hears the number of each take, from 1, and when its rows
    arrived; it stays in the process that plans.
    """

    def __init__(
        self,
        inner: Source,
        rows: int,
        pause: float,
        on_take: Callable[[int, float], None] = lambda number, arrived: None,
        clock: Callable[[], float] = time.time,
        ahead: int = 0,
    ) -> None:
        self.inner = inner
        self.rows = rows
        self.ahead = ahead
        self.pause = pause
        self.schema = inner.schema
        self.bounded = inner.bounded
        self._on_take = on_take
        self._clock = clock

    def __getstate__(self) -> dict[str, Any]:
        return {"inner": self.inner, "schema": self.schema, "bounded": self.bounded}

    def start(self) -> Position:
        return {"inner": self.inner.start(), "taken": 0}

    def take(self, position: Position, rows: int, pieces: int) -> Take:
        since, taken = position.get("since"), int(position["taken"])
        if since is None:
            since = self._clock() - self.ahead * self.pause
        if self._clock() < since + taken * self.pause:
            return Take((), position)
        found = self.inner.take(position["inner"], self.rows, pieces)
        self._on_take(taken + 1, since + taken * self.pause)
        return Take(found.slices, {"inner": found.position, "taken": taken + 1, "since": since}, found.done)

    def read(self, piece: Slice) -> Iterator[Chunk]:
        return self.inner.read(piece)

    def lag(self, position: Position) -> int | None:
        return self.inner.lag(position["inner"])
