"""Key position: where a key stands on the line from 0 to 2**64 - 1.

Routing state maps intervals of this line to partitions, and state tables are sorted by it. The hash is our own,
written out in NumPy, because positions are stored: they must be the same in every version, on every machine.
`tests/state/test_position.py` holds golden values. POSITION_VERSION goes into every store; change the function and
you must change the number.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa

from holdfast.errors import WrongTypeError

__all__ = ["MIX1", "MIX2", "Positions", "is_one_to_one", "key_positions", "mixed", "supports_key"]

Positions = npt.NDArray[np.uint64]

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
MIX1 = np.uint64(0xBF58476D1CE4E5B9)
MIX2 = np.uint64(0x94D049BB133111EB)
_BYTE_BASE = np.uint64(0x100000001B3)
_NULL = np.uint64(0x6E756C6C6E756C6C)
_NO_KEYS = np.uint64(0)


def mixed(x: Positions) -> Positions:
    """The finaliser of SplitMix64: every input bit reaches every output bit."""
    x = x + _GOLDEN
    x ^= x >> np.uint64(30)
    x *= MIX1
    x ^= x >> np.uint64(27)
    x *= MIX2
    x ^= x >> np.uint64(31)
    return x


_WIDE = (pl.Int128, pl.UInt128)
"""Integers that do not fit the 64-bit word a position is made from."""


def supports_key(dtype: pl.DataType) -> bool:
    """Whether columns of this type can be keys."""
    if dtype in _WIDE or dtype.is_decimal():
        return False
    return dtype.is_integer() or dtype.is_float() or dtype.is_temporal() or dtype in (pl.String, pl.Binary, pl.Boolean)


def is_one_to_one(dtype: pl.DataType) -> bool:
    """Whether different values of this type, as the only column of a key, always have different positions. The mix of
    a single word is one to one; a null has the word of some number."""
    return supports_key(dtype) and (dtype.is_integer() or dtype.is_temporal() or dtype == pl.Boolean)


def key_positions(keys: Sequence[pl.Series], rows: int | None = None) -> Positions:
    """The position of each row's key. Without key columns all `rows` rows are one group, at position 0."""
    if not keys:
        return np.full(rows or 0, _NO_KEYS, dtype=np.uint64)
    with np.errstate(over="ignore"):
        result = mixed(_words(keys[0]))
        for column in keys[1:]:
            result = mixed(result * MIX1 ^ _words(column))
    return result


def _words(column: pl.Series) -> Positions:
    """One 64-bit word per value; equal values of different widths get equal words."""
    dtype, nulls = column.dtype, column.null_count() > 0
    if not supports_key(dtype):
        raise WrongTypeError(
            f"column '{column.name}' is {dtype}, which cannot be a key",
            cure="use integer (up to 64 bits), float, string, binary, boolean or date/time columns as keys",
        )
    if dtype in (pl.String, pl.Binary):
        words = _hash_bytes(column)
    elif dtype.is_float():
        # -0.0 equals 0.0 and every NaN equals every NaN, so each must have one bit pattern.
        values = column.cast(pl.Float64).fill_null(0.0).to_numpy() + 0.0
        values = np.where(np.isnan(values), np.nan, values)
        words = values.view(np.uint64).copy()
    else:
        wide = column.to_physical() if dtype.is_temporal() else column
        wide = wide if dtype in (pl.UInt64, pl.Int64) else wide.cast(pl.Int64)
        words = (wide.fill_null(0) if nulls else wide).to_numpy().view(np.uint64)
    if nulls:
        words = words.copy()
        words[column.is_null().to_numpy()] = _NULL
    return words


def _hash_bytes(column: pl.Series) -> Positions:
    """A polynomial over the bytes modulo 2**64, by prefix sums: vectorised over all strings at once."""
    array = column.cast(pl.Binary).to_arrow()
    if isinstance(array, pa.ChunkedArray):
        array = array.combine_chunks()
    array = array.cast(pa.large_binary())
    if array.null_count:
        array = array.fill_null(b"")
    n = len(array)
    if n == 0:
        return np.zeros(0, dtype=np.uint64)
    buffers = array.buffers()
    offsets = np.frombuffer(buffers[1], dtype=np.int64)[array.offset : array.offset + n + 1]
    start, stop = int(offsets[0]), int(offsets[-1])
    lengths = np.diff(offsets)
    result = lengths.astype(np.uint64)
    if stop > start:
        data = np.frombuffer(buffers[2], dtype=np.uint8)[start:stop]
        index = np.arange(stop - start, dtype=np.int64) - np.repeat(offsets[:-1] - start, lengths)
        terms = (data.astype(np.uint64) + np.uint64(1)) * _powers(int(lengths.max()))[index]
        sums = np.zeros(stop - start + 1, dtype=np.uint64)
        np.cumsum(terms, out=sums[1:])
        result = result * MIX2 + sums[offsets[1:] - start] - sums[offsets[:-1] - start]
    return result


@cache
def _powers_up_to(bits: int) -> Positions:
    powers = np.empty(1 << bits, dtype=np.uint64)
    powers[0] = 1
    filled = 1
    while filled < len(powers):
        step = powers[filled - 1] * _BYTE_BASE
        powers[filled : 2 * filled] = powers[:filled] * step
        filled *= 2
    return powers


def _powers(length: int) -> Positions:
    return _powers_up_to(max(4, (length - 1).bit_length()))
