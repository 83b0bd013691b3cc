"""Lift by counting: partial aggregates of rows by small integer keys, without a hash table.

Rows in order of time fall into panes as consecutive runs, so a row's cell in the grid (pane, key, …) is cheap to
number; of rows in another order, as several clients send them, the pane of each is a division. Counts and sums per cell
are one pass of NumPy's `bincount` each. This is faster than grouping by hash, and it serves the most common windows:
counts, sums and means by ids. Where anything does not fit (strings, nulls, keys spread too far, integers whose sum
could leave the range a float holds exactly) the caller groups by hash instead.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from holdfast.graph.durations import EventTime
from holdfast.graph.nodes import WindowAggregate
from holdfast.hidden_columns import FROM, PANE, ROWS
from holdfast.operators.sliding import WindowShape

__all__ = ["dense_partials", "is_dense"]

_MOST_CELLS = 1 << 21
_FEW_CELLS = 1 << 12
"""So many cost less than a hash table, however few rows there are."""
_ROWS_PER_CELL = 4
_EXACT = 1 << 53
_BLOCK = 1 << 17
"""Rows counted at a time: what is computed about them stays in the cache."""

Array = npt.NDArray[Any]


def is_dense(node: WindowAggregate, schema: Mapping[str, pl.DataType]) -> bool:
    """Whether counting can serve this operator at all, by the types of its keys and what it aggregates."""
    return all(schema[key].is_integer() and schema[key] not in (pl.UInt64, pl.Int128) for key in node.keys) and all(
        set(bound.dense) == set(bound.state)
        and all(column is None or _summable(schema.get(column)) for _, column in bound.dense.values())
        for bound in node.aggregates
    )


def _summable(dtype: pl.DataType | None) -> bool:
    return dtype is not None and (dtype.is_float() or (dtype.is_integer() and dtype not in (pl.UInt64, pl.Int128)))


def dense_partials(
    rows: pl.DataFrame, node: WindowAggregate, time: EventTime, shape: WindowShape
) -> pl.DataFrame | None:
    """The partials of rows, or None if these rows do not suit."""
    if not rows.height or any(rows[name].null_count() for name in rows.columns):
        return None
    in_time = time.of(rows)
    ordered, times = in_time.is_sorted(), in_time.to_numpy()
    first, last = _panes_of(times, shape, ordered=ordered)
    grid = _Grid.over(rows, node.keys, first, last)
    if grid is None:
        return None
    sums = {
        state: (column, np.zeros(grid.size))
        for bound in node.aggregates
        for state, (kind, column) in bound.dense.items()
        if kind == "sum" and column is not None
    }
    if not all(_exact(rows[column]) for column, _ in sums.values()):
        return None
    counts = np.zeros(grid.size, dtype=np.int64)
    for start in range(0, rows.height, _BLOCK):
        block = rows.slice(start, _BLOCK)
        grid.add(block, times[start : start + _BLOCK], shape, counts, list(sums.values()), ordered=ordered)
    filled = np.flatnonzero(counts)
    panes, *keys = grid.coordinates(filled, rows.schema)
    columns = [*keys, panes, pl.Series(FROM, [None], dtype=pl.Int64).new_from_index(0, len(filled))]
    for state, dtype in node.state_schema.items():
        values: Array = sums[state][1] if state in sums else counts
        columns.append(_typed(pl.Series(state, values[filled]), dtype))
    columns.append(pl.Series(ROWS, counts[filled]))
    return pl.DataFrame(columns)


def _panes_of(times: Array, shape: WindowShape, *, ordered: bool) -> tuple[int, int]:
    """The first and the last pane of rows with these times."""
    least, greatest = (times[0], times[-1]) if ordered else (times.min(), times.max())
    return int(least) // shape.pane, int(greatest) // shape.pane


def _typed(values: pl.Series, dtype: pl.DataType) -> pl.Series:
    return values if values.dtype == dtype else values.cast(dtype)


def _exact(values: pl.Series) -> bool:
    """Whether the sum of any of these values is the same in floating point; floats are summed as they are."""
    if not values.dtype.is_integer():
        return True
    low, high = values.min(), values.max()
    assert isinstance(low, int)
    assert isinstance(high, int)
    return max(abs(low), abs(high)) * len(values) < _EXACT


@dataclass(frozen=True, slots=True)
class _Grid:
    """Cells numbered by pane and keys: each key takes `width` places from `low` on."""

    first: int
    panes: int
    keys: tuple[str, ...]
    low: tuple[int, ...]
    width: tuple[int, ...]

    @staticmethod
    def over(rows: pl.DataFrame, keys: tuple[str, ...], first: int, last: int) -> _Grid | None:
        most = max(_FEW_CELLS, min(_MOST_CELLS, rows.height // _ROWS_PER_CELL))
        size = last - first + 1
        low, width = [], []
        for key in keys:
            if size > most:
                return None
            least, greatest = rows[key].min(), rows[key].max()
            assert isinstance(least, int)
            assert isinstance(greatest, int)
            low.append(least)
            width.append(greatest - least + 1)
            size *= width[-1]
        return _Grid(first, last - first + 1, keys, tuple(low), tuple(width)) if size <= most else None

    @property
    def stride(self) -> int:
        """Cells per pane."""
        return int(np.prod(self.width, dtype=np.int64)) if self.width else 1

    @property
    def size(self) -> int:
        return self.panes * self.stride

    def add(
        self,
        rows: pl.DataFrame,
        times: Array,
        shape: WindowShape,
        counts: Array,
        sums: list[tuple[str, Array]],
        *,
        ordered: bool,
    ) -> None:
        """Count a block of rows, and add up the columns of `sums` into their arrays."""
        first, last = _panes_of(times, shape, ordered=ordered)
        panes = slice(first - self.first, last - self.first + 1)
        if ordered:
            edges = (np.arange(first + 1, last + 1) * shape.pane).astype(times.dtype)
            cuts = np.concatenate([[0], np.searchsorted(times, edges, side="left"), [len(times)]])
            if not self.keys:
                self._add_runs(rows, panes, cuts, counts, sums)
                return
            pane = np.repeat(np.arange(last - first + 1), np.diff(cuts))
        else:
            pane = (times.astype(np.int64) // shape.pane) - first
        cell = pane * self.stride
        step = self.stride
        for key, low, width in zip(self.keys, self.low, self.width, strict=True):
            step //= width
            values = rows[key].to_numpy()
            cell += (values.astype(np.int64) - low) * step if low or step > 1 else values
        cells = slice(panes.start * self.stride, panes.stop * self.stride)
        size = cells.stop - cells.start
        counts[cells] += np.bincount(cell, minlength=size)
        for column, total in sums:
            total[cells] += np.bincount(cell, weights=rows[column].to_numpy(), minlength=size)

    @staticmethod
    def _add_runs(rows: pl.DataFrame, panes: slice, cuts: Array, counts: Array, sums: list[tuple[str, Array]]) -> None:
        """Without keys a cell is a run of rows."""
        lengths = np.diff(cuts)
        counts[panes] += lengths
        runs = np.flatnonzero(lengths)
        for column, total in sums:
            array = rows[column].to_numpy().astype(np.float64, copy=False)
            total[panes][runs] += np.add.reduceat(array, cuts[:-1][runs])

    def coordinates(self, cells: Array, schema: pl.Schema) -> list[pl.Series]:
        """Keys and pane of cells."""
        pane, rest = np.divmod(cells, self.stride)
        columns = [_typed(pl.Series(PANE, pane + self.first), pl.Int64())]
        step = self.stride
        for key, low, width in zip(self.keys, self.low, self.width, strict=True):
            step //= width
            place, rest = np.divmod(rest, step)
            columns.append(_typed(pl.Series(key, place + low), schema[key]))
        return columns
