"""What a run holds at a moment: files and bytes by directory, rows of the meta store by table, open files, memory."""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import psutil

__all__ = ["Sample", "sample"]


@dataclass(frozen=True, slots=True)
class Sample:
    """`holds` is what there is, by name; `began` and `ended` are when it was looked at, by a clock that only goes
    forward; `cpu` is the processor time of all processes until then, without that of looking."""

    epoch: int
    began: float
    ended: float
    cpu: float
    holds: Mapping[str, float]


def sample(place: Path, store: Path) -> tuple[dict[str, float], float]:
    """What is held now, and the processor seconds that all processes have used."""
    held, cpu = _processes()
    return {**_directories(place), **_tables(store), **held}, cpu


def _directories(place: Path) -> dict[str, float]:
    """Files and bytes below each directory that has any, numbers in names left out."""
    files: Counter[str] = Counter()
    sizes: Counter[str] = Counter()
    for directory, size in _walk(place):
        files[directory] += 1
        sizes[directory] += size
    found: dict[str, float] = {f"files {name}": count for name, count in files.items()}
    return found | {f"bytes {name}": size for name, size in sizes.items()}


def _walk(place: Path) -> Iterator[tuple[str, int]]:
    """Of each file: the top of where it is, and its size on disk. Files come and go meanwhile."""
    for directory, _, names in os.walk(place):
        parts = Path(directory).relative_to(place).parts
        top = "/".join(part for part in parts[:3] if not any(letter.isdigit() for letter in part)) or "."
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                yield top, os.stat(os.path.join(directory, name)).st_blocks * 512


def _tables(store: Path) -> dict[str, float]:
    with closing(sqlite3.connect(f"file:{store / 'meta.db'}?mode=ro", uri=True, timeout=60)) as connection:
        names = [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        return {f"rows {name}": connection.execute(f"SELECT count(*) FROM {name}").fetchone()[0] for name in names}


def _processes() -> tuple[dict[str, float], float]:
    """Open files, threads and memory of the driver, of Java, and of the Python processes below them."""
    held: Counter[str] = Counter()
    cpu, me = 0.0, psutil.Process()
    for process in (me, *me.children(recursive=True)):
        with contextlib.suppress(psutil.Error):
            kind = "driver" if process == me else "java" if "java" in process.name() else "workers"
            with process.oneshot():
                times, taken, files = process.cpu_times(), process.memory_full_info().uss, process.num_fds()
                threads = process.num_threads()
            cpu += times.user + times.system
            for what, value in (("memory", taken), ("open files", files), ("threads", threads), ("processes", 1)):
                held[f"{what} {kind}"] += value
    return dict(held), cpu
