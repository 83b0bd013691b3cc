"""Checksums of an epoch's output, used to compare replicas.

Two replicas may output rows in a different order, and may add floating-point numbers in a different order, because one
of them has merged its state and the other has not. So a digest is a sum over rows, and floating-point columns are
compared by their sums, with a tolerance: once as they are, and once weighted by the hash of the rest of the row. So
values that are swapped between rows are detected, unless these rows are otherwise equal.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from holdfast.plurals import counted
from holdfast.state.position import key_positions, supports_key

__all__ = ["OutputDigest", "combined", "difference", "differences", "digest_of", "value_text"]

_WORD = 1 << 64
_WEIGHTS = float(1 << 53)
_TOLERANCE = 1e-9

_MOST = sys.float_info.max


@dataclass(frozen=True, slots=True)
class OutputDigest:
    """Of rows for a sink: how many, a sum of hashes, and the sums of floating point columns, plain and weighted, the
    former also of absolute values. Digests of before have no weighted sums."""

    rows: int
    hash: int
    sums: Mapping[str, tuple[float, float]]
    weighted: Mapping[str, float] | None = None


def digest_of(rows: pl.DataFrame) -> OutputDigest:
    hashed = [_hashable(rows[name]) for name, dtype in rows.schema.items() if not dtype.is_float()]
    floats = [name for name, dtype in rows.schema.items() if dtype.is_float()]
    hashes = key_positions(hashed, rows.height) if rows.height and hashed else np.zeros(rows.height, np.uint64)
    weights = (hashes >> np.uint64(11)) / _WEIGHTS
    return OutputDigest(
        rows.height,
        int(hashes.sum(dtype=np.uint64)) % _WORD,
        {name: _sums(rows[name]) for name in floats},
        {name: _finite(float(_numbers(rows[name]) @ weights)) for name in floats},
    )


def combined(first: OutputDigest | None, second: OutputDigest) -> OutputDigest:
    """The digest of the rows of both."""
    if first is None:
        return second
    sums = dict(first.sums)
    for name, (plain, absolute) in second.sums.items():
        before = sums.get(name, (0.0, 0.0))
        sums[name] = (_finite(before[0] + plain), _finite(before[1] + absolute))
    weighted = dict(first.weighted or {})
    for name, value in (second.weighted or {}).items():
        weighted[name] = _finite(weighted.get(name, 0.0) + value)
    return OutputDigest(first.rows + second.rows, (first.hash + second.hash) % _WORD, sums, weighted)


def difference(one: Mapping[str, OutputDigest], other: Mapping[str, OutputDigest]) -> str | None:
    """Where the outputs of two replicas differ, by sink; None if they agree."""
    return next(iter(differences(one, other).values()), None)


def differences(one: Mapping[str, OutputDigest], other: Mapping[str, OutputDigest]) -> dict[str, str]:
    """How two outputs differ, by the sinks in which they do."""
    found = {sink: _difference(sink, one.get(sink), other.get(sink)) for sink in sorted({*one, *other})}
    return {sink: what for sink, what in found.items() if what is not None}


def _difference(sink: str, first: OutputDigest | None, second: OutputDigest | None) -> str | None:
    if first is None or second is None:
        known = first or second
        if known is not None and known.rows:
            return f"one has {counted(known.rows, 'row')} for '{sink}', the other none"
        return None
    if first.rows != second.rows:
        return f"one has {counted(first.rows, 'row')} for '{sink}', the other {second.rows}"
    if first.hash != second.hash:
        return f"of {counted(first.rows, 'row')} for '{sink}', not all are the same"
    if first.sums.keys() != second.sums.keys():
        return f"the rows for '{sink}' have other columns"
    for name, (plain, absolute) in first.sums.items():
        most = _TOLERANCE * max(absolute, second.sums[name][1])
        if abs(plain - second.sums[name][0]) > most:
            return f"column '{name}' of the rows for '{sink}' sums up to {plain} and {second.sums[name][0]}"
        weighted = [digest.weighted[name] for digest in (first, second) if digest.weighted is not None]
        if max(weighted, default=0.0) - min(weighted, default=0.0) > most:
            return f"column '{name}' of the rows for '{sink}' has the same values in other rows"
    return None


def _sums(column: pl.Series) -> tuple[float, float]:
    values = _numbers(column)
    return _finite(float(values.sum())), _finite(float(np.abs(values).sum()))


def _finite(value: float) -> float:
    """JSON has no infinity. What is no number, because sums of both signs went beyond all bounds, counts as 0."""
    return 0.0 if math.isnan(value) else min(max(value, -_MOST), _MOST)


def _numbers(column: pl.Series) -> npt.NDArray[np.float64]:
    """What is summed up: what is no number counts as 1."""
    values = column.cast(pl.Float64).fill_null(1.0).to_numpy()
    return np.where(np.isfinite(values), values, 1.0)


def _hashable(column: pl.Series) -> pl.Series:
    if supports_key(column.dtype):
        return column
    return pl.Series(column.name, [value_text(value) for value in column.to_list()], dtype=pl.String)


def value_text(value: Any) -> str:
    """A value as text, floating point numbers with as many digits as are the same in any order of adding them up."""
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, dict):
        return "{" + ",".join(f"{name}:{value_text(inner)}" for name, inner in value.items()) + "}"
    if isinstance(value, list | pl.Series):
        return "[" + ",".join(value_text(inner) for inner in value) + "]"
    return str(value)
