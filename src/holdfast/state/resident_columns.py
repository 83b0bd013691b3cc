"""Columns of a table that stays in memory: values by place, read and changed for many places at once.

A column of numbers, truth values or times is an array that is changed in place. Of other types the values lie in an
append-only series, and an array says where that of each place is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, Self

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

    def take(self, places: Sequence[Places], others: Sequence[Self]) -> pl.Series:
        """The values at places of this column, then at places of others, as a series of their own."""

    def put(self, places: Places, values: pl.Series, of: Places | None) -> None:
        """Change the values at distinct places: to all that are given, or to those `of` these numbers."""

    def joined(self, others: Sequence[Self], order: Places) -> Self:
        """A column with the values of this one and others, one after the other, then in this order."""


def resident_column(values: pl.Series) -> ResidentColumn:
    return _ArrayColumn.of(values) if _is_plain(values.dtype) else _SeriesColumn.of(values)


def empty_column(dtype: pl.DataType, count: int) -> ResidentColumn:
    """A column whose values are not set yet: they may be anything."""
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

    def take(self, places: Sequence[Places], others: Sequence[_ArrayColumn]) -> pl.Series:
        columns = [self, *others]
        series = pl.Series(_joined([column._values[at] for column, at in zip(columns, places, strict=True)]))
        if series.dtype != self._dtype:
            series = series.cast(self._dtype)
        if all(column._valid is None for column in columns):
            return series
        valid = _joined([column._valid_at(at) for column, at in zip(columns, places, strict=True)])
        return series if valid.all() else series.zip_with(pl.Series(valid), pl.Series([None], dtype=self._dtype))

    def _valid_at(self, places: Places) -> npt.NDArray[np.bool_]:
        return np.ones(len(places), dtype=bool) if self._valid is None else self._valid[places]

    def put(self, places: Places, values: pl.Series, of: Places | None) -> None:
        new, valid = _parts(values)
        if of is not None:
            new, valid = new[of], None if valid is None else valid[of]
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


def _joined(parts: list[npt.NDArray[np.generic]] | list[npt.NDArray[np.bool_]]) -> npt.NDArray[Any]:
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


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

    def take(self, places: Sequence[Places], others: Sequence[_SeriesColumn]) -> pl.Series:
        parts = zip([self, *others], places, strict=True)
        series = [column._values.gather(column._where[at]) for column, at in parts]
        return pl.concat(series) if others else series[0]

    def put(self, places: Places, values: pl.Series, of: Places | None) -> None:
        values = values if of is None else values.gather(of)
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
