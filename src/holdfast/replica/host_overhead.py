"""What a host uses in addition to the tasks of its epochs, mostly for Spark's driver and executor. Plans leave room for
it once it is known."""

from __future__ import annotations

import contextlib
from collections import deque
from dataclasses import dataclass, field

import psutil

__all__ = ["HostOverhead", "cpu_of_processes", "resident_bytes"]

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


def cpu_of_processes(known: dict[int, float]) -> float:
    """CPU seconds of this process and all it has started. Those that have ended count with what was seen last, which is
    kept in `known`."""
    me = psutil.Process()
    for process in (me, *me.children(recursive=True)):
        with contextlib.suppress(psutil.NoSuchProcess):
            times = process.cpu_times()
            known[process.pid] = times.user + times.system
    return sum(known.values())


def resident_bytes() -> float:
    """Memory of this process and all it has started; what they share counts for each."""
    me = psutil.Process()
    found = 0.0
    for process in (me, *me.children(recursive=True)):
        with contextlib.suppress(psutil.NoSuchProcess):
            found += process.memory_info().rss
    return found
