"""Sorting by many columns of which the first few decide: what these have is packed into one number, which is sorted.

A row's position follows from its key, and decides nothing that the columns of the key do not.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import polars as pl

from holdfast.hidden_columns import POSITION

__all__ = ["sorted_rows"]

Numbers = npt.NDArray[np.uint64]

_BITS = 64
_SPARE_BITS = 6
"""So many more than would number the rows: what is packed then decides nearly always, and more is not worth it."""


def sorted_rows(rows: pl.DataFrame, columns: Sequence[str]) -> pl.DataFrame:
    """Rows in the order of these columns, nulls first. Rows with the same values stay in the order they had."""
    columns = [name for name in columns if name != POSITION]
    packed, left = _packed(rows, columns)
    if packed is None:
        return rows.sort(columns, maintain_order=True)
    order = np.argsort(packed) if left else np.argsort(packed, kind="stable")
    if left:
        ranked = packed[order]
        same = np.flatnonzero(ranked[1:] == ranked[:-1])
        if len(same):
            tied = np.zeros(len(order), dtype=bool)
            tied[same] = tied[same + 1] = True
            among = np.sort(order[tied])
            values = rows[among].select(columns)
            order[tied] = among[values.select(pl.arg_sort_by(columns, maintain_order=True)).to_series().to_numpy()]
    return rows[order]


def _packed(rows: pl.DataFrame, columns: Sequence[str]) -> tuple[Numbers | None, Sequence[str]]:
    """A number for each row by as many of the first columns as fit, in whose order rows are in that of the columns; and
    the columns that are left."""
    packed: Numbers | None = None
    bits = 0
    enough = rows.height.bit_length() + _SPARE_BITS
    for at, name in enumerate(columns):
        if bits > enough:
            return packed, columns[at:]
        found = _ranks(rows[name])
        if found is None or bits + found[1] > _BITS:
            return packed, columns[at:]
        ranks, more = found
        bits += more
        packed = ranks if packed is None else packed << np.uint64(more) | ranks
    return packed, ()


def _ranks(values: pl.Series) -> tuple[Numbers, int] | None:
    """Numbers from 0 in the order of the values, and how many bits they take; None for what is not a whole number."""
    if not (values.dtype.is_integer() or values.dtype.is_temporal() or values.dtype == pl.Boolean):
        return None
    if values.dtype in (pl.Int128, pl.UInt128):
        return None
    nulls = values.null_count()
    if nulls == len(values):
        return np.zeros(len(values), dtype=np.uint64), 0
    plain = values.to_physical().cast(pl.UInt64 if values.dtype == pl.UInt64 else pl.Int64)
    least, most = plain.min(), plain.max()
    assert isinstance(least, int)
    assert isinstance(most, int)
    first = 1 if nulls else 0
    """Where there are nulls, 0 is theirs."""
    bits = (most - least + first).bit_length()
    if bits > _BITS:
        return None
    numbers = (plain.fill_null(least) if nulls else plain).to_numpy().view(np.uint64)
    ranks = numbers - np.uint64(least % (1 << _BITS)) + np.uint64(first)
    if nulls:
        ranks[values.is_null().to_numpy()] = 0
    return ranks, bits
