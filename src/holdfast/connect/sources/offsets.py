"""Sources that are addressed by a row offset alone, and their pacing.

Where row i can be made from i, planning is arithmetic: `take` costs the same for ten rows and for ten
million, and a slice is a pair of offsets. With a `rate` the source is an open loop: row i is due at `since
+ i / rate` whether or not the pipeline keeps up. `since` is the time of the first take; it is part of the
position, so that a restart finds the rows that became due while nobody was reading.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from math import floor

from holdfast.connect.base import Position, Slice, Source, Take
from holdfast.errors import DeclarationError
from holdfast.plurals import counted

__all__ = ["Clock", "OffsetSource", "cut_evenly"]

Clock = Callable[[], float]


def cut_evenly(start: int, stop: int, pieces: int) -> Iterator[tuple[int, int]]:
    """Cut [start, stop) into at most `pieces` parts that are not empty and differ by one at the most."""
    total = stop - start
    pieces = max(1, min(pieces, total))
    for i in range(pieces):
        low, high = start + total * i // pieces, start + total * (i + 1) // pieces
        if low < high:
            yield low, high


class OffsetSource(Source):
    """The planning half of a source whose rows are a pure function of their offsets."""

    def __init__(self, *, rows: int | None, rate: float | None, clock: Clock = time.time) -> None:
        if rows is not None and rows < 0:
            raise DeclarationError(
                f"rows={rows} is negative", cure="give a number of rows, or None for a source that never ends"
            )
        if rate is not None and rate <= 0:
            raise DeclarationError(
                f"rate={rate} is not a positive number of rows per second",
                cure="give a rate above 0, or None for no limit",
            )
        self.rows = rows
        self.rate = rate
        self.clock = clock
        self.bounded = rows is not None

    def start(self) -> Position:
        return {"offset": 0}

    def take(self, position: Position, rows: int, pieces: int) -> Take:
        offset = int(position["offset"])
        since = position.get("since")
        if self.rate is not None and since is None:
            since = self.clock()
        stop = offset + max(1, rows)
        if self.rows is not None:
            stop = min(stop, self.rows)
        if self.rate is not None and since is not None:
            stop = min(stop, self._due(since))
        done = self.rows is not None and max(stop, offset) >= self.rows
        if stop <= offset:
            return Take((), position, done)
        behind: dict[str, float | int] = {"offset": stop}
        if since is not None:
            behind["since"] = since
        slices = tuple(
            Slice(base=low, rows=high - low, where={"start": low, "stop": high})
            for low, high in cut_evenly(offset, stop, pieces)
        )
        return Take(slices, behind, done)

    def lag(self, position: Position) -> int | None:
        offset = int(position["offset"])
        since = position.get("since")
        if self.rate is not None:
            due = self._due(since) if since is not None else 1
            return max(0, (due if self.rows is None else min(due, self.rows)) - offset)
        return None if self.rows is None else max(0, self.rows - offset)

    def _due(self, since: float) -> int:
        # Row 0 is due at once. So the very first take has a row, and its position, which holds `since`, is
        # kept.
        assert self.rate is not None
        return floor(max(0.0, self.clock() - since) * self.rate) + 1

    def _extent(self) -> str:
        """How much there is and how fast it comes, for `describe`."""
        amount = "endless" if self.rows is None else counted(self.rows, "row")
        return amount if self.rate is None else f"{amount}, {self.rate:,.0f} rows/s"
