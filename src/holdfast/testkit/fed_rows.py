"""Both ends of a pipeline in the hands of a test: a source that is fed by hand, and a sink that keeps what comes out.

What they hold lives with the test, not with the run, so it outlives a crash of the run.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import polars as pl

from holdfast.connect.base import BadRows, Chunk, DriverSink, Marks, Position, Slice, Source, Take
from holdfast.connect.sources.offsets import cut_evenly
from holdfast.plurals import counted
from holdfast.testkit.crash_points import CrashPoints, SharedObject
from holdfast.testkit.row_sets import difference

__all__ = ["FedInput", "FedSource", "KeptOutput", "KeptSink"]


class FedInput(SharedObject):
    """What a test has fed to one source: rows, and watermarks among them as whole numbers."""

    def __init__(self, points: CrashPoints) -> None:
        self.points = points
        self.items: list[pl.DataFrame | int] = []
        self.ended = False

    @property
    def rows(self) -> int:
        return sum(item.height for item in self.items if isinstance(item, pl.DataFrame))


class FedSource(Source):
    """Stands for a source of the pipeline: the same columns, and rows from the test."""

    keeps = True
    bounded = True

    def __init__(self, name: str, schema: pl.Schema, bad_rows: BadRows, lateness: int, fed: FedInput) -> None:
        self.schema = schema
        self.bad_rows = bad_rows
        self._name = name
        self._lateness = lateness
        self._fed = fed

    def start(self) -> Position:
        return {"item": 0, "row": 0, "base": 0}

    def take(self, position: Position, rows: int, pieces: int) -> Take:
        at, row, base = int(position["item"]), int(position["row"]), int(position["base"])
        wanted = max(1, rows)
        slices: list[Slice] = []
        items = self._fed.items
        while at < len(items) and wanted > 0:
            item = items[at]
            if not isinstance(item, pl.DataFrame):
                slices.append(Slice(base, 0, {"item": at}))
                at += 1
                continue
            stop = min(item.height, row + wanted)
            for low, high in cut_evenly(row, stop, pieces):
                slices.append(Slice(base + low - row, high - low, {"item": at, "start": low, "stop": high}))
            base, wanted = base + stop - row, wanted - (stop - row)
            at, row = (at + 1, 0) if stop == item.height else (at, stop)
        done = self._fed.ended and at == len(items)
        return Take(tuple(slices), {"item": at, "row": row, "base": base}, done)

    def read(self, piece: Slice) -> Iterator[Chunk]:
        self._fed.points.reach(f"before rows of '{self._name}' are read")
        item = self._fed.items[int(piece.where["item"])]
        if isinstance(item, pl.DataFrame):
            start, stop = int(piece.where["start"]), int(piece.where["stop"])
            yield Chunk(item.slice(start, stop - start))
        else:  # the watermark is the greatest time less the lateness
            yield Chunk(pl.DataFrame(schema=self.schema), marks=Marks(None, item + self._lateness))

    def lag(self, position: Position) -> int:
        return self._fed.rows - int(position["base"])

    def describe(self) -> str:
        return f"fed by hand, {counted(self._fed.rows, 'row')}"


class KeptOutput(SharedObject):
    """What came out at one sink, by epoch."""

    def __init__(self) -> None:
        self.epochs: dict[int, pl.DataFrame] = {}


@dataclass(slots=True)
class KeptSink(DriverSink):
    """Stands for a sink of the pipeline. An epoch that comes again replaces itself, and must be the same."""

    name: str
    kept: KeptOutput
    guarantee: str = field(default="exactly once: rows are kept by epoch number, for a test", init=False)

    def deliver(self, epoch: int, rows: pl.DataFrame, vector: Mapping[str, Position]) -> None:
        before = self.kept.epochs.get(epoch)
        if before is not None and (wrong := difference(rows, before)):
            raise AssertionError(
                f"epoch {epoch} came to sink '{self.name}' again with other rows: {wrong}. Some function or expression"
                " of the pipeline does not depend on its rows alone (a clock, random numbers, something that it keeps)"
            )
        self.kept.epochs[epoch] = rows

    def describe(self) -> str:
        return "kept for a test"
