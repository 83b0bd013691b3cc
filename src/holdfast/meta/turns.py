"""Turns at writing one SQLite file in this process: receivers and epochs write one after the other.

SQLite lets whoever finds the file locked sleep, longer and longer, and gives it to whichever thread happens to look
when it is free. Where rows are received all the time, epochs would wait a hundred milliseconds and more for
transactions of two. Here waiting threads are called in the order in which they came. Other processes still wait as
SQLite has them wait.
"""

from __future__ import annotations

import threading
from collections import deque
from pathlib import Path
from weakref import WeakValueDictionary

__all__ = ["Turns", "turns_at"]


class Turns:
    """Who may write now. Safe to use from any thread, but not twice from one."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._taken = False
        self._waiting: deque[threading.Lock] = deque()

    def take(self, seconds: float) -> bool:
        """Wait for a turn; False if it did not come in time."""
        with self._lock:
            if not self._taken:
                self._taken = True
                return True
            called = threading.Lock()
            called.acquire()
            self._waiting.append(called)
        try:
            in_time = called.acquire(timeout=max(0.0, seconds))
        except BaseException:  # Ctrl-C: nothing would end a turn that came by now
            if not self._left(called):
                self.end()
            raise
        return in_time or not self._left(called)

    def _left(self, called: threading.Lock) -> bool:
        """Wait no longer. False if the turn has come meanwhile."""
        with self._lock:
            if called not in self._waiting:
                return False
            self._waiting.remove(called)
            return True

    def end(self) -> None:
        """The turn is over: the thread that has waited longest is next."""
        with self._lock:
            if self._waiting:
                self._waiting.popleft().release()
            else:
                self._taken = False


_known: WeakValueDictionary[Path, Turns] = WeakValueDictionary()
_known_lock = threading.Lock()


def turns_at(file: Path) -> Turns:
    """Those of a database file, for all in this process that have it open."""
    with _known_lock:
        return _known.setdefault(file.resolve(), Turns())
