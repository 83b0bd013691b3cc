"""Columns of a table that stays in memory: values by place, read and changed for many places at once.

A column of numbers, truth values or times is an array that is changed in place. Of other types the values lie in an
append-only series, and an array says where that of each place is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, Self

import numpy as np
import numpy.typing as npt
import polars as pl

__all__ = ["Places", "ResidentColumn", "empty_column", "owned", "resident_column"]

Places = npt.NDArray[np.int64]

_MOST_CHUNKS = 8


class ResidentColumn(Protocol):
    """The values of one column."""

    @property
    def nbytes(self) -> int: ...

    def take(self, places: Places) -> pl.Series:
        """The values at these places, as a series of their own."""

    def put(self, places: Places, values: pl.Series) -> None:
        """Change the values at distinct places."""

    def joined(self, others: Sequence[Self], order: Places) -> Self:
        """A column with the values of this one and others, one after the other, then in this order."""


def resident_column(values: pl.Series) -> ResidentColumn:
    return _ArrayColumn.of(values) if _is_plain(values.dtype) else _SeriesColumn.of(values)


def empty_column(dtype: pl.DataType, count: int) -> ResidentColumn:
    """A column whose values nobody has put in yet: they may be anything."""
    if _is_plain(dtype):
        return _ArrayColumn(dtype, np.zeros(count, dtype=pl.Series(dtype=dtype).to_physical().to_numpy().dtype), None)
    return _SeriesColumn.of(pl.repeat(None, count, dtype=dtype, eager=True))


def owned(values: pl.Series) -> pl.Series:
    """A copy with memory of its own: what it was taken from, a mapped file or a batch of rows, can go."""
    if values.dtype not in (pl.String, pl.Binary):
        return values.gather(np.arange(len(values)))
    copied = pl.from_arrow(values.to_arrow(compat_level=pl.CompatLevel.oldest()))
    assert isinstance(copied, pl.Series)
    return copied.alias(values.name)


def _is_plain(dtype: pl.DataType) -> bool:
    if dtype in (pl.Int128, pl.UInt128) or dtype.is_decimal():
        return False
    return dtype.is_integer() or dtype.is_float() or dtype.is_temporal() or dtype == pl.Boolean


class _ArrayColumn:
    """`valid` says which values are not null; None as long as there are none."""

    def __init__(self, dtype: pl.DataType, values: npt.NDArray[np.generic], valid: npt.NDArray[np.bool_] | None):
        self._dtype, self._values, self._valid = dtype, values, valid

    @classmethod
    def of(cls, series: pl.Series) -> _ArrayColumn:
        values, valid = _parts(series)
        return cls(series.dtype, values.copy(), valid)

    @property
    def nbytes(self) -> int:
        return self._values.nbytes + (0 if self._valid is None else self._valid.nbytes)

    def take(self, places: Places) -> pl.Series:
        series = pl.Series(self._values[places])
        if series.dtype != self._dtype:
            series = series.cast(self._dtype)
        if self._valid is not None and not (valid := self._valid[places]).all():
            series = series.zip_with(pl.Series(valid), pl.Series([None], dtype=self._dtype))
        return series

    def put(self, places: Places, values: pl.Series) -> None:
        new, valid = _parts(values)
        self._values[places] = new
        if valid is not None and self._valid is None:
            self._valid = np.ones(len(self._values), dtype=bool)
        if self._valid is not None:
            self._valid[places] = True if valid is None else valid

    def joined(self, others: Sequence[_ArrayColumn], order: Places) -> _ArrayColumn:
        parts = [self, *others]
        valid = None
        if any(part._valid is not None for part in parts):
            every = (np.ones(len(part._values), dtype=bool) if part._valid is None else part._valid for part in parts)
            valid = np.concatenate(list(every))[order]
        return _ArrayColumn(self._dtype, np.concatenate([part._values for part in parts])[order], valid)


def _parts(series: pl.Series) -> tuple[npt.NDArray[np.generic], npt.NDArray[np.bool_] | None]:
    """The values of a series, those of nulls being anything, and which are not null, unless all are."""
    physical = series.to_physical() if series.dtype.is_temporal() else series  # not as a query where it is none
    if not series.null_count():
        return physical.to_numpy(), None
    nothing = False if physical.dtype == pl.Boolean else 0
    return physical.fill_null(nothing).to_numpy(), series.is_not_null().to_numpy()


class _SeriesColumn:
    def __init__(self, values: pl.Series, where: Places) -> None:
        self._values, self._where = values, where

    @classmethod
    def of(cls, series: pl.Series) -> _SeriesColumn:
        return cls(owned(series).rechunk(), np.arange(len(series)))

    @property
    def nbytes(self) -> int:
        return int(self._values.estimated_size()) + self._where.nbytes

    def take(self, places: Places) -> pl.Series:
        return self._values.gather(self._where[places])

    def put(self, places: Places, values: pl.Series) -> None:
        self._where[places] = len(self._values) + np.arange(len(places))
        self._values = pl.concat([self._values, owned(values).alias(self._values.name)], rechunk=False)
        if len(self._values) > 2 * len(self._where) + len(places):
            self._values, self._where = self._values.gather(self._where), np.arange(len(self._where))
        elif self._values.n_chunks() > _MOST_CHUNKS:
            self._values = self._values.rechunk()

    def joined(self, others: Sequence[_SeriesColumn], order: Places) -> _SeriesColumn:
        parts = [self, *others]
        offsets = np.cumsum([0, *(len(part._values) for part in parts[:-1])])
        where = np.concatenate([part._where + offset for part, offset in zip(parts, offsets, strict=True)])
        values = pl.concat([part._values for part in parts], rechunk=False)
        return _SeriesColumn.of(values.gather(where[order]))
