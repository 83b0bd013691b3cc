"""Duplicates and order: what a replica has received of its inputs, and what a reader has received of its output.

Each upstream numbers its events; the number stands for the timestamp. A vector of the next number per upstream says how
far one is: what is before it was seen, whoever sent it and however often. Replicas agree on what comes when because the
epoch's plan fixes a slice of each upstream, and within an epoch slices are read in the order of upstreams.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeVar

__all__ = ["Inbox", "Pieces", "Receiver", "Slices", "Vector"]

Vector = tuple[int, ...]
Slices = tuple[tuple[int, int], ...]
"""Per upstream, the first number of a slice and the one after its last."""
Pieces = tuple[tuple[int, int, int], ...]
"""Upstream, first number and the one after the last, of what is processed together."""

T = TypeVar("T")


@dataclass(slots=True)
class Inbox:
    """The incoming queue: everything from `first` up to `seen`, without gaps and without duplicates."""

    first: list[int]
    seen: list[int]
    pieces: list[list[tuple[int, int]]]
    gap: bool = False

    @classmethod
    def at(cls, vector: Vector) -> Inbox:
        return cls(list(vector), list(vector), [[] for _ in vector])

    def accept(self, upstream: int, first: int, end: int) -> bool:
        """Keep what is new. What comes too early is dropped and must be sent again: see `gap`."""
        seen = self.seen[upstream]
        if first > seen:
            self.gap = True
            return False
        if end <= seen:
            return False
        self.pieces[upstream].append((seen, end))
        self.seen[upstream] = end
        return True

    def covers(self, slices: Slices) -> bool:
        return all(
            first == end or (self.first[number] <= first and self.seen[number] >= end)
            for number, (first, end) in enumerate(slices)
        )

    def take(self, slices: Slices) -> Pieces:
        """What was received of the slices; it stays until it is pruned."""
        return tuple(
            (number, max(first, a), min(end, b))
            for number, (first, end) in enumerate(slices)
            for a, b in self.pieces[number]
            if a < end and b > first
        )

    def prune(self, vector: Vector) -> None:
        """Forget what a state that is safe has seen."""
        for number, position in enumerate(vector):
            pieces = self.pieces[number]
            while pieces and pieces[0][1] <= position:
                self.first[number] = pieces.pop(0)[1]


@dataclass(slots=True)
class Receiver:
    """A reader of the output: takes each epoch once and in order, from whichever replica sends it first. What comes
    too early waits until what is before it has come."""

    seen: int = 0
    early: dict[int, int | None] = field(default_factory=dict)

    def take(self, epoch: int, value: int | None) -> list[tuple[int, int | None]]:
        """What can be taken now. None stands for an epoch that was left out by a gap recovery."""
        if epoch <= self.seen or epoch in self.early:
            return []
        self.early[epoch] = value
        taken = []
        while self.seen + 1 in self.early:
            self.seen += 1
            taken.append((self.seen, self.early.pop(self.seen)))
        return taken
