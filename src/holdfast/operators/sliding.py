"""Windows from panes: how partial aggregates per pane become the aggregates of windows, without expansion.

Each group's panes are laid out in one flat array, runs of nearby panes side by side with room for `length - 1`
windows after each, so that a window of `length` cells never reaches into a neighbour. Then all windows of all
groups are found by a few array operations over the whole layout: running sums where the sum can be undone exactly
(integers), two passes of prefixes and suffixes over blocks of `length` (the array form of two stacks) for minimum,
maximum and floating-point sums, and doubling for aggregates known only by their combine.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from holdfast.hidden_columns import CELL

__all__ = [
    "Layout",
    "WindowShape",
    "kernels_cover",
    "lay_out",
    "slide_generic",
    "slide_kernel",
    "slide_presence",
]

Ints = npt.NDArray[np.int64]
Array = npt.NDArray[Any]
Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class WindowShape:
    """Windows in panes: window w covers panes `w * step` up to `w * step + length - 1`."""

    pane: int
    """Ticks per pane."""
    length: int
    step: int

    @staticmethod
    def of(size: int, slide: int) -> WindowShape:
        pane = int(np.gcd(size, slide))
        return WindowShape(pane, size // pane, slide // pane)

    @property
    def size(self) -> int:
        return self.length * self.pane

    @property
    def slide(self) -> int:
        return self.step * self.pane

    def last_closed(self, watermark: int) -> int:
        """The last window whose end the watermark has reached."""
        return (watermark - self.size) // self.slide

    def first_of(self, pane: int) -> int:
        """The first window that covers the pane."""
        return (pane - self.length) // self.step + 1

    def last_of(self, pane: int) -> int:
        """The last window that covers the pane."""
        return pane // self.step


@dataclass(frozen=True, slots=True)
class Layout:
    """Where each partial stands in the flat array, and what each cell of the array means as a window's last pane."""

    slot: Ints
    """For each partial, its cell."""
    cells: int
    group: Ints
    """For each cell, the row of a partial of the same group."""
    end: Ints
    """For each cell, the pane that is the last one of the window ending here."""


def lay_out(group: Ints, pane: Ints, length: int) -> Layout:
    """Lay out partials that are sorted by group and pane, at most one per group and pane."""
    n = len(pane)
    fresh = np.ones(n, dtype=bool)
    fresh[1:] = (group[1:] != group[:-1]) | (pane[1:] - length >= pane[:-1])
    starts = np.flatnonzero(fresh)
    stops = np.append(starts[1:], n)
    extents = pane[stops - 1] - pane[starts] + length
    offsets = np.cumsum(extents) - extents
    run = np.cumsum(fresh) - 1
    slot = offsets[run] + pane - pane[starts][run]
    cells = int(extents.sum())
    end = np.arange(cells, dtype=np.int64) + np.repeat(pane[starts] - offsets, extents)
    return Layout(slot, cells, np.repeat(starts, extents), end)


def slide_presence(layout: Layout, length: int, known: Bools | None = None) -> Bools:
    """Which cells end a window that holds a partial (that is `known`)."""
    present = np.zeros(layout.cells, dtype=np.int64)
    present[layout.slot] = True if known is None else known
    result: Bools = _running_sum(present, length) > 0
    return result


def slide_kernel(layout: Layout, values: pl.Series, kernel: str, length: int) -> pl.Series:
    """Sum, minimum or maximum over the last `length` cells, for every cell; null where no value is known."""
    raw = values.to_physical()
    known = raw.is_not_null().to_numpy()
    partly = not known.all()
    array = raw.fill_null(0).to_numpy() if partly else raw.to_numpy()
    identity = _identity(array.dtype, kernel)
    cells = np.full(layout.cells, identity, dtype=array.dtype)
    cells[layout.slot] = np.where(known, array, identity) if partly else array
    if kernel != "sum":
        result = _two_stacks(cells, length, np.fmin if kernel == "min" else np.fmax, identity)
    elif array.dtype.kind in "iu":
        result = _running_sum(cells, length)
    else:
        result = _two_stacks(cells, length, np.add, identity)
    series = pl.Series(values.name, result).cast(raw.dtype).cast(values.dtype)
    if partly:
        seen = pl.Series(slide_presence(layout, length, known))
        series = pl.select(pl.when(seen).then(series).alias(values.name)).to_series()
    return series


def _identity(dtype: np.dtype[Any], kernel: str) -> Any:
    if kernel == "sum":
        return dtype.type(0)
    if dtype.kind == "f":
        # fmin and fmax pass over NaN, as Polars does, and give NaN only where there is nothing else.
        return dtype.type(np.nan)
    info = np.iinfo(dtype)
    return dtype.type(info.max if kernel == "min" else info.min)


def _running_sum(cells: Array, length: int) -> Array:
    """Add what enters, take off what leaves: exact for integers, which wrap."""
    total = np.cumsum(cells, dtype=cells.dtype)
    result = total.copy()
    result[length:] -= total[:-length]
    return result


def _two_stacks(cells: Array, length: int, operation: np.ufunc, identity: Any) -> Array:
    """Prefixes and suffixes within blocks of `length`: a window is the suffix of one block and the prefix of the
    next. Nothing is ever taken off, so floats do not drift and infinities stay inside their windows."""
    n = len(cells)
    blocks = -(-n // length)
    padded = np.full(blocks * length, identity, dtype=cells.dtype)
    padded[:n] = cells
    grid = padded.reshape(blocks, length)
    with np.errstate(invalid="ignore"):  # inf - inf is NaN, and that is right
        prefix = operation.accumulate(grid, axis=1).reshape(-1)[:n]
        suffix = operation.accumulate(grid[:, ::-1], axis=1)[:, ::-1].reshape(-1)
    result = prefix.copy()
    # Cell i with i % length != length - 1 also needs the tail of the block before, from cell i - length + 1 on.
    index = np.arange(length - 1, n)
    index = index[(index + 1) % length != 0]
    with np.errstate(invalid="ignore"):
        result[index] = operation(suffix[index - length + 1], prefix[index])
    return result


def slide_generic(
    layout: Layout,
    partials: pl.DataFrame,
    combine: Callable[[pl.LazyFrame], pl.LazyFrame],
    length: int,
) -> pl.DataFrame:
    """Windows of `length` cells by doubling: combine cells 2, 4, 8, ... wide and put windows together from them.

    `partials` are the state columns; `combine` merges rows with the same CELL, earlier cells first.
    """
    block = partials.insert_column(0, pl.Series(CELL, layout.slot))
    result: pl.DataFrame | None = None
    reach = 0
    width = 1
    while True:
        if length & width:
            shifted = block.with_columns(pl.col(CELL) + reach)
            result = shifted if result is None else combine(pl.concat([shifted, result]).lazy()).collect()
            reach += width
        if reach == length:
            assert result is not None
            return result
        older = block.with_columns(pl.col(CELL) + width)
        block = combine(pl.concat([older, block]).lazy()).collect()
        width *= 2


def kernels_cover(columns: list[str], kernels: Mapping[str, str], schema: Mapping[str, pl.DataType]) -> bool:
    """Whether every state column can be assembled by an array kernel."""
    return all(
        column in kernels
        and (schema[column].is_numeric() or schema[column].is_temporal())
        and not schema[column].is_decimal()
        and schema[column] not in (pl.Int128, pl.UInt128)
        for column in columns
    )
