"""The input of simulated hosts: rows that come in frames, each at its time.

What there is to plan therefore depends on when it is planned.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import polars as pl

import holdfast as hf

__all__ = ["ArrivingRows"]


class ArrivingRows(hf.source.Source):
    """`frames` with the times at which they come, and `time` to know which of them have. `answer` is called between
    finding that out and telling it: it may take a while."""

    schema = pl.Schema({"k": pl.Int64, "ts": pl.Int64, "v": pl.Int64})
    bounded = True
    keeps = True

    def __init__(
        self, frames: list[tuple[float, pl.DataFrame]], time: Callable[[], float], answer: Callable[[], None]
    ) -> None:
        self._frames = frames
        self._time: Callable[[], float] | None = time
        self._answer: Callable[[], None] | None = answer

    def __getstate__(self) -> dict[str, Any]:
        # Tasks read what was planned, whatever time it is.
        return {"_frames": self._frames, "_time": None, "_answer": None}

    def start(self) -> Any:
        return {"frame": 0, "rows": 0}

    def take(self, position: Any, rows: int, pieces: int) -> hf.source.Take:
        assert self._time is not None
        assert self._answer is not None
        first, base = position["frame"], position["rows"]
        come = sum(at <= self._time() for at, _ in self._frames)
        slices = []
        for number in range(first, come):
            height = self._frames[number][1].height
            slices.append(hf.source.Slice(base, height, {"frame": number}))
            base += height
        done = come == len(self._frames)
        self._answer()
        return hf.source.Take(tuple(slices), {"frame": max(first, come), "rows": base}, done)

    def read(self, piece: hf.source.Slice) -> Iterator[hf.source.Chunk]:
        yield hf.source.Chunk(self._frames[piece.where["frame"]][1])
