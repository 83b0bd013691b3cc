"""Comparing two outputs as multisets of rows, exactly."""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

from holdfast.errors import EmptyOutputError

__all__ = ["Difference", "check_expected", "compare"]

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


def check_expected(expected: pl.DataFrame) -> None:
    """Refuse an output that everything which put out nothing would equal."""
    if expected.height == 0:
        raise EmptyOutputError(
            "the fault-free run put out no rows, so there is nothing to compare with",
            cure="choose a query, or more input, whose result has rows",
        )


def compare(actual: pl.DataFrame, expected: pl.DataFrame) -> Difference:
    """How `actual` differs from `expected`, which must have rows, whatever the order of rows."""
    check_expected(expected)
    if actual.height == 0:
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
