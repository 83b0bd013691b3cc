"""What an encoding costs on this machine: bytes from a trial on a sample, CPU time from a calibration.

A trial encodes a part and the whole of the sample and draws a line through both, so that what is paid once per batch
(the values of a dictionary, calls) is told from what is paid per row. Bytes are tried on every sample. Times are
measured at the first trial of an encoding on a type of column and kept for the process.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

import polars as pl

from holdfast.pstream.codecs.column import EncodedColumn, encode_column
from holdfast.pstream.codecs.encoding import Encoding, EncodingMisfitError
from holdfast.pstream.codecs.statistics import expected_distinct

__all__ = ["Costs", "Estimate", "Line"]

_FEWEST, _MOST, _LONG_ENOUGH = 3, 10, 0.001
_SMALLEST_PART = 1024
_CALIBRATION = 131_072


@dataclass(frozen=True, slots=True)
class Line:
    """So much per batch and so much per row."""

    once: float
    each: float

    def at(self, rows: int) -> float:
        return self.once + self.each * rows

    @staticmethod
    def through(rows: int, value: float, more_rows: int, more: float) -> Line:
        if more_rows <= rows:
            return Line(0.0, more / max(1, more_rows))
        each = max(0.0, (more - value) / (more_rows - rows))
        return Line(max(0.0, more - each * more_rows), each)


@dataclass(frozen=True, slots=True)
class Estimate:
    """What an encoding is expected to cost for a batch of so many rows."""

    encoding: Encoding
    rows: int
    bytes: float
    seconds: float

    def total(self, bandwidth: float) -> float:
        """Seconds to encode the batch and write it."""
        return self.bytes / bandwidth + self.seconds

    @property
    def bytes_per_row(self) -> float:
        return self.bytes / self.rows

    def __str__(self) -> str:
        return f"{self.encoding} ({self.bytes_per_row:.2f} bytes, {1e9 * self.seconds / self.rows:.1f} ns per value)"


def _dictionary_size(encoded: EncodedColumn, sample: int, rows: int) -> float:
    """A dictionary fills up: its values grow slower than the rows, its codes do not."""
    values = encoded.parts.arrays[encoded.meta["data"]["values"]]
    fixed = int(values.nbytes)
    grown = expected_distinct(sample, len(values), rows) / len(values)
    return fixed * grown + (encoded.nbytes - fixed) * rows / sample


class Costs:
    """Estimates by trial, in CPU time of the thread. One instance per process is enough; tests pass their own clock."""

    def __init__(self, clock: Callable[[], float] = time.thread_time) -> None:
        self._clock = clock
        self._times: dict[tuple[str, str, int], Line] = {}

    def estimate(self, encoding: Encoding, sample: pl.Series, batch: pl.Series) -> Estimate | None:
        """For the batch the sample is from; none if the encoding does not suit it.

        The time is calibrated on the batch itself, because a small sample is mostly calls.
        """
        try:
            return self._estimate(encoding, sample, batch)
        except EncodingMisfitError:
            return None

    def _estimate(self, encoding: Encoding, sample: pl.Series, batch: pl.Series) -> Estimate:
        rows = len(batch)
        part = sample.head(len(sample) // 4) if len(sample) >= 4 * _SMALLEST_PART else sample
        encoded = encode_column(sample, encoding)
        whole = encoded.nbytes
        some = encode_column(part, encoding).nbytes
        size = Line.through(len(part), some, len(sample), whole).at(rows)
        if encoding.tag == "dictionary" and "data" in encoded.meta:
            size = _dictionary_size(encoded, len(sample), rows)
        # How well a general compressor does on the data decides how fast it is.
        key = (str(encoding), str(sample.dtype), round(2 * math.log2(whole / len(sample) + 1 / 16)))
        if key not in self._times:
            self._times[key] = self._calibrated(encoding, batch.head(_CALIBRATION))
        return Estimate(encoding, rows, size, self._times[key].at(rows))

    def least_seconds(self, encoding: Encoding, dtype: pl.DataType, rows: int) -> float:
        """The least time the encoding was ever seen to need on the type; nothing if it was never seen."""
        name = (str(encoding), str(dtype))
        return min((line.at(rows) for key, line in self._times.items() if key[:2] == name), default=0.0)

    def _calibrated(self, encoding: Encoding, batch: pl.Series) -> Line:
        whole = self._time(encoding, batch)
        part = batch.head(len(batch) // 8)
        if len(part) < _SMALLEST_PART:
            return Line.through(len(batch), whole, len(batch), whole)
        return Line.through(len(part), self._time(encoding, part), len(batch), whole)

    def _time(self, encoding: Encoding, sample: pl.Series) -> float:
        taken: list[float] = []
        while len(taken) < _FEWEST or (len(taken) < _MOST and sum(taken) < _LONG_ENOUGH):
            started = self._clock()
            encode_column(sample, encoding)
            taken.append(self._clock() - started)
        return min(taken)
