"""What a join asks of a lookup table: its columns, whether it has changed, and its rows.

The driver asks; tasks read the copies of the table that it puts into the store. A table is asked by one thread at a
time, while epochs go on with the version they have.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import polars as pl

from holdfast.errors import DeclarationError
from holdfast.spans import Duration, seconds_of

__all__ = ["Lookup", "look_seconds"]

_WHEN_CHANGED = 1.0
"""Seconds between two looks at a table that is read again when it has changed."""


class Lookup(ABC):
    """A table that is read again while the pipeline runs, for `stream.join_table(...)`.

    `schema` has its columns, `every` is how many seconds lie between two looks. Not promised: that every state of the
    table is seen; one that lasts for less than `every` may be missed.
    """

    schema: pl.Schema
    every: float = _WHEN_CHANGED

    def mark(self) -> str | None:
        """What tells this content of the table from others, without reading it: while it stays the same, the table is
        not read. None if only reading tells."""
        return None

    @abstractmethod
    def read(self) -> pl.DataFrame:
        """All rows, as they are now, with at least the columns of `schema`. Whatever is raised means that the table
        cannot be read now; that its columns have changed is a `LookupTableError`."""

    @abstractmethod
    def describe(self) -> str:
        """The table in words, without secrets."""


def look_seconds(function: str, every: Duration | None) -> float:
    """The seconds between two looks; without `every`, those of a table that is read again when it has changed."""
    if every is None:
        return _WHEN_CHANGED
    seconds = seconds_of(f"{function}(): every", every)
    if seconds <= 0:
        raise DeclarationError(f"{function}(): every={every!r} is not a duration", cure="give e.g. every='5 min'")
    return seconds
