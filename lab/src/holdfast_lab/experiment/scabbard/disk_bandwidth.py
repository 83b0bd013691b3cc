"""What the disk takes: synced writes of p-unit size, measured."""

from __future__ import annotations

import os
import time
from pathlib import Path
from statistics import median

from holdfast.store import durable_write

__all__ = ["write_bandwidth"]

_SIZE = 8 << 20


def write_bandwidth(directory: Path, seconds: float = 1.0) -> float:
    """Bytes per second of new files, each written whole and synced; the median of as many as fit."""
    content = os.urandom(_SIZE)
    taken: list[float] = []
    until = time.perf_counter() + seconds
    while len(taken) < 3 or time.perf_counter() < until:
        path = directory / f"probe-{len(taken)}"
        started = time.perf_counter()
        durable_write(path, content)
        taken.append(time.perf_counter() - started)
        path.unlink()
    return _SIZE / median(taken)
