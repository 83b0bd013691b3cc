"""What the processes of this machine use that run a pipeline: the hosts of `holdfast up`, or the one that holds the
lease; each with all that it has started, as Spark and its workers."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

from holdfast.dashboard.store_watch import Snapshot
from holdfast.meta.lease_holder import pid_here
from holdfast.replica.process_file import host_pid

__all__ = ["HostResources", "ResourceMeter"]


@dataclass(frozen=True, slots=True)
class HostResources:
    """`cpus` are used since the last look or, at the first one, since the process began; `memory` is what would be free
    without it."""

    host: str
    pid: int
    since: float
    processes: int
    cpus: float
    memory: int
    threads: int


class ResourceMeter:
    """Looks at processes, and remembers what they had used."""

    def __init__(self) -> None:
        self._before: dict[int, tuple[float, float]] = {}

    def look(self, snapshot: Snapshot, pipeline: str, store: Path) -> list[HostResources]:
        """Of the hosts of a pipeline, or of its single process. Those of other machines are not seen from here."""
        parts = snapshot.pipelines.get(pipeline, ())
        names = {host for part in parts if part in snapshot.agreed for host in snapshot.agreed[part].seats.members}
        found = {name: pid for name in names if (pid := host_pid(store, name)) is not None}
        if not found:
            owners = {snapshot.statuses[part].owner for part in parts if part in snapshot.statuses}
            alone = {pid_here(owner) for owner in owners if owner is not None}
            return [*self._all([("", pid) for pid in alone if pid is not None])]
        return [*self._all(sorted(found.items()))]

    def _all(self, processes: Iterable[tuple[str, int]]) -> Iterator[HostResources]:
        for name, pid in processes:
            with contextlib.suppress(psutil.Error):
                yield self._measured(name, psutil.Process(pid))

    def _measured(self, host: str, process: psutil.Process) -> HostResources:
        family = [process, *process.children(recursive=True)]
        used, memory, threads, lives = 0.0, 0, 0, 0
        for one in family:
            with contextlib.suppress(psutil.Error), one.oneshot():
                times = one.cpu_times()
                used += times.user + times.system
                memory += _own_memory(one)
                threads += one.num_threads()
                lives += 1
        now, began = time.time(), process.create_time()
        at, before = self._before.get(process.pid, (began, 0.0))
        if now - at > 0.5 or process.pid not in self._before:
            self._before[process.pid] = (now, used)
        return HostResources(
            host, process.pid, began, lives, max(0.0, used - before) / max(0.1, now - at), memory, threads
        )


def _own_memory(process: psutil.Process) -> int:
    """Without what it shares with others: forked workers share much."""
    info = process.memory_info()
    return int(info.rss - getattr(info, "shared", 0))
