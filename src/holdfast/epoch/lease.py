"""Keeping the lease on a pipeline while it runs.

The owner is written as host, process id and the process's start time, so that after a kill -9 the next start on the
same machine sees that the owner is dead and need not wait for the lease to expire.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from types import TracebackType

import psutil

from holdfast.meta import Lease, MetaStore

__all__ = ["LeaseKeeper", "is_dead"]

LEASE_SECONDS = 30.0


def _this_process() -> str:
    return f"{socket.gethostname()}:{os.getpid()}:{psutil.Process().create_time():.2f}"


def is_dead(owner: str) -> bool:
    """Whether the owner is a process of this machine that no longer lives."""
    host, _, rest = owner.rpartition(":")[0].rpartition(":")
    pid, started = rest, owner.rpartition(":")[2]
    if host != socket.gethostname():
        return False
    try:
        process = psutil.Process(int(pid))
        return process.status() == psutil.STATUS_ZOMBIE or f"{process.create_time():.2f}" != started
    except psutil.NoSuchProcess:
        return True


class LeaseKeeper:
    """Holds the lease from `__enter__` to `__exit__`; `renew` is called often and writes seldom."""

    lease: Lease

    def __init__(self, meta: MetaStore, pipeline: str, clock: Callable[[], float]) -> None:
        self._meta = meta
        self._pipeline = pipeline
        self._clock = clock
        self._renew_at = 0.0

    def __enter__(self) -> LeaseKeeper:
        now = self._clock()
        holder = self._meta.owner_of(self._pipeline)
        dead = holder is not None and is_dead(holder[0])
        self.lease = self._meta.acquire(self._pipeline, _this_process(), now, LEASE_SECONDS, dead)
        self._renew_at = now + LEASE_SECONDS / 3
        return self

    def renew(self) -> None:
        now = self._clock()
        if now >= self._renew_at:
            self._meta.renew(self.lease, now, LEASE_SECONDS)
            self._renew_at = now + LEASE_SECONDS / 3

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._meta.release(self.lease)
