"""What a pipeline needs of the rows of a source."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import polars as pl

from holdfast.connect.time_range import TimeRange

__all__ = ["SourceNeed"]


@dataclass(frozen=True, slots=True, eq=False)
class SourceNeed:
    """These columns, of the rows for which `filter` is true, if there is one; it looks at each row by itself.

    Rows that do not pass may be given all the same. Where they are left out of a chunk, the chunk says how many rows it
    had, and between which event times: those must all be there, in order, and allowed by `times`.
    """

    columns: Sequence[str]
    filter: pl.Expr | None = None
    times: TimeRange | None = None
