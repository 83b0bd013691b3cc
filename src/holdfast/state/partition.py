"""Partition and merge of state: processing state, routing state and buffer state.

Processing state is partitioned by new manifests that name the same p-units through other key intervals. Nothing is read
or copied. A partition that owns a part of another's interval names its p-units with a narrower one; a partition that
takes over several names the p-units of all of them. Compaction writes smaller p-units later.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import polars as pl

from holdfast.state.manifest import Interval, Manifest
from holdfast.state.position import Positions
from holdfast.state.routing import Routing

__all__ = ["merge_routing_state", "partition_buffer_state", "partition_processing_state", "partition_routing_state"]


def partition_processing_state(parts: Sequence[Manifest], routing: Routing) -> tuple[Manifest, ...]:
    """The state of an operator, partitioned as `routing` says: split, merged, or both."""
    if [part.interval for part in parts] == [routing.interval(number) for number in range(routing.partitions)]:
        return tuple(parts)
    return tuple(_owned(parts, routing.interval(number)) for number in range(routing.partitions))


def _owned(parts: Sequence[Manifest], interval: Interval) -> Manifest:
    """What is in an interval. Pieces of different partitions have no keys in common, so only the order within each
    of them counts."""
    pieces = [
        replace(piece, interval=seen)
        for part in parts
        for piece in part.pieces
        if (seen := piece.interval.both(interval)) is not None and seen.overlaps(piece.span)
    ]
    return Manifest(interval, tuple(pieces))


def partition_routing_state(routing: Routing, partition: int, at: Sequence[int]) -> Routing:
    """The routing in which a partition's interval is split at these positions, all inside of it."""
    interval = routing.interval(partition)
    for position in at:
        if not interval.lo < position < interval.hi:
            raise ValueError(f"{position} does not split the interval from {interval.lo} to {interval.hi}")
    return Routing(tuple(sorted({*routing.bounds, *at})))


def merge_routing_state(routing: Routing, first: int, last: int) -> Routing:
    """The routing in which the neighbouring partitions `first` to `last` are one: scale in."""
    return Routing(routing.bounds[: first + 1] + routing.bounds[last + 1 :])


def partition_buffer_state(
    rows: pl.DataFrame, positions: Positions, routing: Routing
) -> Iterator[tuple[int, pl.DataFrame]]:
    """Rows for a partitioned operator, cut by the partition that owns them, each part in the order of the rows.

    Buffered rows are retained uncut and are cut when they are read, by the routing of the epoch that reads them: so a
    change of routing holds for all that was not processed before, and nothing in a buffer has to be moved.
    """
    if routing.partitions == 1:
        yield 0, rows
        return
    parts = routing.assign(positions)
    # Numbers of 16 bits are sorted by counting.
    order = np.argsort(parts.astype(np.uint16) if routing.partitions <= 1 << 16 else parts, kind="stable")
    rows = rows[order]
    start = 0
    for part, stop in enumerate(np.cumsum(np.bincount(parts, minlength=routing.partitions)).tolist()):
        yield part, rows.slice(start, stop - start)
        start = stop
