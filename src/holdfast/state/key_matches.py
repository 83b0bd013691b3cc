"""Finding and comparing keys by their positions.

Positions are 64-bit hashes, so nearly always different keys have different positions, and all of this is sorting and
searching of integers. Keys are compared all the same; where two of them share a position, Polars joins them by value.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

import numpy as np
import numpy.typing as npt
import polars as pl

from holdfast.hidden_columns import GROUP, NUMBER, ONE, POSITION
from holdfast.state.manifest import Piece
from holdfast.state.position import Positions

__all__ = ["differ", "find_rows", "group_by_position", "join_on_keys", "newest_rows"]

Indices = npt.NDArray[np.int64]
Read = Callable[[Piece], pl.DataFrame]


def find_rows(
    levels: Sequence[Sequence[Piece]], read: Read, wanted: pl.DataFrame, positions: Positions, keys: Sequence[str]
) -> list[pl.DataFrame]:
    """The newest row of each of these distinct keys, sorted by position, where there is one; in no particular order."""
    if _has_equal_neighbours(positions):
        return _find_by_keys(levels, read, wanted, positions, keys)
    found: list[pl.DataFrame] = []
    which: list[Indices] = []
    rest = np.arange(len(positions))
    for level in reversed(levels):
        if not len(rest):
            break
        looked_for = positions if len(rest) == len(positions) else positions[rest]
        hit = np.zeros(len(rest), dtype=bool)
        for piece in level:
            start, stop = _within(looked_for, piece)
            if start == stop:
                continue
            rows = read(piece)
            there = rows[POSITION].to_numpy()
            if not len(there):
                continue
            at = np.searchsorted(there, looked_for[start:stop])
            equal = there[np.minimum(at, len(there) - 1)] == looked_for[start:stop]
            if equal.any():
                hit[start:stop] = equal
                found.append(rows[at[equal]])
                which.append(rest[start:stop][equal])
        rest = rest[~hit]
    if found and differ(pl.concat(found, how="vertical"), wanted[np.concatenate(which)], keys).any():
        return _find_by_keys(levels, read, wanted, positions, keys)
    return found


def _within(positions: Positions, piece: Piece) -> tuple[int, int]:
    """Which of some sorted positions are in the interval of a piece."""
    start = int(np.searchsorted(positions, np.uint64(piece.interval.lo))) if piece.interval.lo else 0
    if piece.interval.hi >= 1 << 64:
        return start, len(positions)
    return start, int(np.searchsorted(positions, np.uint64(piece.interval.hi)))


def _has_equal_neighbours(positions: Positions) -> bool:
    return bool((positions[1:] == positions[:-1]).any())


def differ(left: pl.DataFrame, right: pl.DataFrame, keys: Sequence[str]) -> np.ndarray:
    """Where the keys of two lists of rows differ; nulls are equal to nulls."""
    differs = np.zeros(left.height, dtype=bool)
    for key in keys:
        differs |= left[key].ne_missing(right[key]).to_numpy()
    return differs


def _find_by_keys(
    levels: Sequence[Sequence[Piece]], read: Read, wanted: pl.DataFrame, positions: Positions, keys: Sequence[str]
) -> list[pl.DataFrame]:
    """The rare case that different keys share a position: compare the keys themselves."""
    found: list[pl.DataFrame] = []
    rest = wanted.select(keys).with_row_index(GROUP)
    for piece in (piece for level in reversed(levels) for piece in level):
        if not rest.height:
            break
        rows = read(piece)
        near = rows[np.flatnonzero(np.isin(rows[POSITION].to_numpy(), positions))]
        numbered = near.select(keys).with_row_index(NUMBER)
        joined = join_on_keys(rest, numbered, keys, "inner")
        if joined.height:
            found.append(near[joined[NUMBER].to_numpy()])
            rest = rest.join(joined.select(GROUP), on=GROUP, how="anti")
    return found


def newest_rows(frames: Sequence[pl.DataFrame], keys: Sequence[str]) -> pl.DataFrame:
    """Rows sorted by position, runs of them, oldest first, as one: the last row of a key wins."""
    frames = [frame for frame in frames if frame.height] or list(frames[:1])
    if len(frames) == 1:
        return frames[0]
    positions = np.concatenate([frame[POSITION].to_numpy() for frame in frames])
    order = np.argsort(positions, kind="stable")  # merges sorted runs, in a third of the time of a sort
    ranked = positions[order]
    last = np.flatnonzero(np.concatenate([ranked[1:] != ranked[:-1], [True]]))
    rows = pl.concat(frames, rechunk=True)
    if len(last) < len(order):
        again = np.flatnonzero(ranked[1:] == ranked[:-1])
        names = rows.select(keys)
        if differ(names[order[again]], names[order[again + 1]], keys).any():
            newest = rows.unique(subset=[POSITION, *keys], keep="last", maintain_order=True)
            return newest.sort(POSITION, maintain_order=True)
    return rows[order[last]]


def group_by_position(rows: pl.DataFrame, positions: Positions, keys: Sequence[str]) -> tuple[Indices, Indices] | None:
    """Rows by key, found by sorting positions: an order of the rows, and where in it each key begins.

    None where different keys share a position. Within a key the order is arbitrary.
    """
    order = np.argsort(positions)
    ranked = positions[order]
    same = ranked[1:] == ranked[:-1]
    at = np.flatnonzero(same)
    if len(at):
        names = rows.select(keys)
        if differ(names[order[at]], names[order[at + 1]], keys).any():
            return None
    return order, np.flatnonzero(np.concatenate([[True], ~same])) if len(order) else order


def join_on_keys(
    left: pl.DataFrame,
    right: pl.DataFrame,
    keys: Sequence[str],
    how: Literal["inner", "left", "anti"],
    ordered: bool = False,
) -> pl.DataFrame:
    """Join on key columns, where nulls equal nulls and NaN equals NaN.

    Polars merges two columns it knows to be sorted without regard to NaN: a single float key is joined beside a
    constant, which keeps it from doing so.
    """
    order: Literal["left", "none"] = "left" if ordered else "none"
    if len(keys) != 1 or not left.schema[keys[0]].is_float():
        return left.join(right, on=list(keys), how=how, nulls_equal=True, maintain_order=order)
    one = pl.lit(0, pl.Int8).alias(ONE)
    joined = left.with_columns(one).join(
        right.with_columns(one), on=[*keys, ONE], how=how, nulls_equal=True, maintain_order=order
    )
    return joined.drop(ONE)
