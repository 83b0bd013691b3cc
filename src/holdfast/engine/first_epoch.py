"""How many rows the first epoch takes, before anything has been measured: an estimate from what the sources know about
their rows.

The estimate is meant to be far below what most pipelines process in the requested time, and large enough that its
measurement shows how large the next epoch may be.
"""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.connect.base import Source
from holdfast.plan.program import Program

__all__ = ["first_rows", "sizes_of_rows"]

_ROWS_PER_SECOND = 2_000_000
_BYTES_PER_SECOND = 256 << 20


def first_rows(sizes: Sequence[float | None], seconds: float, least: int, most: int) -> int:
    """Rows of all sources, for an epoch of so many seconds. `sizes` are the bytes of a row of each."""
    known = [size for size in sizes if size is not None]
    if not known or len(known) < len(sizes):
        return min(least, most)
    of_a_row = sum(known) / len(known)  # each source gives as many rows
    fitting = min(seconds * _ROWS_PER_SECOND, seconds * _BYTES_PER_SECOND / max(1.0, of_a_row))
    return int(min(most, max(least, fitting)))


def sizes_of_rows(program: Program) -> list[float | None]:
    """The bytes of a row of each source, where it knows them."""
    return [node.source.row_bytes() if isinstance(node.source, Source) else None for node in program.sources]
