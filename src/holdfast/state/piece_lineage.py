"""Which pieces hold the same rows as others: told by their names, so that nothing has to be read.

The names of p-units that a merge in the background writes say what they are a merge of. So a host that has the rows of
some pieces in memory can tell that other pieces stand for the same rows.
"""

from __future__ import annotations

from collections.abc import Sequence

import xxhash

from holdfast.state.levels import levels_of
from holdfast.state.manifest import Piece

__all__ = ["added_pieces", "merged_stem"]

_OF = "-of-"


def merged_stem(unique: str, pieces: Sequence[Piece]) -> str:
    """How the names of the p-units begin that a merge of these pieces writes."""
    return f"merged-{unique}{_OF}{_digest(pieces)}"


def added_pieces(known: Sequence[Piece], now: Sequence[Piece]) -> tuple[Piece, ...] | None:
    """The pieces that a table `now` has above the rows of the `known` ones; None if it does not have exactly those
    below. Live rows that merges may drop count as there."""
    if tuple(known) == tuple(now):
        return ()
    known, now = _in_order(known), _in_order(now)
    done = at = 0
    while done < len(known):
        if at == len(now):
            return None
        if now[at] == known[done]:
            done, at = done + 1, at + 1
            continue
        origin = _origin(now[at])
        ends = range(done + 1, len(known) + 1)
        end = next((end for end in ends if _digest(known[done:end]) == origin), None) if origin else None
        if end is None:
            return None
        done = end
        while at < len(now) and _origin(now[at]) == origin:
            at += 1
    return tuple(now[at:])


def _in_order(pieces: Sequence[Piece]) -> list[Piece]:
    return [piece for level in levels_of(pieces) for piece in level]


def _origin(piece: Piece) -> str | None:
    """What the p-unit of a piece is a merge of, if it is one. What it shows of it must be all that was written."""
    _, found, rest = piece.punit.name.rpartition(_OF)
    return rest.partition("-")[0] if found and piece.interval == piece.span else None


def _digest(pieces: Sequence[Piece]) -> str:
    seen = ((piece.punit.name, piece.punit.checksum, piece.interval.lo, piece.interval.hi) for piece in pieces)
    return xxhash.xxh3_128_hexdigest(repr(list(seen)).encode())
