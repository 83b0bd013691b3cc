"""What a process has written itself and may read again: small p-units of segments, in its memory.

State that an epoch adds is merged some epochs later, or read when a window closes. Whoever has written it need not map
the file for that, and check again what it has just made. Nothing depends on it: what is not here is read from its file.
Nothing refers to the p-units of a dropped epoch, so they are never read, and go with the next epoch.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

__all__ = ["WRITTEN", "WrittenUnits"]

_SMALL = 256 << 10
"""Larger p-units are read from their files: to map them takes little of the time that they take anyway."""
_BUDGET = 32 << 20


@dataclass(frozen=True, slots=True)
class _OwnUnit:
    name: str
    epoch: int
    data: pa.Buffer


class WrittenUnits:
    """At most `budget` bytes; the oldest go first. Safe to use from any thread."""

    def __init__(self, budget: int = _BUDGET) -> None:
        self._budget = budget
        self._kept: OrderedDict[str, _OwnUnit] = OrderedDict()
        self._bytes = 0
        self._lock = threading.Lock()

    @property
    def bytes(self) -> int:
        return self._bytes

    def add(self, root: Path, name: str, epoch: int, data: pa.Buffer) -> None:
        """The content of a p-unit of a segment below `root`, which was written for an epoch."""
        if data.size > _SMALL:
            return
        with self._lock:
            self._kept[f"{root}/{name}"] = _OwnUnit(name, epoch, data)
            self._bytes += data.size
            while self._bytes > self._budget:
                self._bytes -= self._kept.popitem(last=False)[1].data.size

    def content(self, place: str) -> pa.Buffer | None:
        """The content of the p-unit at a place, as FILE@OFFSET, if it is here."""
        found = self._kept.get(place)
        return None if found is None else found.data

    def keep(self, roots: Iterable[Path], names: Collection[str], epoch: int | None) -> None:
        """Forget what lies below these roots but for p-units of these names, and those written for `epoch`."""
        prefixes = tuple(f"{root}/" for root in roots)
        with self._lock:
            for place, written in list(self._kept.items()):
                if written.name not in names and written.epoch != epoch and place.startswith(prefixes):
                    self._bytes -= self._kept.pop(place).data.size

    def clear(self) -> None:
        with self._lock:
            self._kept.clear()
            self._bytes = 0


WRITTEN = WrittenUnits()
"""Those of this process."""
