"""Who is connected to a listener: members, who have shown that they may send, and strangers, who have not yet.

Both have a limit of their own, so that connections which say nothing cannot keep out those that have a token. A new
stranger always gets in: where there are too many, the one that has waited longest is cut off, among those of the
address that has most of them. Safe to use from any thread.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Hashable
from typing import Generic, TypeVar

__all__ = ["MOST_MEMBERS", "MOST_STRANGERS", "Crowd"]

MOST_STRANGERS = 128
MOST_MEMBERS = 256
T = TypeVar("T", bound=Hashable)


class Crowd(Generic[T]):
    """The connections of one listener."""

    def __init__(self, *, strangers: int, members: int) -> None:
        self._most_strangers = strangers
        self._most_members = members
        self._lock = threading.Lock()
        self._strangers: dict[T, str] = {}
        self._members: set[T] = set()

    def everybody(self) -> list[T]:
        with self._lock:
            return [*self._members, *self._strangers]

    def admit(self, who: T, address: str) -> T | None:
        """Let a stranger in; returns the one to be cut off for it, if there were too many."""
        with self._lock:
            out = self._longest_waiting() if len(self._strangers) >= self._most_strangers else None
            self._strangers[who] = address
            return out

    def make_room(self) -> T | None:
        """The stranger to be cut off where connections are needed for something else."""
        with self._lock:
            return self._longest_waiting()

    def introduce(self, who: T) -> bool:
        """A stranger has shown that it may send. False where there are too many members, or it was cut off before."""
        with self._lock:
            if who in self._members:
                return True
            if who not in self._strangers or len(self._members) >= self._most_members:
                return False
            del self._strangers[who]
            self._members.add(who)
            return True

    def leave(self, who: T) -> None:
        with self._lock:
            self._members.discard(who)
            self._strangers.pop(who, None)

    def _longest_waiting(self) -> T | None:
        if not self._strangers:
            return None
        [(crowded, _)] = Counter(self._strangers.values()).most_common(1)
        found = next(who for who, address in self._strangers.items() if address == crowded)
        del self._strangers[found]
        return found
