"""How much memory and processor time a run takes: the driver's process, Java, and the Python processes below the two.

Memory is PSS: pages that several processes map, such as p-units and libraries, count once in all.
"""

from __future__ import annotations

import contextlib
import threading
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

import psutil

__all__ = ["MemoryUse", "MemoryWatch", "processor_seconds"]

_PAUSE_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """Bytes. `workers` are all Python processes but the driver."""

    driver: int = 0
    java: int = 0
    workers: int = 0

    def most(self, other: MemoryUse) -> MemoryUse:
        return MemoryUse(max(self.driver, other.driver), max(self.java, other.java), max(self.workers, other.workers))

    def to_json(self) -> dict[str, int]:
        return {"driver": self.driver, "java": self.java, "workers": self.workers}


def memory_now() -> MemoryUse:
    """The memory of this process and of those below it."""
    me = psutil.Process()
    java = workers = 0
    for process in me.children(recursive=True):
        with contextlib.suppress(psutil.Error):
            taken = int(process.memory_full_info().pss)
            if "java" in process.name():
                java += taken
            else:
                workers += taken
    return MemoryUse(int(me.memory_full_info().pss), java, workers)


def processor_seconds() -> float:
    """What this process and those below it have used so far. What ended meanwhile is not counted any more."""
    used = 0.0
    for process in (me := psutil.Process(), *me.children(recursive=True)):
        with contextlib.suppress(psutil.Error):
            times = process.cpu_times()
            used += times.user + times.system
    return used


@dataclass(slots=True)
class MemoryWatch:
    """Looks every second, as long as it is entered. `most` is the most of each kind since `reset`."""

    most: MemoryUse = field(default_factory=MemoryUse)
    _over: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def reset(self) -> None:
        self.most = MemoryUse()

    def __enter__(self) -> Self:
        self._thread = threading.Thread(target=self._look, name="memory", daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        if self._thread is not None:
            self._thread.join()

    def _look(self) -> None:
        while not self._over.wait(_PAUSE_SECONDS):
            self.most = self.most.most(memory_now())
