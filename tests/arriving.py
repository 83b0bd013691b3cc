"""Rows that arrive by a clock that a test moves, and runs along it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import polars as pl

import holdfast as hf
from harness import Cut, Outcome, Stepping
from holdfast.testkit.quick_store import quick_store

SCHEMA = pl.Schema({"ts": pl.Int64, "v": pl.Int64})


class Clock:
    """Moves when a test says so. Sources read the one of this module: a copy of a source must see it move, too."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


CLOCK = Clock()


class Arriving(hf.source.Source):
    """Rows (when they come, event time), and no end before `ends`."""

    schema = SCHEMA
    bounded = True
    keeps = True

    def __init__(self, rows: list[tuple[float, int]], ends: float) -> None:
        self.rows, self.ends = rows, ends

    def start(self) -> Mapping[str, Any]:
        return {"row": 0}

    def take(self, position: Mapping[str, Any], rows: int, pieces: int) -> hf.source.Take:
        first = int(position["row"])
        there = sum(at <= CLOCK.now for at, _ in self.rows)
        last = min(there, first + rows)
        slices = (hf.source.Slice(base=first, rows=last - first, where={"stop": last}),) if last > first else ()
        return hf.source.Take(slices, {"row": last}, done=last == len(self.rows) and self.ends <= CLOCK.now)

    def read(self, piece: hf.source.Slice) -> Iterator[hf.source.Chunk]:
        times = [ts for _, ts in self.rows[piece.base : piece.where["stop"]]]
        yield hf.source.Chunk(pl.DataFrame({"ts": times, "v": times}, schema=SCHEMA))


def play(pipeline: hf.Pipeline, ends: float, step: float = 1.0, cut: Cut | None = None) -> Outcome:
    """Run while the clock goes on by `step` at a time."""
    CLOCK.now = 0.0
    with quick_store() as store:
        stepping = Stepping(store.root, pipeline, cut or Cut(), clock=CLOCK, meta=store.meta(), until_idle=False)
        with stepping.run.seated():
            while CLOCK.now <= ends:
                while stepping.epoch():
                    pass
                CLOCK.now += step
        return stepping.outcome
