"""A host as a process: how long it took to start, and what it uses in addition to the tasks of its epochs, mostly for
Spark's driver and executor. Plans leave room for that once it is known."""

from __future__ import annotations

import contextlib
from collections import deque
from dataclasses import dataclass, field

import psutil

from holdfast.meta.lease_holder import this_process

__all__ = ["HostOverhead", "ProcessMeter"]

_SAMPLE_SECONDS = 5.0
_SAMPLES = 7


@dataclass(slots=True)
class HostOverhead:
    """CPU of the whole host, sampled, and of tasks, as they report it. Times are of a clock that is never set."""

    _tasks: float = 0.0
    _samples: deque[tuple[float, float]] = field(default_factory=lambda: deque(maxlen=_SAMPLES))

    def spent(self, seconds: float) -> None:
        """By the tasks of an epoch."""
        self._tasks += seconds

    def due(self, now: float) -> bool:
        """Whether it is time for a sample."""
        return not self._samples or now - self._samples[-1][0] >= _SAMPLE_SECONDS

    def sample(self, now: float, whole: float) -> None:
        """The CPU seconds of the host so far."""
        self._samples.append((now, whole - self._tasks))

    @property
    def rate(self) -> float | None:
        """CPU seconds per second over the last half minute; None before that is known."""
        if len(self._samples) < _SAMPLES:
            return None
        (began, before), (ended, after) = self._samples[0], self._samples[-1]
        return max(0.0, (after - before) / (ended - began))


@dataclass(slots=True)
class ProcessMeter:
    """The process of a host, as the operating system sees it. It is `name`d as the owners of leases are."""

    name: str = field(default_factory=this_process)
    started: float = field(default_factory=lambda: psutil.Process().create_time())
    """By the time of day."""
    overhead: HostOverhead = field(default_factory=HostOverhead)
    deploy_seconds: float = 0.0
    session_seconds: float = 0.0
    idle_bytes: float = 0.0
    _deployed_at: float = 0.0
    _cpu: dict[int, float] = field(default_factory=dict)

    def deployed(self, now: float, monotonic: float) -> None:
        """The program of the host has been loaded."""
        self.deploy_seconds, self._deployed_at = now - self.started, monotonic

    def opened_session(self, monotonic: float) -> None:
        """There is a session, in which nothing runs yet."""
        self.session_seconds = monotonic - self._deployed_at
        self.idle_bytes = self.resident_bytes()

    def sample(self, monotonic: float) -> None:
        if self.overhead.due(monotonic):
            self.overhead.sample(monotonic, self.cpu_seconds())

    def cpu_seconds(self) -> float:
        """Of this process and all it has started. Those that have ended count with what was seen last."""
        me = psutil.Process()
        for process in (me, *me.children(recursive=True)):
            with contextlib.suppress(psutil.NoSuchProcess):
                times = process.cpu_times()
                self._cpu[process.pid] = times.user + times.system
        return sum(self._cpu.values())

    def resident_bytes(self) -> float:
        """Memory of this process and all it has started; what they share counts for each."""
        me = psutil.Process()
        found = 0.0
        for process in (me, *me.children(recursive=True)):
            with contextlib.suppress(psutil.NoSuchProcess):
                found += process.memory_info().rss
        return found
