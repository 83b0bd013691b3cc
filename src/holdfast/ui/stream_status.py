"""What the store says of its p-streams: what they hold, and how far their readers are."""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.meta import Marker, StreamMeta
from holdfast.pstream import Placement, StreamDescription

__all__ = ["StreamStatus", "read_stream"]


@dataclass(frozen=True, slots=True)
class StreamStatus:
    """What the store knows of a p-stream. Offsets are rows from its beginning."""

    stream: str
    entries: int
    rows: int
    bytes: int
    offset: int
    ended: bool
    placement: Placement | None
    markers: tuple[Marker, ...]


def read_stream(meta: StreamMeta, name: str) -> StreamStatus:
    """What the store knows of one p-stream."""
    state = meta.state(name)
    entries, rows, size = meta.retained(name)
    placement = StreamDescription.decode(state.description).placement
    return StreamStatus(name, entries, rows, size, state.offset, state.ended, placement, tuple(meta.markers(name)))
