"""Partition and merge of processing state: new manifests that name the same p-units through other key intervals.

Nothing is read or copied. A partition that owns a part of another's interval names its p-units with a narrower one; a
partition that takes over several names the p-units of all of them. Compaction writes smaller p-units later.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from holdfast.state.manifest import Interval, Manifest
from holdfast.state.routing import Routing

__all__ = ["repartition"]


def repartition(parts: Sequence[Manifest], routing: Routing) -> tuple[Manifest, ...]:
    """The state of an operator, partitioned as `routing` says."""
    if [part.interval for part in parts] == [routing.interval(number) for number in range(routing.partitions)]:
        return tuple(parts)
    return tuple(_owned(parts, routing.interval(number)) for number in range(routing.partitions))


def _owned(parts: Sequence[Manifest], interval: Interval) -> Manifest:
    """What lies in an interval. Pieces of different partitions have no keys in common, so only the order within each
    of them counts."""
    pieces = [
        replace(piece, interval=seen)
        for part in parts
        for piece in part.pieces
        if (seen := piece.interval.both(interval)) is not None and seen.overlaps(piece.span)
    ]
    return Manifest(interval, tuple(pieces))
