"""Rows held against the rows that are expected, and a sentence about those that differ."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import polars as pl

from holdfast.plurals import counted

__all__ = ["at_most", "difference", "missing_rows", "surplus_rows"]

_SHOWN = 5


def difference(found: pl.DataFrame, expected: pl.DataFrame, *, ordered: bool = False) -> str | None:
    """What is wrong with the rows that were found; None where nothing is. Without `ordered`, in any order."""
    if wrong := _columns(found, expected):
        return wrong
    if missing := missing_rows(found, expected):
        return missing
    if surplus := surplus_rows(found, expected):
        return surplus
    if ordered:
        pairs = zip(_texts(found, expected), _texts(expected, expected), strict=True)
        for number, (one, other) in enumerate(pairs):
            if one != other:
                return f"the rows come in another order: row {number} is {one} instead of {other}"
    return None


def missing_rows(found: pl.DataFrame, expected: pl.DataFrame) -> str | None:
    """What is said of expected rows that were not found."""
    lost = Counter(_texts(expected, expected)) - Counter(_texts(found, expected))
    return f"{counted(lost.total(), 'row')} lost: {_some(lost.elements())}" if lost else None


def surplus_rows(found: pl.DataFrame, expected: pl.DataFrame) -> str | None:
    """What is said of rows that were found more often than expected."""
    more = Counter(_texts(found, expected)) - Counter(_texts(expected, expected))
    return f"{counted(more.total(), 'row')} too many: {_some(more.elements())}" if more else None


def at_most(found: pl.DataFrame, expected: pl.DataFrame) -> str | None:
    """What is said of rows that were never to be found, however often the expected ones come."""
    known = set(_texts(expected, expected))
    strange = [row for row in _texts(found, expected) if row not in known]
    return f"{counted(len(strange), 'row')} that nobody wrote: {_some(strange)}" if strange else None


def _columns(found: pl.DataFrame, expected: pl.DataFrame) -> str | None:
    gone = [column for column in expected.columns if column not in found.columns]
    if gone and (found.width or expected.height):
        return f"there is no column '{gone[0]}': the columns are {', '.join(found.columns) or 'none'}"
    return None


def _texts(frame: pl.DataFrame, like: pl.DataFrame) -> list[str]:
    """Rows as text: unlike values, all of them can be counted, and NaN is NaN."""
    if not frame.width and like.width:
        return []
    return [repr(row) for row in frame.select(like.columns).rows()]


def _some(rows: Iterable[str]) -> str:
    listed = list(rows)
    more = f" … and {len(listed) - _SHOWN} more" if len(listed) > _SHOWN else ""
    return ", ".join(listed[:_SHOWN]) + more
