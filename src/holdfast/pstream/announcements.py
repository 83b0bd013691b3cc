"""Announcements within a process: a thread that waits for rows of a p-stream is woken when some are durable there.

They only save waiting. What another process writes, and what was written before somebody began to listen, is found by
looking, so nothing depends on an announcement.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable

from holdfast.threads import SYSTEM, Threads

__all__ = ["Announcements", "Listener"]


class Listener:
    """A waiter, in one thread."""

    def __init__(self, threads: Threads) -> None:
        self._changed = threads.condition()
        self._called = False

    def wait(self, seconds: float) -> None:
        """Until there is something new since the last time, but no longer than so many seconds."""
        with self._changed:
            self._changed.wait_for(lambda: self._called, seconds)
            self._called = False

    def call(self) -> None:
        with self._changed:
            self._called = True
            self._changed.notify_all()


class Announcements:
    """Of all p-streams that a process writes in one store. A listener is known as long as somebody has it: a host may
    run a fragment again and again."""

    def __init__(self, threads: Threads = SYSTEM) -> None:
        self._threads = threads
        self._listeners: dict[str, list[weakref.ref[Listener]]] = {}

    def listener(self, streams: Iterable[str]) -> Listener:
        """A waiter for any of these p-streams. To be created before anything is written."""
        listener = Listener(self._threads)
        for stream in streams:
            known = [one for one in self._listeners.get(stream, ()) if one() is not None]
            self._listeners[stream] = [*known, weakref.ref(listener)]
        return listener

    def appended(self, stream: str) -> None:
        """Rows of a p-stream have become durable."""
        for known in self._listeners.get(stream, ()):
            if (listener := known()) is not None:
                listener.call()
