"""Routing state: which partition owns which interval of key positions."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from holdfast.state.manifest import Interval
from holdfast.state.position import Positions
from holdfast.stored_json import OwnForm, whole

__all__ = ["Routing"]


class Routing(OwnForm):
    """Partition i owns the positions from `bounds[i]` up to `bounds[i + 1]`, the last one up to the end."""

    __slots__ = ("bounds",)
    bounds: tuple[int, ...]

    def __init__(self, bounds: tuple[int, ...] = (0,)) -> None:
        self._set(bounds=bounds)

    @staticmethod
    def even(partitions: int) -> Routing:
        """Intervals of equal length."""
        return Routing(tuple((i << 64) // partitions for i in range(partitions)))

    @property
    def partitions(self) -> int:
        return len(self.bounds)

    def interval(self, partition: int) -> Interval:
        following = partition + 1
        hi = self.bounds[following] if following < len(self.bounds) else 1 << 64
        return Interval(self.bounds[partition], hi)

    def assign(self, positions: Positions) -> npt.NDArray[np.int64]:
        """The partition of each position."""
        inner = np.array(self.bounds[1:], dtype=np.uint64)
        return np.searchsorted(inner, positions, side="right")

    def stored(self) -> tuple[int, ...]:
        return self.bounds

    @staticmethod
    def of(stored: Iterable[int]) -> Routing:
        bounds = tuple(whole(bound, 0, 1 << 64) for bound in stored)
        if bounds[:1] != (0,) or any(low >= high for low, high in pairwise(bounds)):
            raise ValueError("the bounds of a routing do not rise from 0")
        return Routing(bounds)
