"""Who holds a lease, and whether that process is running: the one rule for commands, runs, hosts and the dashboard.

A process is written as host, process id and its start time. So after a kill -9, others on the same machine see that it
is dead and need not wait for the lease to expire. Of a process on another machine only the lease is known. A process
that lives but does not renew its lease does not count either: others may take over at any moment.
"""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass

import psutil

__all__ = ["LeaseHolder", "is_dead", "pid_here", "this_process"]

# The system knows ticks since boot; the start time made of them moves when the clock is set.
_CLOCK_STEP_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class LeaseHolder:
    """Who has the lease of a pipeline or fragment: a process that runs it alone, or the host with the first seat."""

    token: int
    owner: str
    expires: float

    def is_running(self, now: float) -> bool:
        """Whether the pipeline counts as running: its lease has not expired, and the owner is not known to be dead."""
        return self.expires > now and not is_dead(self.owner)


def this_process() -> str:
    """This process as the owner of a lease."""
    return f"{socket.gethostname()}:{os.getpid()}:{psutil.Process().create_time():.2f}"


def is_dead(owner: str) -> bool:
    """Whether the owner is a process of this machine that has ended."""
    host, _, rest = owner.rpartition(":")[0].rpartition(":")
    pid, started = rest, owner.rpartition(":")[2]
    if host != socket.gethostname():
        return False
    try:
        process = psutil.Process(int(pid))
        reused = abs(process.create_time() - float(started)) > _CLOCK_STEP_SECONDS
        return reused or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def pid_here(owner: str) -> int | None:
    """The process id of an owner that lives on this machine. On another one the number is of no use."""
    host, pid, _ = owner.rsplit(":", 2)
    return int(pid) if host == socket.gethostname() and not is_dead(owner) else None
