"""When to merge pieces, and which: pure decisions over sizes and key intervals.

Pieces are appended, one per epoch that changed something. What counts for a reader is how many of them lie above each
other, so pieces are seen in *levels*: a level holds pieces of disjoint intervals, and every piece lies above those
older ones that it overlaps. Merging the newest levels whenever there are too many keeps their number bounded, and
merging only levels of similar size keeps the bytes rewritten per row logarithmic.

Small levels are merged by the epoch that adds one too many (`inline_from`). Large ones would hold an epoch up, so they
are merged in parallel with the epochs (`background_merge`), and only when that falls far behind by an epoch after all.
The two never reach for the same pieces before that.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from holdfast.state.manifest import Interval, Manifest, Piece

__all__ = [
    "MOST_LARGE",
    "MOST_PIECES",
    "SMALL_BYTES",
    "TARGET_BYTES",
    "Merge",
    "Target",
    "background_merge",
    "inline_from",
    "levels_of",
    "merge_from",
    "next_merge",
    "sizes_of",
    "splice",
]

MOST_PIECES = 12
MOST_LARGE = 8
SMALL_BYTES = 2 << 20
"""A level below this size is merged by the epochs themselves."""
TARGET_BYTES = 32 << 20
"""About how large the p-units are that a background merge writes: it holds one of them in memory at a time."""
_RATIO = 2
_PATIENCE = 4
"""At so many times the allowed number of levels, epochs no longer wait for background merges."""


def merge_from(sizes: Sequence[int], most: int = MOST_PIECES) -> int | None:
    """From which index on to merge `sizes` (oldest first) into one piece, or None to leave them.

    The merged run is the newest pieces, reaching back as long as the next older one is not much larger than what
    is merged already, and at least far enough to halve the number of pieces.
    """
    if len(sizes) <= most:
        return None
    start = len(sizes) - 1
    merged = sizes[start]
    while start > 0 and (sizes[start - 1] <= _RATIO * merged or start > most // 2):
        start -= 1
        merged += sizes[start]
    return start


def levels_of(pieces: Sequence[Piece]) -> list[list[Piece]]:
    """The pieces of a table, oldest first, in levels. In this order, too, the newest piece of a key is the last."""
    levels: list[list[Piece]] = []
    for piece in pieces:
        at = len(levels)
        while at > 0 and not any(piece.interval.overlaps(other.interval) for other in levels[at - 1]):
            at -= 1
        if at == len(levels):
            levels.append([])
        levels[at].append(piece)
    return levels


def sizes_of(levels: Sequence[Sequence[Piece]]) -> list[int]:
    return [sum(piece.seen_bytes for piece in level) for level in levels]


def inline_from(sizes: Sequence[int], most: int = MOST_PIECES, small: int = SMALL_BYTES) -> int | None:
    """From which level on an epoch merges, itself and at once, or None."""
    if len(sizes) > _PATIENCE * most:
        return merge_from(sizes, most)
    large = _large(sizes, small)
    start = merge_from(sizes[large:], most)
    return None if start is None else large + start


def _large(sizes: Sequence[int], small: int) -> int:
    """How many of the oldest levels are not left to the epochs: all up to the newest large one."""
    return max((at + 1 for at, size in enumerate(sizes) if size >= small), default=0)


@dataclass(frozen=True, slots=True)
class Merge:
    """Pieces to merge, oldest first, and the key intervals of the p-units that take their place.

    `oldest` says that nothing older lies below them: only then may tombstones go.
    """

    pieces: tuple[Piece, ...]
    intervals: tuple[Interval, ...]
    oldest: bool


def background_merge(
    pieces: Sequence[Piece],
    interval: Interval,
    most: int = MOST_LARGE,
    small: int = SMALL_BYTES,
    target: int = TARGET_BYTES,
) -> Merge | None:
    """What to merge in the background in a table of a partition that owns `interval`, or None.

    Too many large levels come first. Then pieces that show less than half of their p-unit: after a partition, each of
    the new owners names p-units that are larger than its share, and they cannot be removed before all have let go.
    """
    levels = levels_of(pieces)
    sizes = sizes_of(levels)
    large = _large(sizes, small)
    start = merge_from(sizes[:large], most)
    if start is not None:
        run = tuple(piece for level in levels[start:large] for piece in level)
        return Merge(run, _cut(interval, sum(sizes[start:large]), target), start == 0)
    for number, level in enumerate(levels):
        for piece in level:
            if piece.punit.bytes >= small and 2 * piece.seen_bytes < piece.punit.bytes:
                below = (other for older in levels[:number] for other in older)
                oldest = not any(piece.interval.overlaps(other.interval) for other in below)
                return Merge((piece,), (piece.interval,), oldest)
    return None


@dataclass(frozen=True, slots=True)
class Target:
    """The table of a partition of an operator."""

    operator: str
    part: int
    table: str


def next_merge(
    state: Mapping[str, Sequence[Manifest]],
    most: int = MOST_LARGE,
    small: int = SMALL_BYTES,
    target: int = TARGET_BYTES,
) -> tuple[Target, Merge] | None:
    """What to merge next in the background, of all state: where most levels are stacked, if anywhere."""
    found: list[tuple[int, Target, Merge]] = []
    for operator, parts in state.items():
        for part, manifest in enumerate(parts):
            for table in dict.fromkeys(piece.table for piece in manifest.pieces):
                pieces = manifest.table(table)
                merge = background_merge(pieces, manifest.interval, most, small, target)
                if merge is not None:
                    depth = len(levels_of(merge.pieces))
                    found.append((depth, Target(operator, part, table), merge))
    if not found:
        return None
    _, where, merge = max(found, key=lambda candidate: candidate[0])
    return where, merge


def splice(pieces: Sequence[Piece], merged: Sequence[Piece], by: Sequence[Piece]) -> tuple[Piece, ...] | None:
    """The pieces of a table with `by` in the place of `merged`; None if those are not there any more, one above the
    other as they were and seen through the same intervals."""
    ordered = [piece for level in levels_of(pieces) for piece in level]
    if not merged or merged[0] not in ordered:
        return None
    start = ordered.index(merged[0])
    stop = start + len(merged)
    if ordered[start:stop] != list(merged):
        return None
    return (*ordered[:start], *by, *ordered[stop:])


def _cut(interval: Interval, size: int, target: int) -> tuple[Interval, ...]:
    """An interval in even parts of about `target` bytes: positions are hashes, so rows lie evenly."""
    parts = max(1, min(-(-size // target), interval.hi - interval.lo))
    length = interval.hi - interval.lo
    bounds = [interval.lo + length * part // parts for part in range(parts + 1)]
    return tuple(Interval(lo, hi) for lo, hi in pairwise(bounds))
