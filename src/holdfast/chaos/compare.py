"""Comparing two outputs as multisets of rows, exactly."""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

__all__ = ["Difference", "compare"]

_WEIGHT = "__weight"


@dataclass(frozen=True, slots=True)
class Difference:
    """Rows of the expected output that are missing, and rows that are there too often or should not be at all."""

    lost: int
    duplicated: int
    example: str | None = None

    @property
    def equal(self) -> bool:
        return self.lost == 0 and self.duplicated == 0


def compare(actual: pl.DataFrame, expected: pl.DataFrame) -> Difference:
    """How `actual` differs from `expected`, whatever the order of rows."""
    if expected.height == 0 or actual.height == 0:
        return Difference(expected.height, actual.height)
    rows = pl.concat(
        [
            actual.with_columns(pl.lit(1, dtype=pl.Int64).alias(_WEIGHT)),
            expected.with_columns(pl.lit(-1, dtype=pl.Int64).alias(_WEIGHT)),
        ]
    )
    left = rows.group_by(expected.columns).agg(pl.col(_WEIGHT).sum()).filter(pl.col(_WEIGHT) != 0)
    weights = left[_WEIGHT]
    example = None
    if left.height:
        first = left.row(0, named=True)
        what = "missing" if first.pop(_WEIGHT) < 0 else "too many"
        example = f"{what}: {first}"
    return Difference(
        lost=-int(weights.filter(weights < 0).sum()), duplicated=int(weights.filter(weights > 0).sum()), example=example
    )
