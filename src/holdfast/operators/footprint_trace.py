"""The footprints that the windows of one operator partition leave in one epoch.

A step tells its trace which windows opened and what state they have, and asks it which of the others are to get a new
footprint: those whose last one is older than the driver wants it, found in the old batches of the log. The records
become one batch of the operator's log, and the driver gets the account.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Sequence
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

ALL_SEEN = -1
"""Of a batch in which nothing is left to do."""
_FIRST_CHUNK = 2_048
_LEAST_CHUNK = 256
_MARGIN = 0.8
"""How much of the time that is left a chunk may be expected to take."""
_SMALL_BATCH = 64_000
"""Bytes of a batch that is put into a segment with others."""


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
    whose class is greater than `spare`, get a new one, as far as `seconds` allow, which is for about `most` of them.
    """

    epoch: int
    order: FootprintOrder
    older: Sequence[Older]
    """Batches of the order in which this task has something left to do."""
    name: str
    """Of the batch, unique to the attempt."""
    closed: int | None = None
    records: list[pl.DataFrame] = field(default_factory=list)
    opened: Counter[int] = field(default_factory=Counter)
    moved: Counter[tuple[int, int, int]] = field(default_factory=Counter)
    checked: int = 0
    spent: float = 0.0
    seen_to: dict[str, int] = field(default_factory=dict)
    damaged: bool = False
    _began: float | None = None
    _held: bool = False
    _chunk: int = _FIRST_CHUNK

    # what opened and what moved

    def leave(self, rows: pl.DataFrame, kinds: npt.NDArray[np.uint8] | FootprintKind) -> None:
        """Records of this epoch: POSITION, what names the window, its state."""
        if rows.height:
            self.records.append(sealed(rows, kinds, self.epoch))

    def oldest(self, taus: npt.NDArray[np.int64], among: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
        """Which of some windows, whose state is at hand, get a new footprint because their last one is too old: the
        oldest of them, as many as there is time for."""
        old = among & (taus < self.order.before)
        if (more := int(old.sum()) - self.order.most) > 0:
            at = np.flatnonzero(old)
            newest = at[np.argsort(taus[at], kind="stable")[len(at) - more :]]
            old[newest] = False
        self.checked += int(old.sum())
        return old

    def count(self, taus: pl.Series, old: npt.NDArray[np.int64], new: npt.NDArray[np.int64]) -> None:
        """Account for windows that left a footprint, with the epoch of their last one before (null where there was
        none) and their classes before and after."""
        if self.order.opening:  # the account begins anew
            self.opened.update(_counted(new))
            return
        first = taus.is_null().to_numpy()
        self.opened.update(_counted(new[first]))
        if not first.all():
            frame = pl.DataFrame({"tau": taus, "old": old, "new": new}).filter(pl.col("tau").is_not_null())
            for tau, was, now, windows in frame.group_by("tau", "old", "new").len().iter_rows():
                self.moved[int(tau), int(was), int(now)] += int(windows)

    # who is to get a new footprint

    def chunks(self, columns: Sequence[str], interval: Interval) -> Iterator[tuple[int, pl.DataFrame]]:
        """The names of windows that may need a new footprint, oldest first, with the epoch of their old one, a few at
        a time, while there is time. Who takes them says `hold` if one of them must be looked at again."""
        self._began = time.perf_counter() - self.spent
        try:
            for older in self.older:
                if self._left() <= 0:
                    return
                yield from self._chunks_of(older, self._names(older, [POSITION, *columns], interval))
        finally:
            self.spent = self._since()

    def _chunks_of(self, older: Older, names: pl.DataFrame) -> Iterator[tuple[int, pl.DataFrame]]:
        start, self._held = older.skip, False
        while start < names.height and self._left() > 0:
            size, began = self._chunk, self._since()
            yield older.epoch, names.slice(start, size)
            start += size
            if not self._held:
                self.seen_to[older.unit.name] = start
            took, left = max(1e-6, self._since() - began), max(0.0, self._left())
            self._chunk = max(_LEAST_CHUNK, min(8 * size, int(_MARGIN * left * size / took)))
            if took * _LEAST_CHUNK / size > left:
                break
        if start >= names.height and not self._held:
            self.seen_to[older.unit.name] = ALL_SEEN

    def hold(self) -> None:
        """A window of this chunk still has its old footprint as the last one."""
        self._held = True

    def checkpointed(self, windows: int) -> None:
        self.checked += windows

    def _left(self) -> float:
        return self.order.seconds - self._since()

    def _since(self) -> float:
        assert self._began is not None
        return time.perf_counter() - self._began

    def _names(self, older: Older, columns: list[str], interval: Interval) -> pl.DataFrame:
        store = stream_store(Path(self.order.root), self.order.stream, self.order.sync)
        try:
            rows = read_punit(store, older.unit)
        except CorruptPUnitError:
            rows, left_out = read_batch(store, older.unit, older.epoch)
            self.damaged = self.damaged or left_out > 0
        if not rows.height:
            return pl.DataFrame(schema={POSITION: pl.UInt64})
        rows = rows.select(columns)
        if interval.lo == 0 and interval.hi == 1 << 64:
            return rows
        positions = rows[POSITION].to_numpy()
        inside = (positions >= np.uint64(interval.lo)) & (positions <= np.uint64(interval.hi - 1))
        return rows.filter(pl.Series(inside))

    # what the driver gets

    def write(self, segments: OpenSegments | None = None) -> FootprintsLeft | None:
        """Write the batch, durably or to be synced with `segments`, and say what it holds; None for an epoch that is
        replayed."""
        if self.order.replaying:
            return None
        unit, store = None, stream_store(Path(self.order.root), self.order.stream, self.order.sync)
        if self.records:
            began = time.perf_counter()
            rows = pl.concat(self.records) if len(self.records) > 1 else self.records[0]
            if segments is None or rows.estimated_size() > _SMALL_BATCH:
                unit = write_punit(store, self.name, rows)
            else:
                unit = append_punit(segments.at(store.root, store.sync, 4 * _SMALL_BATCH), self.epoch, rows)
            if self.checked:
                self.spent += (time.perf_counter() - began) * min(1.0, self.checked / rows.height)
        return FootprintsLeft(
            unit=unit,
            place=str(store.root),
            opened=dict(self.opened),
            moved=tuple(WindowMove(*move, windows) for move, windows in self.moved.items()),
            closed=self.closed,
            checked=self.checked,
            seconds=self.spent,
            seen_to=self.seen_to,
            damaged=self.damaged,
        )


def trace_of(order: FootprintOrder | None, operator: str, epoch: int, task: int, attempt: str) -> FootprintTrace | None:
    """The trace that the driver asks for, if it does."""
    if order is None:
        return None
    older = [
        Older(batch.epoch, batch.unit, skip) for batch in order.older if (skip := batch.skip.get(task, 0)) != ALL_SEEN
    ]
    name = f"{epoch:012d}-{operator}-{task}-{attempt[:12]}.footprints.arrow"
    return FootprintTrace(epoch, order, older, name)


def _counted(classes: npt.NDArray[np.int64]) -> dict[int, int]:
    values, counts = np.unique(classes, return_counts=True)
    return {int(value): int(count) for value, count in zip(values, counts, strict=True)}
