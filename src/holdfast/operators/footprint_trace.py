"""The footprints that the windows of one operator partition leave in one epoch.

A step tells its trace which windows opened and what state they have, and asks it which of the others are to get a new
footprint: those whose last one is older than the driver wants it, found in the old batches of the log. The records
become one batch of the operator's log, and the driver gets the account.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt
import polars as pl

from holdfast.errors import CorruptPUnitError
from holdfast.hidden_columns import POSITION
from holdfast.operators.footprint_messages import FootprintOrder, FootprintsLeft
from holdfast.pstream import PUnit, append_punit, read_punit, stream_store, write_punit
from holdfast.state.extent import WindowMove
from holdfast.state.footprints import FootprintKind, read_batch, sealed
from holdfast.state.manifest import Interval
from holdfast.store import OpenSegments

__all__ = ["ALL_SEEN", "FootprintTrace", "Older", "trace_of"]

Flags = npt.NDArray[np.bool_]
Numbers = npt.NDArray[np.int64]
Classes = npt.NDArray[np.int64]
ALL_SEEN = -1
"""Of a batch in which nothing is left to do."""
_LEAST_PIECE = 64
_FOR_PIECES = 0.6
"""How much of the time is for choosing windows; the rest is for writing their records."""
_OF_PIECES = 0.6
"""How much of that a piece is to take: much of what it takes does not depend on its size."""
_CHANGE = 4.0
"""How much larger, or smaller, a piece is than the one before at most."""
_CAUTION = 1.25
"""What a piece may take more than the one before."""
_LARGE_SEGMENT = 1 << 20
"""Batches go to a segment until it has so many bytes."""


@dataclass(frozen=True, slots=True)
class Older:
    """A batch of the log that may hold last footprints which are too old; `skip` of its records were seen to."""

    epoch: int
    unit: PUnit
    skip: int


@dataclass(slots=True)
class FootprintTrace:
    """What the driver wants (`order`) and what came of it.

    While an epoch is replayed, windows ignore what they have seen and leave nothing. With `opening`, every window
    leaves a footprint, whatever it left before. Otherwise windows whose last footprint is older than `before`, and
    whose class is greater than `spare`, get a new one, as far as `seconds` allow: they are seen to in pieces, as large
    as the pieces before show them to fit in, in this epoch and in those before it.

    `spent` are the seconds that the step waited for this, `busy` those of them that it had a CPU.
    """

    epoch: int
    order: FootprintOrder
    older: Sequence[Older]
    """Batches of the order in which this task has something left to do."""
    name: str
    """Of the batch, unique to the attempt."""
    closed: int | None = None
    records: list[pl.DataFrame] = field(default_factory=list)
    checked: int = 0
    spent: float = 0.0
    busy: float = 0.0
    seen_to: dict[str, int] = field(default_factory=dict)
    damaged: bool = False
    _kinds: list[npt.NDArray[np.uint8]] = field(default_factory=list)
    _moves: list[tuple[pl.Series, Classes, Classes]] = field(default_factory=list)
    _all: bool = False
    """Whether windows left a footprint that did not open in this epoch, because all are to."""
    _held: bool = False
    _piece: int = field(init=False)
    _took: float = 0.0
    """By the last piece."""

    def __post_init__(self) -> None:
        self._piece = max(_LEAST_PIECE, self.order.piece)

    # what opened and what moved

    def leave(self, rows: pl.DataFrame, kinds: npt.NDArray[np.uint8] | FootprintKind) -> None:
        """Records of this epoch: POSITION, what names the window, its state."""
        if rows.height:
            self.records.append(rows)
            self._kinds.append(np.broadcast_to(np.asarray(kinds, dtype=np.uint8), rows.height))

    def count(self, taus: pl.Series, old: Classes, new: Classes) -> None:
        """Account for windows that left a footprint, with the epoch of their last one before (null where there was
        none) and their classes before and after."""
        self._moves.append((taus, old, new))

    @contextmanager
    def stalled(self, share: float = 1.0) -> Iterator[None]:
        """What is done in here is done for windows that need a new footprint, or so much of it."""
        began, running = time.perf_counter(), time.process_time()
        try:
            yield
        finally:
            self.spent += (time.perf_counter() - began) * share
            self.busy += (time.process_time() - running) * share

    @contextmanager
    def opening(self, *, first: bool) -> Iterator[None]:
        """All windows leave a footprint in here. With the `first` rows of all, they are those that open."""
        self._all = not first
        with self.stalled(float(self._all)):
            yield

    # which windows get a new footprint

    def oldest(self, taus: Numbers, due: Flags) -> Iterator[Numbers]:
        """Which of some windows, whose state is at hand, get a new footprint because their last one is too old: the
        oldest first, a piece at a time. The first piece goes with those that are `due` anyway, and costs little; for
        the rest there is half of the time, as there are windows without rows, too."""
        old = np.flatnonzero(~due & (taus < self.order.before))
        old = old[np.argsort(taus[old], kind="stable")]
        first = min(len(old), self._piece)
        self.checked += first
        with self.stalled(first / max(1, first + int(due.sum()))):
            yield old[:first]
        for start, stop in self._pieces(len(old), first, self.order.seconds / 2):
            self.checked += stop - start
            yield old[start:stop]

    def chunks(self, columns: Sequence[str], interval: Interval) -> Iterator[tuple[int, pl.DataFrame]]:
        """The names of windows that may need a new footprint, oldest first, with the epoch of their old one, a few at
        a time, while there is time. Who takes them says `hold` if one of them must be looked at again."""
        for number, older in enumerate(self.older):
            if number and not self._has_time(self.order.seconds):
                return
            with self.stalled():
                rows, inside = self._names(older, [POSITION, *columns], interval)
            self._held, stop = False, older.skip
            for start, stop in self._pieces(len(inside), older.skip, self.order.seconds, always=not number):
                yield older.epoch, rows[inside[start:stop]]
                if not self._held:
                    self.seen_to[older.unit.name] = stop
            if stop >= len(inside) and not self._held:
                self.seen_to[older.unit.name] = ALL_SEEN

    def _pieces(self, many: int, start: int, seconds: float, *, always: bool = False) -> Iterator[tuple[int, int]]:
        """So many things piece by piece, while there is time. What is done with a piece is measured, and the next one
        is as large as the CPU time allows: a smaller one would wait for a CPU no less. The first one may come in any
        case (`always`)."""
        while start < many and (always or self._has_time(seconds)):
            spent, busy, stop = self.spent, self.busy, min(many, start + self._piece)
            with self.stalled():
                yield start, stop
            self._took = max(1e-6, self.spent - spent)
            fits = _OF_PIECES * _FOR_PIECES * self.order.seconds / max(1e-6, self.busy - busy)
            if fits < 1 or stop - start == self._piece:
                self._resize(fits)
            start, always = stop, False

    def _resize(self, fits: float) -> None:
        """So many times as much would have been right."""
        self._piece = max(_LEAST_PIECE, int(self._piece * min(_CHANGE, max(1 / _CHANGE, fits))))

    def _has_time(self, seconds: float) -> bool:
        """Whether another piece can be expected to fit in."""
        return _FOR_PIECES * seconds - self.spent > _CAUTION * self._took

    def hold(self) -> None:
        """A window of this chunk still has its old footprint as the last one."""
        self._held = True

    def checkpointed(self, windows: int) -> None:
        self.checked += windows

    def _names(self, older: Older, columns: list[str], interval: Interval) -> tuple[pl.DataFrame, Numbers]:
        """The records of a batch, and which of them are of this partition."""
        store = stream_store(Path(self.order.root), self.order.stream, self.order.sync)
        try:
            rows = read_punit(store, older.unit)
        except CorruptPUnitError:
            rows, left_out = read_batch(store, older.unit, older.epoch)
            self.damaged = self.damaged or left_out > 0
        if not rows.height:
            return rows, np.arange(0)
        positions = rows[POSITION].to_numpy()
        inside = (positions >= np.uint64(interval.lo)) & (positions <= np.uint64(interval.hi - 1))
        return rows.select(columns), np.flatnonzero(inside)

    # what the driver gets

    def write(self, segments: OpenSegments | None = None) -> FootprintsLeft | None:
        """Write the batch, durably or to be synced with `segments`, and say what it holds; None for an epoch that is
        replayed."""
        if self.order.replaying:
            return None
        unit, store = None, stream_store(Path(self.order.root), self.order.stream, self.order.sync)
        height = max(1, sum(rows.height for rows in self.records))
        with self.stalled(1.0 if self._all else min(1.0, self.checked / height)):
            if self.records:
                # All at once: to seal a few records takes about as long as to seal thousands.
                rows = sealed(pl.concat(self.records), np.concatenate(self._kinds), self.epoch)
                if segments is None:
                    unit = write_punit(store, self.name, rows)
                else:
                    unit = append_punit(segments.at(store.root, store.sync, _LARGE_SEGMENT), self.epoch, rows)
            opened, moved = self._account()
        if self.checked and self.busy > self.order.seconds:
            self._resize(self.order.seconds / self.busy)
        return FootprintsLeft(
            unit=unit,
            place=str(store.root),
            opened=opened,
            moved=moved,
            closed=self.closed,
            checked=self.checked,
            seconds=self.spent,
            busy=self.busy,
            piece=self._piece,
            seen_to=self.seen_to,
            damaged=self.damaged,
        )

    def _account(self) -> tuple[dict[int, int], tuple[WindowMove, ...]]:
        """The windows that left their first footprint, by class, and those that had one."""
        if not self._moves:
            return {}, ()
        taus, old, new = zip(*self._moves, strict=True)
        frame = pl.DataFrame({"tau": pl.concat(taus), "old": np.concatenate(old), "new": np.concatenate(new)})
        if self.order.opening:  # the account starts over
            frame = frame.with_columns(pl.lit(None, pl.Int64).alias("tau"))
        opened: Counter[int] = Counter()
        moved: list[WindowMove] = []
        for tau, was, now, windows in frame.group_by("tau", "old", "new").len().iter_rows():
            if tau is None:
                opened[now] += windows
            else:
                moved.append(WindowMove(tau, was, now, windows))
        return dict(opened), tuple(moved)


def trace_of(order: FootprintOrder | None, operator: str, epoch: int, task: int, attempt: str) -> FootprintTrace | None:
    """The trace that the driver asks for, if it does."""
    if order is None:
        return None
    older = [
        Older(batch.epoch, batch.unit, skip) for batch in order.older if (skip := batch.skip.get(task, 0)) != ALL_SEEN
    ]
    name = f"{epoch:012d}-{operator}-{task}-{attempt[:12]}.footprints.arrow"
    return FootprintTrace(epoch, order, older, name)
