"""A frame replayed for ever with shifted event times: input for benchmarks that costs next to nothing to
read.

Row i of the stream is row `i % n` of the frame, its event time moved on by `(i // n) * period`. The frame
is written once, when the source is declared, to an uncompressed Arrow IPC file whose name is a hash of its
content; tasks map that file into memory, once per process. So the source object stays small when it is
pickled into tasks, a restart finds the same file, and reading a chunk copies nothing: the shift travels
beside the rows.

A small frame is tiled in the file, with the shifts of the repetitions applied, so that chunks are large.
Tiling changes where chunks end, never what row i is.

Not promised: that the file is ever removed. It lives in `directory` (by default a directory of the user's
under the system's temporary directory) until somebody removes it.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
import time as wall
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path

import numpy as np
import polars as pl
import pyarrow as pa

from holdfast.connect.base import Chunk, Slice
from holdfast.connect.sources.offsets import Clock, OffsetSource
from holdfast.errors import CorruptFileError, DeclarationError, UnknownColumnError, WrongTypeError
from holdfast.plurals import counted
from holdfast.store import full_disk_named, make_private, private_directory
from holdfast.store.location import local_path

__all__ = ["ReplaySource", "replay"]


class ReplaySource(OffsetSource):
    """See `replay`."""

    keeps = True

    def __init__(
        self,
        frame: pl.DataFrame,
        time: str,
        *,
        rows: int | None,
        period: int | None,
        chunk_rows: int,
        rate: float | None,
        clock: Clock,
        directory: str | os.PathLike[str] | None,
    ) -> None:
        super().__init__(rows=rows, rate=rate, clock=clock)
        _check(frame, time, chunk_rows)
        self.schema = frame.schema
        self.time = time
        self.chunk_rows = chunk_rows
        self.frame_rows = frame.height
        self.period = _default_period(frame[time]) if period is None else period
        tiles = max(1, chunk_rows // frame.height)
        tiled = _tile(frame, time, tiles, self.period)
        self.tiled_rows = tiled.height
        self.tiled_period = tiles * self.period
        self.ordered = tiled[time].is_sorted()
        self.path = str(_spill(tiled, _default_directory() if directory is None else local_path(directory, "replay()")))

    def reads(self) -> Sequence[Path]:
        return (Path(self.path),)

    def read(self, piece: Slice) -> Iterator[Chunk]:
        rows = _mapped(self.path)
        at, stop = int(piece.where["start"]), int(piece.where["stop"])
        while at < stop:
            repetition, row = divmod(at, self.tiled_rows)
            count = min(stop - at, self.tiled_rows - row, self.chunk_rows)
            shift = repetition * self.tiled_period
            yield Chunk(rows.slice(row, count), shift=shift, ordered=self.ordered)
            at += count

    def describe(self) -> str:
        return f"replay of {counted(self.frame_rows, 'row')} every {self.period} of '{self.time}', {self._extent()}"


def replay(
    frame: pl.DataFrame,
    time: str,
    rows: int | None = None,
    period: int | None = None,
    chunk_rows: int = 4_000_000,
    rate: float | None = None,
    clock: Clock = wall.time,
    directory: str | os.PathLike[str] | None = None,
) -> ReplaySource:
    """Replay `frame` repeatedly; each repetition shifts its `time` column by `period`.

    `rows` is how many rows to deliver in all, None for no end. `period` is in the unit of the time column;
    by default it is the frame's span of time and one typical step. `rate` is in rows per second of `clock`,
    counted from the first take. `directory` must be readable under the same path wherever tasks run.
    """
    return ReplaySource(
        frame,
        time,
        rows=rows,
        period=period,
        chunk_rows=chunk_rows,
        rate=rate,
        clock=clock,
        directory=directory,
    )


def _check(frame: pl.DataFrame, time: str, chunk_rows: int) -> None:
    if time not in frame.schema:
        raise UnknownColumnError(
            f"replay: the frame has no column '{time}'", cure=f"name one of {', '.join(frame.columns)}"
        )
    dtype = frame.schema[time]
    if not (dtype.is_integer() or isinstance(dtype, pl.Datetime)):
        raise WrongTypeError(f"replay: the time column '{time}' is {dtype}", cure="cast it to Int64 or to a Datetime")
    if frame.height == 0:
        raise DeclarationError("replay: the frame has no rows", cure="give at least one row to repeat")
    if frame[time].null_count():
        raise DeclarationError(
            f"replay: the time column '{time}' holds nulls", cure="drop or fill the rows without a time"
        )
    if chunk_rows < 1:
        raise DeclarationError(f"replay: chunk_rows={chunk_rows} is below 1", cure="give a positive number")


def _default_period(times: pl.Series) -> int:
    ticks = times.to_physical()
    first, last = ticks.min(), ticks.max()
    assert isinstance(first, int)
    assert isinstance(last, int)
    span = last - first
    return span + max(1, round(span / max(1, len(ticks) - 1)))


def _tile(frame: pl.DataFrame, time: str, tiles: int, period: int) -> pl.DataFrame:
    if tiles == 1:
        return frame.rechunk()
    dtype = frame.schema[time]
    # By gathering, not by joining copies: a frame of three rows may be repeated a million times.
    repetition, row = np.divmod(np.arange(tiles * frame.height), frame.height)
    shift = pl.Series(repetition * period, dtype=pl.Int64)
    ticks = pl.col(time).to_physical().cast(pl.Int64)
    try:
        return frame[row].with_columns((ticks + shift).cast(dtype)).rechunk()
    except pl.exceptions.InvalidOperationError as error:
        raise WrongTypeError(
            f"replay: the shifted times do not fit the time column '{time}' of type {dtype}",
            cure="cast the time column to Int64 or to a Datetime",
        ) from error


def _default_directory() -> Path:
    return private_directory(Path(tempfile.gettempdir()) / f"holdfast-replay-{os.getuid()}")


def _spill(frame: pl.DataFrame, directory: Path) -> Path:
    """Write the frame under the hash of its bytes; the rename makes a half-written file impossible to
    find."""
    make_private(directory)
    descriptor, draft = tempfile.mkstemp(prefix=".draft-", dir=directory)
    os.close(descriptor)
    try:
        with full_disk_named(Path(draft)):
            # One record batch, so that every slice of the mapped frame is one contiguous piece of the file.
            frame.write_ipc(draft, compression="uncompressed", record_batch_size=frame.height)
            with open(draft, "rb") as file:
                digest = hashlib.file_digest(file, "sha1").hexdigest()
            target = directory / f"{digest}.arrow"
            os.replace(draft, target)
    except BaseException:
        Path(draft).unlink(missing_ok=True)
        raise
    return target.resolve()


@lru_cache(maxsize=16)
def _mapped(path: str) -> pl.DataFrame:
    """The file as a frame whose columns are the mapped pages, once per process."""
    try:
        table = pa.ipc.open_file(pa.memory_map(path)).read_all()
    except (OSError, pa.ArrowException) as error:
        raise CorruptFileError(
            f"replay: cannot map {path}: {error}",
            cure="declare the source again to write the file again, and give replay() a directory that every"
            " machine of the cluster sees",
        ) from error
    frame = pl.from_arrow(table)
    assert isinstance(frame, pl.DataFrame)
    return frame
