"""Statistics of a bounded sample of a column: what prunes the candidates and shows that the stream has changed."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import polars as pl

from holdfast.pstream.codecs.column import is_text, physical
from holdfast.pstream.codecs.encoding import Numbers, as_bits
from holdfast.pstream.codecs.floats import decimal_digits

__all__ = ["Statistics", "expected_distinct", "have_moved", "sample_of", "statistics_of"]

_DIGITS_SAMPLE = 256


@dataclass(frozen=True, slots=True)
class Statistics:
    """Shares are of the values in the sample; sizes are mean bits. Text has neither sizes nor decimals."""

    values: int
    nulls: float
    distinct: float
    """Of the sample; `distinct_in` says how many there will be in a batch."""
    run: float
    size: float
    """Of the distance of the values from their median."""
    delta_size: float
    """Of the differences between neighbours."""
    second_size: float
    """Of the differences between those."""
    digits: int | None
    """The decimals that hold the floats exactly, or none that do."""

    def distinct_in(self, rows: int) -> float:
        """The expected share of distinct values in so many rows."""
        return expected_distinct(self.values, self.distinct * self.values, rows) / max(1, rows)


def expected_distinct(sample: int, distinct: float, rows: int) -> float:
    """How many distinct values so many rows hold, if all values that there are were equally frequent.

    Of D values, n rows show D (1 - exp(-n / D)); D is found from what the sample showed.
    """
    if sample == 0 or distinct >= sample:
        return float(rows if sample else 0)
    low, high = distinct, 1e12
    for _ in range(60):
        middle = math.sqrt(low * high)
        shown = -middle * math.expm1(-sample / middle)
        low, high = (middle, high) if shown < distinct else (low, middle)
    return -low * math.expm1(-rows / low)


def sample_of(series: pl.Series, size: int, turn: int) -> pl.Series:
    """Neighbouring rows, so that runs and differences are seen; from another place at each turn."""
    if len(series) <= size:
        return series
    # Multiples of the golden ratio visit all places evenly.
    place = (turn * 0.6180339887498949) % 1.0
    return series.slice(int(place * (len(series) - size)), size)


def statistics_of(sample: pl.Series) -> Statistics:
    valid = sample.drop_nulls() if sample.null_count() else sample
    nulls = sample.null_count() / max(1, len(sample))
    if len(valid) == 0:
        return Statistics(0, nulls, 0.0, 1.0, 0.0, 0.0, 0.0, None)
    numbers = valid.hash().to_numpy() if is_text(sample.dtype) else physical(valid)
    bits = as_bits(numbers)
    runs = 1 + int(np.count_nonzero(bits[1:] != bits[:-1]))
    distinct = np.unique(bits).size / bits.size
    sizes, digits = (0.0, 0.0, 0.0), None
    if not is_text(sample.dtype):
        if numbers.dtype.kind == "f":
            found, missed = decimal_digits(numbers[:: max(1, numbers.size // _DIGITS_SAMPLE)])
            digits = found if missed <= 1 / 16 else None
        sizes = _sizes(numbers if numbers.dtype.kind != "f" else bits)
    return Statistics(bits.size, nulls, distinct, bits.size / runs, *sizes, digits)


def _sizes(numbers: Numbers) -> tuple[float, float, float]:
    deltas = np.diff(as_bits(numbers)).view(f"<i{numbers.dtype.itemsize}")
    seconds = np.diff(as_bits(deltas)).view(deltas.dtype)
    values = numbers.astype(np.float64)
    return _size(values - np.median(values)), _size(deltas), _size(seconds)


def _size(distances: Numbers) -> float:
    """A mean of logarithms, which a few outliers or a share near some quantile do not move."""
    if distances.size == 0:
        return 0.0
    return float(np.log2(1.0 + np.abs(distances.astype(np.float64))).mean())


def have_moved(old: Statistics, new: Statistics) -> bool:
    """Whether another encoding may be better now. Samples of one distribution differ by less than this."""
    if old.digits != new.digits or abs(old.nulls - new.nulls) > 0.1:
        return True
    before = (old.size, old.delta_size, old.second_size)
    after = (new.size, new.delta_size, new.second_size)
    if any(abs(one - other) > bits for one, other, bits in zip(before, after, (3.0, 1.5, 1.5), strict=True)):
        return True
    ratios = (new.run / old.run, (new.distinct + 0.001) / (old.distinct + 0.001))
    return not all(0.4 <= ratio <= 2.5 for ratio in ratios)
