"""Routing state: which partition owns which interval of key positions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from holdfast.state.manifest import Interval
from holdfast.state.position import Positions
from holdfast.stored_json import reading, whole

__all__ = ["Routing"]


@dataclass(frozen=True, slots=True)
class Routing:
    """Partition i owns the positions from `bounds[i]` up to `bounds[i + 1]`, the last one up to the end."""

    bounds: tuple[int, ...] = (0,)

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

    def to_json(self) -> list[int]:
        return list(self.bounds)

    @staticmethod
    @reading("a routing")
    def from_json(value: list[int] | Mapping[str, Any]) -> Routing:
        bounds = tuple(whole(bound, 0, 1 << 64) for bound in value)
        if bounds[:1] != (0,) or any(low >= high for low, high in pairwise(bounds)):
            raise ValueError("its bounds do not rise from 0")
        return Routing(bounds)
