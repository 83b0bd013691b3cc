"""How long a thread has waited for the disk: every sync of a task is counted here."""

from __future__ import annotations

import os
import threading
import time

__all__ = ["synced", "syncing_seconds"]


class _SyncClock(threading.local):
    seconds = 0.0


_CLOCK = _SyncClock()


def synced(handle: int, *, data_only: bool = False) -> None:
    """Make what was written to a file, or the names in a directory, durable; with `data_only` not its times."""
    began = time.perf_counter()
    (os.fdatasync if data_only else os.fsync)(handle)
    _CLOCK.seconds += time.perf_counter() - began


def syncing_seconds() -> float:
    """What this thread has waited in all. The difference between two moments is what a task has waited."""
    return _CLOCK.seconds
