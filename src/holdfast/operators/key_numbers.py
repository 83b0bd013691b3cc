"""Numbers for the keys of an epoch, so that what is known of each is in arrays."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
import polars as pl

from holdfast.hidden_columns import NUMBER, POSITION
from holdfast.state.key_matches import differ, group_by_position, join_on_keys
from holdfast.state.position import Positions, key_positions

__all__ = ["KeyNumbers", "NumberedKeys"]

Ints = npt.NDArray[np.int64]


class NumberedKeys(Protocol):
    """Distinct keys with numbers from 0 on."""

    @property
    def frame(self) -> pl.DataFrame:
        """The keys, in the order of their numbers."""

    def __len__(self) -> int: ...

    def find(self, rows: pl.DataFrame, positions: Positions | None = None) -> Ints:
        """The number of each row's key; -1 where it is not among them."""


@dataclass(frozen=True, slots=True)
class KeyNumbers:
    """Distinct keys, sorted by position; a key's number is its place among them."""

    frame: pl.DataFrame
    positions: Positions
    names: tuple[str, ...]

    @classmethod
    def of(cls, rows: pl.DataFrame, names: tuple[str, ...]) -> KeyNumbers:
        """The keys of rows that have their positions."""
        groups = group_by_position(rows, rows[POSITION].to_numpy(), names)
        if groups is None:
            distinct = rows.select(POSITION, *names).unique(maintain_order=True).sort(POSITION)
        else:
            order, starts = groups
            distinct = rows.select(POSITION, *names)[order[starts]]
        return cls(distinct.drop(POSITION), distinct[POSITION].to_numpy(), names)

    def __len__(self) -> int:
        return len(self.positions)

    def find(self, rows: pl.DataFrame, positions: Positions | None = None) -> Ints:
        """The number of each row's key; -1 where it is not among them."""
        if not len(self) or not rows.height:
            return np.full(rows.height, -1, dtype=np.int64)
        if positions is None:
            positions = key_positions([rows[name] for name in self.names], rows.height)
        at = np.minimum(np.searchsorted(self.positions, positions), len(self) - 1)
        if (self.positions[1:] == self.positions[:-1]).any():
            numbered = self.frame.with_row_index(NUMBER)
            found = join_on_keys(rows.select(self.names), numbered, self.names, "left", ordered=True)
            return found[NUMBER].cast(pl.Int64).fill_null(-1).to_numpy()
        strange = (self.positions[at] != positions) | differ(self.frame[at], rows, self.names)
        return np.where(strange, -1, at).astype(np.int64)
