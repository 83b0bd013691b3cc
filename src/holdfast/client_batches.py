"""What a client of a p-stream sends at a time, as it is counted, and as it was taken."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Count", "TakenBatch"]


@dataclass(frozen=True, slots=True)
class Count:
    """What brings a client that counts from one position to another, in its own count. It is taken if the client still
    stands at `before`, and so at most once."""

    client: str
    before: int
    behind: int


@dataclass(frozen=True, slots=True)
class TakenBatch:
    """A client's batch that was taken before."""

    number: int
    offset: int
    rows: int
