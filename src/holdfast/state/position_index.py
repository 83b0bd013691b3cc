"""Finding positions among sorted ones: a table of where each range of positions begins, then a step or two.

Positions are uniform hashes, so ranges of equal length hold about one each. That is several times as fast as a binary
search, and positions that are looked for need not be sorted. Where they are not uniform, it is a binary search.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from holdfast.state.position import Positions

__all__ = ["PositionIndex"]

_MOST_STEPS = 12
_LEAST_ROWS = 64


@dataclass(frozen=True, slots=True)
class PositionIndex:
    """`positions` are sorted and distinct; `starts` has the place of the first in each range."""

    positions: Positions
    starts: npt.NDArray[np.int32]
    shift: np.uint64

    @classmethod
    def of(cls, positions: Positions) -> PositionIndex:
        count = len(positions)
        if count < _LEAST_ROWS:
            return cls(positions, np.zeros(0, dtype=np.int32), np.uint64(0))
        span = int(positions[-1]) - int(positions[0])
        shift = np.uint64(max(0, span.bit_length() - count.bit_length()))
        ranges = ((positions - positions[0]) >> shift).view(np.int64)
        sizes = np.bincount(ranges)
        starts = np.zeros(len(sizes) + 1, dtype=np.int32)
        np.cumsum(sizes[:-1], out=starts[1:-1])
        starts[-1] = count
        return cls(positions, starts, shift)

    @property
    def nbytes(self) -> int:
        return self.positions.nbytes + self.starts.nbytes

    def find(self, wanted: Positions) -> npt.NDArray[np.int64]:
        """The place of each of these, in any order; -1 where it is not among them."""
        count = len(self.positions)
        if not count:
            return np.full(len(wanted), -1, dtype=np.int64)
        at = self._first_from(wanted)
        np.minimum(at, count - 1, out=at)
        at[self.positions[at] != wanted] = -1
        return at

    def _first_from(self, wanted: Positions) -> npt.NDArray[np.int64]:
        """The place of the first that is not less; somewhere where there is none."""
        if not len(self.starts):
            return np.searchsorted(self.positions, wanted).astype(np.int64, copy=False)
        # What lies before the first position wraps around, and ends in the last range like what lies behind.
        ranges = np.minimum((wanted - self.positions[0]) >> self.shift, np.uint64(len(self.starts) - 2))
        at: npt.NDArray[np.int64] = self.starts[ranges.view(np.int64)].astype(np.int64)
        last = len(self.positions) - 1
        left = np.flatnonzero(self.positions[np.minimum(at, last)] < wanted)
        for _ in range(_MOST_STEPS):
            if not len(left):
                return at
            at[left] += 1
            now = at[left]
            left = left[(now <= last) & (self.positions[np.minimum(now, last)] < wanted[left])]
        at[left] = np.searchsorted(self.positions, wanted[left])
        return at
