"""Rows given in the program: the source for tests, with faults as items of the input.

A test of recovery reads as *input, crash, resumed output*: `memory([rows, Crash(marker), more_rows])`. A
fault strikes once. The marker file tells the next process that it has struck, so that the resumed run goes
past it.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from holdfast.connect.base import BadRows, Chunk, Position, Slice, Source, Take, check_bad_rows
from holdfast.connect.sources.offsets import cut_evenly
from holdfast.errors import DeclarationError, WrongTypeError
from holdfast.plurals import counted
from holdfast.store import sync_directory

__all__ = ["Crash", "Fail", "InjectedFaultError", "MemorySource", "memory"]


class InjectedFaultError(RuntimeError):
    """What a `Fail` item raises. Not a HoldfastError: it stands for a fault nobody foresaw."""


@dataclass(frozen=True, slots=True)
class Crash:
    """The process that plans the source dies by SIGKILL when planning reaches this item, once per marker
    file."""

    path: str | os.PathLike[str]


@dataclass(frozen=True, slots=True)
class Fail:
    """The first read of the rows after this item raises `InjectedFaultError`, once per marker file."""

    path: str | os.PathLike[str]


Item = pl.DataFrame | Crash | Fail


class MemorySource(Source):
    """See `memory`."""

    keeps = True

    bounded = True

    def __init__(self, items: Sequence[Item], *, epochs: bool, bad_rows: BadRows = "fail") -> None:
        frames = [item for item in items if isinstance(item, pl.DataFrame)]
        if not frames:
            raise DeclarationError(
                "memory() has no frame, so its columns are unknown",
                cure="give at least one DataFrame; it may be empty if it has a schema",
            )
        self.schema = frames[0].schema
        for number, frame in enumerate(frames):
            if frame.schema != self.schema:
                raise WrongTypeError(
                    f"memory(): frame {number} has {frame.schema}, the first one has {self.schema}",
                    cure="give frames with the same columns, types and order",
                )
        self.items = tuple(items)
        self.epochs = epochs
        self.bad_rows = bad_rows

    def start(self) -> Position:
        return {"item": 0, "row": 0, "base": 0}

    def take(self, position: Position, rows: int, pieces: int) -> Take:
        at, row, base = int(position["item"]), int(position["row"]), int(position["base"])
        fail: str | None = None
        slices: list[Slice] = []
        wanted = max(1, rows)
        while at < len(self.items) and (wanted > 0 or self.epochs):
            item = self.items[at]
            if not isinstance(item, pl.DataFrame):
                if slices:
                    break  # a fault strikes the rows behind it, never those in front of it
                if isinstance(item, Crash):
                    _crash_once(item)
                else:
                    fail = os.fspath(item.path)
                at += 1
                continue
            stop = item.height if self.epochs else min(item.height, row + wanted)
            for low, high in cut_evenly(row, stop, pieces):
                where = {"item": at, "start": low, "stop": high, "fail": fail}
                slices.append(Slice(base=base + low - row, rows=high - low, where=where))
                fail = None
            base += stop - row
            wanted -= stop - row
            at, row = (at + 1, 0) if stop == item.height else (at, stop)
            if self.epochs:
                if not slices:
                    # An empty epoch is an epoch: a slice without rows tells it apart from "nothing yet".
                    slices.append(Slice(base=base, rows=0, where={"item": at - 1, "start": 0, "stop": 0, "fail": fail}))
                break
        return Take(tuple(slices), {"item": at, "row": row, "base": base}, done=at >= len(self.items))

    def read(self, piece: Slice) -> Iterator[Chunk]:
        fail = piece.where["fail"]
        if fail is not None and _strike(fail):
            raise InjectedFaultError(f"injected by Fail({fail!r})")
        frame = self.items[int(piece.where["item"])]
        assert isinstance(frame, pl.DataFrame)
        start, stop = int(piece.where["start"]), int(piece.where["stop"])
        yield Chunk(frame.slice(start, stop - start))

    def lag(self, position: Position) -> int | None:
        ahead = [item.height for item in self.items[int(position["item"]) :] if isinstance(item, pl.DataFrame)]
        return sum(ahead) - int(position["row"])

    def describe(self) -> str:
        rows = sum(item.height for item in self.items if isinstance(item, pl.DataFrame))
        return f"memory, {counted(rows, 'row')}"


def memory(frames: pl.DataFrame | Sequence[Item], epochs: bool = False, bad_rows: BadRows = "fail") -> MemorySource:
    """A bounded source of rows held in memory and pickled into every task, so keep it small.

    `bad_rows` says what happens to a row whose event time is missing or not allowed: "fail", "skip" or "dead_letter".
    With `epochs=True` each frame is one take, however many rows are asked for, and an empty frame is an empty epoch.
    `Crash` and `Fail` items stand for faults that strike when planning, or reading, gets there.
    """
    if not isinstance(frames, pl.DataFrame | list | tuple) or not all(
        isinstance(item, pl.DataFrame | Crash | Fail) for item in ([] if isinstance(frames, pl.DataFrame) else frames)
    ):
        raise WrongTypeError(
            f"memory(): {frames!r:.60} is neither a DataFrame nor a list of them",
            cure="give e.g. hf.source.memory(pl.DataFrame({'a': [1]}))",
        )
    return MemorySource(
        [frames] if isinstance(frames, pl.DataFrame) else frames,
        epochs=epochs,
        bad_rows=check_bad_rows("memory()", bad_rows),
    )


def _strike(marker: str | os.PathLike[str]) -> bool:
    """Whether this is the first time; the marker is durable before the answer is given."""
    try:
        handle = os.open(marker, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644)
    except FileExistsError:
        return False
    os.fsync(handle)
    os.close(handle)
    sync_directory(Path(marker).absolute().parent)
    return True


def _crash_once(item: Crash) -> None:
    if _strike(item.path):
        os.kill(os.getpid(), signal.SIGKILL)
