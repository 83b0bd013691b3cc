"""The measured load of key positions: how many rows came to which part of a key interval, and which keys stand out.

A task that assembles an operator's partition counts what arrived, in buckets of equal length over the partition's own
interval. One key is one position, which no routing can split: positions with a considerable part of the rows are
found exactly and keep the key's values as text, so that a person recognises them. `merged` puts the loads of several
partitions and epochs together to one profile of the whole line of positions.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import polars as pl

from holdfast.hidden_columns import POSITION
from holdfast.state.manifest import Interval
from holdfast.state.position import Positions

__all__ = ["Cell", "HeavyKey", "KeyLoad", "LoadProfile", "measure", "merged"]

_BUCKET_BITS = 6
_SAMPLE = 4_096
_CONSIDERABLE = 1 / 16
"""The part of a partition's rows from which on a position counts as heavy."""
_MOST_HEAVY = 3
_LEAST_HEAVY_ROWS = 8
_MOST_KEY_TEXT = 80


@dataclass(frozen=True, slots=True)
class HeavyKey:
    """A position with many rows, and the key (or one of the keys) that stands there."""

    position: int
    rows: float
    key: str


@dataclass(frozen=True, slots=True)
class KeyLoad:
    """What came to an interval of positions: rows per bucket, those of heavy keys among them."""

    interval: Interval
    rows: int
    buckets: tuple[int, ...] = ()
    heavy: tuple[HeavyKey, ...] = ()


@dataclass(frozen=True, slots=True)
class Cell:
    """Rows that are spread over an interval in a way that was not looked at more closely."""

    lo: int
    hi: int
    rows: float


@dataclass(frozen=True, slots=True)
class LoadProfile:
    """Load over the line of positions: cells without gaps in order, and beside them what heavy keys have."""

    cells: tuple[Cell, ...] = ()
    heavy: tuple[HeavyKey, ...] = ()

    @property
    def rows(self) -> float:
        return sum(cell.rows for cell in self.cells) + sum(key.rows for key in self.heavy)

    def within(self, interval: Interval) -> float:
        """The rows of an interval, taking those of a cell as spread evenly."""
        spread = sum(
            cell.rows * (hi - lo) / (cell.hi - cell.lo)
            for cell in self.cells
            if (lo := max(cell.lo, interval.lo)) < (hi := min(cell.hi, interval.hi))
        )
        return spread + sum(key.rows for key in self.heavy if interval.lo <= key.position < interval.hi)


def measure(frames: Sequence[pl.DataFrame], keys: Sequence[str], interval: Interval) -> KeyLoad:
    """Count the rows of frames with a column of positions, all of which lie in the interval."""
    columns = [frame[POSITION].to_numpy() for frame in frames if frame.height]
    if not columns:
        return KeyLoad(interval, 0)
    positions: Positions = columns[0] if len(columns) == 1 else np.concatenate(columns)
    away = positions - np.uint64(interval.lo) if interval.lo else positions
    numbers = away >> np.uint64(_shift(interval))
    counts = np.bincount(numbers.view(np.int64))  # at most 64 numbers: no sign to lose
    found = _heavy_positions(positions)
    heavy = tuple(HeavyKey(at, rows, _key_text(frames, keys, at)) for at, rows in found[:_MOST_HEAVY])
    return KeyLoad(interval, len(positions), tuple(counts.tolist()), heavy)


def _shift(interval: Interval) -> int:
    """By how many bits a distance within the interval is shifted to give its bucket, of which there are at most 64."""
    return max(0, (interval.hi - interval.lo - 1).bit_length() - _BUCKET_BITS)


def _heavy_positions(positions: Positions) -> list[tuple[int, int]]:
    """Positions with a considerable part of the rows, heaviest first. Of many rows, candidates are found in a sample
    and then counted in all of them."""
    least = max(_LEAST_HEAVY_ROWS, _CONSIDERABLE * len(positions))
    if len(positions) <= 2 * _SAMPLE:
        values, counts = np.unique(positions, return_counts=True)
        found = [(int(values[i]), int(counts[i])) for i in np.flatnonzero(counts >= least)]
    else:
        # Drawn at random, because rows may come in turns; with a seed, so that a measurement can be repeated.
        drawn = np.random.default_rng(len(positions)).integers(0, len(positions), _SAMPLE)
        values, counts = np.unique(positions[drawn], return_counts=True)
        order = np.argsort(-counts, kind="stable")[: 2 * _MOST_HEAVY]
        likely = values[order[counts[order] >= _CONSIDERABLE * _SAMPLE / 2]]
        counted = [(int(value), int(np.count_nonzero(positions == value))) for value in likely]
        found = [candidate for candidate in counted if candidate[1] >= least]
    return sorted(found, key=lambda candidate: (-candidate[1], candidate[0]))


def _key_text(frames: Sequence[pl.DataFrame], keys: Sequence[str], position: int) -> str:
    for frame in frames:
        index = frame[POSITION].index_of(position) if frame.height else None
        if index is not None:
            text = ", ".join(f"{key}={frame[key][index]!r}" for key in keys)
            return text if len(text) <= _MOST_KEY_TEXT else text[: _MOST_KEY_TEXT - 1] + "…"
    return ""


def merged(loads: Iterable[KeyLoad]) -> LoadProfile:
    """One profile of loads that may be of different partitions, epochs and routings."""
    spread: dict[Interval, dict[int, float]] = {}
    heavy: dict[int, HeavyKey] = {}
    for load in loads:
        buckets = spread.setdefault(load.interval, {})
        for number, rows in enumerate(load.buckets):
            if rows:
                buckets[number] = buckets.get(number, 0) + rows
        for key in load.heavy:
            bucket = (key.position - load.interval.lo) >> _shift(load.interval)
            buckets[bucket] -= key.rows
            known = heavy.get(key.position)
            heavy[key.position] = HeavyKey(key.position, key.rows + (known.rows if known else 0), key.key)
    counted = [cell for interval, buckets in spread.items() for cell in _cells(interval, buckets)]
    return LoadProfile(_flattened(counted), tuple(sorted(heavy.values(), key=lambda key: key.position)))


def _cells(interval: Interval, buckets: Mapping[int, float]) -> Iterable[Cell]:
    shift = _shift(interval)
    for number, rows in buckets.items():
        if rows > 0:
            lo = interval.lo + (number << shift)
            yield Cell(lo, min(interval.hi, lo + (1 << shift)), rows)


def _flattened(cells: Sequence[Cell]) -> tuple[Cell, ...]:
    """Cells over the whole line without gaps or overlaps, with the same rows."""
    edges = sorted({0, 1 << 64, *(cell.lo for cell in cells), *(cell.hi for cell in cells)})
    changes = [0.0] * len(edges)
    place = {edge: number for number, edge in enumerate(edges)}
    for cell in cells:
        # Only cells of different routings overlap; there, a part of a cell is taken to have its part of the rows.
        if place[cell.hi] == place[cell.lo] + 1:
            changes[place[cell.lo]] += cell.rows
            continue
        for number in range(place[cell.lo], place[cell.hi]):
            changes[number] += cell.rows * (edges[number + 1] - edges[number]) / (cell.hi - cell.lo)
    return tuple(Cell(lo, hi, rows) for (lo, hi), rows in zip(pairwise(edges), changes, strict=False))
