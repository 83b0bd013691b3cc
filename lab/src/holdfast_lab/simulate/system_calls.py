"""The calls to the operating system that simulated processes make: files, time, random bytes, their number.

While a simulation runs, the calls of `os` that change files below its root take time, may fail, and are moments at
which a process may die. A call from a process that is dead does nothing. Calls of all other threads are left alone.
"""

from __future__ import annotations

import builtins
import io
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from holdfast.engine import lease
from holdfast.meta import lease_holder
from holdfast_lab.simulate.disk import Disk
from holdfast_lab.simulate.scheduler import Scheduler
from holdfast_lab.simulate.simulated_threads import SimulatedThreads

__all__ = ["SystemCalls"]


@dataclass(frozen=True, slots=True)
class SystemCalls:
    scheduler: Scheduler
    disk: Disk
    lives: Callable[[int], bool] = lambda number: False
    """Whether the process of a number does."""

    @contextmanager
    def simulated(self) -> Iterator[None]:
        """Inside, simulated threads make these calls."""
        changed = self._calls()
        before = [(module, name, getattr(module, name)) for module, name, _ in changed]
        for module, name, function in changed:
            setattr(module, name, function)
        try:
            yield
        finally:
            for module, name, function in before:
                setattr(module, name, function)

    def _calls(self) -> list[tuple[Any, str, Callable[..., Any]]]:
        plain = ("mkdir", "rmdir", "unlink", "remove", "utime", "chmod")
        found: list[tuple[Any, str, Callable[..., Any]]] = [(os, name, self._changing(name)) for name in plain]
        found += [(os, name, self._renaming(name)) for name in ("rename", "replace")]
        found += [
            (os, "link", self._linking()),
            (os, "fsync", self._syncing("fsync")),
            (os, "urandom", self._drawing()),
        ]
        found += [(os, "fdatasync", self._syncing("fdatasync")), (os, "getpid", self._numbering())]
        found += [(io, "open", self._opening()), (builtins, "open", self._opening())]
        found += [(shutil, "rmtree", self._removing())]
        found += [(lease, "this_process", self._owning()), (lease, "is_dead", self._dying())]
        clocks = {"time": SimulatedThreads.now, "monotonic": SimulatedThreads.monotonic}
        spans = ("perf_counter", "process_time", "thread_time")
        found += [(time, name, self._timing(name, clock)) for name, clock in clocks.items()]
        found += [(time, name, self._timing(name, SimulatedThreads.monotonic)) for name in spans]
        return found

    def _changing(self, name: str) -> Callable[..., Any]:
        real = getattr(os, name)

        def changed(path: Any, *args: Any, **options: Any) -> Any:
            if not self.disk.covers(path):
                return real(path, *args, **options)
            self.disk.change(f"{name} {self.disk.short(path)}")
            if name == "mkdir":
                self.disk.check_space(path)
            return real(path, *args, **options)

        return changed

    def _renaming(self, name: str) -> Callable[..., Any]:
        real = getattr(os, name)

        def renamed(source: Any, target: Any) -> None:
            if not self.disk.covers(source):
                real(source, target)
                return
            self.disk.change(f"{name} {self.disk.short(source)} {self.disk.short(target)}")
            try:
                note = self.disk.renamed(str(source), str(target))
            except FileNotFoundError:
                real(source, target)  # which tells it better
                return
            real(source, target)
            note()

        return renamed

    def _linking(self) -> Callable[..., Any]:
        real = os.link

        def linked(source: Any, target: Any, **options: Any) -> None:
            if self.disk.covers(source):
                self.disk.change(f"link {self.disk.short(source)} {self.disk.short(target)}")
            real(source, target, **options)

        return linked

    def _syncing(self, name: str) -> Callable[..., Any]:
        real = getattr(os, name)

        def synced(handle: int) -> None:
            if not self.scheduler.is_simulated():
                real(handle)
            else:
                self.disk.sync(handle)

        return synced

    def _drawing(self) -> Callable[..., Any]:
        real = os.urandom

        def drawn(size: int) -> bytes:
            return real(size) if not self.scheduler.is_simulated() else self.scheduler.random.randbytes(size)

        return drawn

    def _numbering(self) -> Callable[..., Any]:
        real = os.getpid
        return lambda: self.scheduler.task.process.number if self.scheduler.is_simulated() else real()

    def _owning(self) -> Callable[[], str]:
        real = lease_holder.this_process

        def owner() -> str:
            process = self.scheduler.task.process if self.scheduler.is_simulated() else None
            return real() if process is None else f"{process.host}:{process.number}:0.00"

        return owner

    def _dying(self) -> Callable[[str], bool]:
        real = lease_holder.is_dead
        return lambda owner: not self.lives(int(owner.split(":")[1])) if self.scheduler.is_simulated() else real(owner)

    def _timing(self, name: str, clock: Callable[[SimulatedThreads], float]) -> Callable[[], float]:
        """Of code that looks at the system's clocks, e.g. for what a task has cost."""
        real: Callable[[], float] = getattr(time, name)

        def simulated_time() -> float:
            scheduler = self.scheduler
            return clock(SimulatedThreads(scheduler, scheduler.task.process)) if scheduler.is_simulated() else real()

        return simulated_time

    def _opening(self) -> Callable[..., Any]:
        real = io.open

        def opened(file: Any, mode: str = "r", *args: Any, **options: Any) -> Any:
            if mode[0] in "xwa" and self.disk.covers(file):
                self.disk.change(f"open {self.disk.short(file)}")
                self.disk.check_space(file)
            return real(file, mode, *args, **options)

        return opened

    def _removing(self) -> Callable[..., Any]:
        real = shutil.rmtree

        def removed(place: Any, ignore_errors: bool = False, **options: Any) -> None:
            if not self.disk.covers(place):
                return real(place, ignore_errors, **options)
            try:
                with os.scandir(place) as found:
                    entries = sorted(found, key=lambda entry: entry.name)
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        removed(entry.path, ignore_errors)
                    else:
                        os.unlink(entry.path)
                os.rmdir(place)
            except OSError:
                if not ignore_errors:
                    raise
            return None

        return removed
