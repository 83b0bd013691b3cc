"""Credits between the workers of a crew: how many bytes each fellow holds that it was sent and has not assembled yet.

A worker begins to read a further epoch only while every fellow, itself included, holds less than `MOST_BYTES` of what
it has sent them. So a fellow that is slow, or that most keys belong to, stops those that feed it from reading ahead:
slices are not read, and the driver plans no further epoch. The oldest epoch in flight never waits, since nothing of it
can be assembled, and no memory freed, before all of it has arrived: there is no deadlock, however small the bound.

What was taken is told in large steps, so that short epochs need no messages for it. Pure: whoever has it sends them.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

__all__ = ["MOST_BYTES", "ParcelCredits"]

MOST_BYTES = 128 << 20
"""Sent to one fellow and not taken. A slice is sent as a whole: what one slice has for a fellow may come on top."""
_STEPS = 4


@dataclass(slots=True)
class ParcelCredits:
    """Of one worker, by the numbers of its fellows."""

    _sent: Counter[int] = field(default_factory=Counter)
    """Bytes that a fellow holds, as far as it has told."""
    _taken: Counter[int] = field(default_factory=Counter)
    """Bytes of a fellow's that were assembled here, and that it has not been told of."""

    @property
    def left(self) -> bool:
        """Whether more may be read than the oldest epoch in flight."""
        return all(size < MOST_BYTES for size in self._sent.values())

    def sent(self, fellow: int, size: int) -> None:
        self._sent[fellow] += size

    def taken(self, fellow: int, size: int) -> int:
        """What a fellow has sent was assembled: how many bytes it is to be told of now, perhaps none."""
        self._taken[fellow] += size
        return self._taken.pop(fellow) if _STEPS * self._taken[fellow] >= MOST_BYTES else 0

    def returned(self, fellow: int, size: int) -> None:
        """A fellow tells that it has assembled so many bytes."""
        self._sent[fellow] -= size

    def clear(self) -> None:
        """A new generation: nothing is on its way."""
        self._sent.clear()
        self._taken.clear()
