"""What bounds the dead space in segments: of a segment that is mostly dead, what is alive is written again.

A segment is one file, which cannot go while anything in it is needed. Of those that get no more, state has at least a
quarter of the bytes, or it leaves them with the next epoch. Large p-units do not come to that: a segment ends with the
first that makes it large, so what else is in it is small.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

from holdfast.state.manifest import Manifest, read_piece
from holdfast.state.tables import Writer
from holdfast.store import LARGE_SEGMENT, DirectoryStore, last_epoch, segment_of

__all__ = ["carried_over", "mostly_dead"]

_LEAST_LIVE = 0.25
_MOST_KNOWN = 4_096
_LARGE: dict[tuple[DirectoryStore, str], int] = {}
"""Sizes of large segments."""


def mostly_dead(store: DirectoryStore, state: Mapping[str, Sequence[Manifest]], epoch: int) -> str | None:
    """A segment that an epoch should leave, if there is one. `state` is all state before the epoch."""
    units = {piece.punit.name: piece.punit for parts in state.values() for part in parts for piece in part.pieces}
    live = Counter[str]()
    for name, unit in units.items():
        if (segment := segment_of(name)) is not None:
            live[segment] += unit.bytes
    for segment in sorted(live):
        size = _size(store, segment)
        grows = size < LARGE_SEGMENT and (last_epoch(segment) or 0) >= epoch
        if not grows and live[segment] < _LEAST_LIVE * size:
            return segment
    return None


def _size(store: DirectoryStore, segment: str) -> int:
    """The size of a large one is asked for once: it gets no more, and every task looks at it in every epoch."""
    known = _LARGE.get((store, segment))
    if known is not None:
        return known
    path = store.found(segment)
    size = path.stat().st_size if path is not None else 0
    if size >= LARGE_SEGMENT:
        if len(_LARGE) >= _MOST_KNOWN:
            _LARGE.clear()
        _LARGE[store, segment] = size
    return size


def carried_over(manifest: Manifest, writer: Writer, segment: str | None) -> Manifest:
    """The manifest with what it has in a segment written again."""
    if segment is None:
        return manifest
    pieces = []
    for piece in manifest.pieces:
        if segment_of(piece.punit.name) != segment:
            pieces.append(piece)
        elif (rows := read_piece(writer.store, piece)).height:
            pieces.append(writer.write(piece.interval, piece.table, rows, piece.low, piece.high))
    return replace(manifest, pieces=tuple(pieces))
