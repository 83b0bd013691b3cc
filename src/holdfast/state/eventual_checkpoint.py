"""The eventual checkpoint: the last footprint of every open window, found by reading the log backwards.

A window's footprints lie at different epochs, so what is found here is not the state of any one epoch: a window is to
be brought on by the input of the epochs after its own (`TAU`), and the input must reach back to the oldest of them.
How far to go back is known from the number of windows that were open at the last epoch. Windows are told apart as in
`matching`: by 64-bit codes, which are sorted and searched, and by their ids where codes are equal.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import repeat

import numpy as np
import numpy.typing as npt
import polars as pl

from holdfast.errors import CorruptPUnitError
from holdfast.hidden_columns import FINGERPRINT, KIND, NUMBER, TAU
from holdfast.plurals import counted
from holdfast.pstream.punit import PUnit
from holdfast.state.footprints import FootprintKind, read_batch, window_codes
from holdfast.state.key_matches import differ
from holdfast.state.position import Positions
from holdfast.store import DirectoryStore

__all__ = ["EventualCheckpoint", "LoggedBatch", "load_eventual"]

_THREADS = 4
_LEAST = 8_192
"""Records that are read in about the time that any fewer take."""
_AHEAD = 4
"""What part of the records read so far may be read for nothing."""

_NAMED = 3
_CURE = "restore the file from a backup of the store; older footprints, which could do instead, have been released"

Indices = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class LoggedBatch:
    """A batch of the log: its epoch and where it is.

    `closings` is how many of its records say that a window closed. If one of them is lost, an older footprint of the
    window would seem to be one of an open window; by this number it is known that one was lost.
    """

    epoch: int
    punit: PUnit
    closings: int = 0


@dataclass(frozen=True, slots=True)
class EventualCheckpoint:
    """The last footprints of all open windows, and what it took to find them.

    `rows` has the columns of the batches but for kind and fingerprint, and `TAU`, the epoch of the footprint. `oldest`
    is the least of these. `records` is the extent: how many there are from the log's end to the last batch needed,
    whatever was read ahead; `bytes` and `left_out` are of the same batches. Where no window is open nothing is read,
    and `rows` has no other columns.
    """

    rows: pl.DataFrame
    windows: int
    oldest: int | None
    records: int
    bytes: int
    left_out: int
    chunks: int
    seconds: float


def load_eventual(
    store: DirectoryStore,
    batches: Iterable[LoggedBatch],
    windows: int,
    ids: Sequence[str],
    *,
    pane: str | None = None,
    closed: int | None = None,
    grouped: bool = False,
    resting: bool = False,
    chunk_records: int = 262_144,
) -> EventualCheckpoint:
    """Read batches, newest first, until the last footprints of so many open windows are found.

    `ids` are the columns that name a window. With `pane` windows up to and including pane `closed` are known to be
    closed. `grouped` footprints consist of several records: they are used whole, or not at all. Where windows that
    have closed keep something and are among the `windows` (`resting`), their last records count as footprints.
    """
    started = time.perf_counter()
    search = _LogSearch(windows, ids, pane, closed, grouped, resting)
    log = iter(batches)
    with ThreadPoolExecutor(_THREADS) as pool:
        while search.missing > 0:
            chunk = list(_next_chunk(log, min(chunk_records, search.worth_reading)))
            if not chunk:
                raise search.incomplete()
            punits = [batch.punit for batch in chunk]
            epochs = [batch.epoch for batch in chunk]
            search.take(chunk, list(pool.map(read_batch, repeat(store), punits, epochs)))
    search.check()
    return EventualCheckpoint(
        rows=pl.concat(search.found, rechunk=True) if search.found else pl.DataFrame(schema={TAU: pl.Int64}),
        windows=windows,
        oldest=search.oldest,
        records=search.records,
        bytes=search.bytes,
        left_out=search.left_out,
        chunks=search.chunks,
        seconds=time.perf_counter() - started,
    )


def _next_chunk(log: Iterator[LoggedBatch], wanted: int) -> Iterator[LoggedBatch]:
    """The next batches with at least so many records, if there are."""
    while wanted > 0:
        batch = next(log, None)
        if batch is None:
            return
        wanted -= batch.punit.rows
        yield batch


@dataclass(slots=True)
class _LogSearch:
    """What has been found so far on the way back."""

    wanted: int
    ids: Sequence[str]
    pane: str | None
    closed: int | None
    grouped: bool
    resting: bool
    found: list[pl.DataFrame] = field(default_factory=list)
    windows: int = 0
    oldest: int | None = None
    records: int = 0
    bytes: int = 0
    left_out: int = 0
    chunks: int = 0
    _damaged: list[str] = field(default_factory=list)
    _lost_closing: int | None = None
    """The last epoch of which a record is lost that says that a window closed."""
    _names: list[pl.DataFrame] = field(default_factory=list)
    """The ids of the windows found so far, open and closed."""
    _codes: list[Positions] = field(default_factory=list)
    """Their codes."""

    @property
    def missing(self) -> int:
        return self.wanted - self.windows

    @property
    def worth_reading(self) -> int:
        """How many records to read next: what is surely needed, or a little more instead of in many small steps."""
        return max(self.missing, self.records // _AHEAD, _LEAST)

    def take(self, chunk: Sequence[LoggedBatch], read: Sequence[tuple[pl.DataFrame, int]]) -> None:
        """Add what a chunk of the log has that newer ones had not, up to the batch with the last window wanted.

        What was read beyond it does not count: what is found does not depend on the size of chunks.
        """
        self.chunks += 1
        frames = [self._usable(rows, left_out) for rows, left_out in read]
        firsts, chosen = self._new(frames)
        start = 0
        for batch, (rows, left_out), usable in zip(chunk, read, frames, strict=True):
            stop = start + usable.height
            self._account(batch, rows, left_out)
            if usable.height:
                self._keep(batch.epoch, usable, firsts[start:stop], chosen[start:stop])
            if self.missing <= 0:
                return
            start = stop

    def _usable(self, rows: pl.DataFrame, left_out: int) -> pl.DataFrame:
        """The records of a batch that may be needed."""
        if left_out and self.grouped:  # it is unknown whose records are missing
            return rows.clear()
        if self.pane is not None and self.closed is not None and rows.height:
            return rows.filter(pl.col(self.pane) > self.closed)
        return rows

    def _account(self, batch: LoggedBatch, rows: pl.DataFrame, left_out: int) -> None:
        self.records += batch.punit.rows
        self.bytes += batch.punit.bytes
        if not left_out:
            return
        self.left_out += batch.punit.rows if self.grouped else left_out
        self._damaged.append(batch.punit.name)
        closings = (rows[KIND] == FootprintKind.CLOSED).sum() if rows.height and not self.grouped else 0
        if closings < batch.closings and self._lost_closing is None:
            self._lost_closing = batch.epoch

    def _keep(self, epoch: int, rows: pl.DataFrame, firsts: Mask, chosen: Mask) -> None:
        """Keep the chosen records of open windows; each has one that is the first."""
        is_open = np.full(rows.height, True) if self.resting else rows[KIND].to_numpy() != FootprintKind.CLOSED
        found = int(np.count_nonzero(firsts & is_open))
        if not found:
            return
        self.windows += found
        self.oldest = epoch if self.oldest is None else min(epoch, self.oldest)
        kept = rows.drop(KIND, FINGERPRINT).filter(chosen & is_open)
        self.found.append(kept.with_columns(pl.lit(epoch, pl.Int64).alias(TAU)))

    def _new(self, frames: Sequence[pl.DataFrame]) -> tuple[Mask, Mask]:
        """Which rows are the first of a window not met before, and which are of such a footprint."""
        frames = [rows for rows in frames if rows.height]
        if not frames:
            return np.zeros(0, dtype=bool), np.zeros(0, dtype=bool)
        names = pl.concat([*self._names, *(rows.select(self.ids) for rows in frames)])
        codes = np.concatenate([*self._codes, *(self._coded(rows) for rows in frames)])
        known = sum(map(len, self._codes))
        order, heads = _by_window(codes, names)
        first = np.minimum.reduceat(order, heads)  # rows of newer batches come first
        firsts = np.zeros(len(codes), dtype=bool)
        firsts[first] = True
        firsts[:known] = False
        chosen = firsts
        if self.grouped:
            batch_of = np.repeat(np.arange(-1, len(frames)), [known, *(rows.height for rows in frames)])
            chosen = np.empty(len(codes), dtype=bool)
            chosen[order] = batch_of[order] == np.repeat(batch_of[first], np.diff(heads, append=len(order)))
        new = first[first >= known]
        self._names.append(names[new])
        self._codes.append(codes[new])
        return firsts[known:], chosen[known:]

    def _coded(self, rows: pl.DataFrame) -> Positions:
        """A number for each row that is the same for the same window, and hardly ever for two."""
        return window_codes(rows, self.pane)

    def check(self) -> None:
        """Refuse a checkpoint with windows that may have been closed."""
        if self._lost_closing is not None and self.oldest is not None and self.oldest < self._lost_closing:
            raise CorruptPUnitError(
                f"which windows were closed in epoch {self._lost_closing} is lost{self._damage()}",
                cure=_CURE,
                epoch=self._lost_closing,
            )
        if self.windows > self.wanted:
            raise CorruptPUnitError(
                f"the log has footprints of {self.windows} open windows, where {self.wanted} were open{self._damage()}",
                cure=_CURE,
            )

    def incomplete(self) -> CorruptPUnitError:
        """The log ended too early."""
        return CorruptPUnitError(
            f"the footprints of {self.missing} of {self.wanted} open windows are missing from the log{self._damage()}",
            cure=_CURE,
        )

    def _damage(self) -> str:
        if not self.left_out:
            return "; no record was left out as damaged"
        more = ", ..." if len(self._damaged) > _NAMED else ""
        return (
            f"; left out as damaged: {counted(self.left_out, 'record')}, of {', '.join(self._damaged[:_NAMED])}{more}"
        )


def _by_window(codes: Positions, names: pl.DataFrame) -> tuple[Indices, Indices]:
    """An order of the rows by window, and where in it each window begins."""
    order = np.argsort(codes)
    ranked = codes[order]
    same = ranked[1:] == ranked[:-1]
    again = np.flatnonzero(same)
    if len(again) and differ(names[order[again]], names[order[again + 1]], names.columns).any():
        return _by_window(_exact_codes(names), names)
    return order, np.flatnonzero(np.concatenate([[True], ~same]))


def _exact_codes(names: pl.DataFrame) -> Positions:
    """Codes of which no two windows share one: the number of a window's first row. Nulls are equal, NaNs are too."""
    numbered = names.with_row_index(NUMBER)
    return numbered.select(pl.col(NUMBER).first().over(names.columns))[NUMBER].to_numpy().astype(np.uint64)
