"""Faults that lie in wait: they strike a process when the shipped code comes to a place.

Between a commit and the removal behind it, or between a look at the store and what is done upon it, there are often
only a few steps. A fault at some time, or after some number of steps, hits them once in thousands of seeds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import holdfast.store.durable
from holdfast.connect.sinks.staging_directory import Staging
from holdfast.durability.retention import Retention
from holdfast.engine.committer import Committer
from holdfast_lab.simulate.scheduler import Process, Scheduler

__all__ = [
    "AFTER_COMMIT",
    "BEFORE_COMMIT",
    "BEFORE_PUBLISHING",
    "BEFORE_SWEEP",
    "BEFORE_SYNC_OF_DIRECTORIES",
    "BEFORE_SYNC_OF_NAMES",
    "IN_CLEANING_UP",
    "WHEN_FOLLOWED",
    "Ambushes",
    "CodePlace",
]


@dataclass(frozen=True, slots=True)
class CodePlace:
    """Where a function is entered, or, with `after`, left."""

    owner: Any
    function: str
    after: bool = False

    def __str__(self) -> str:
        return f"{'after' if self.after else 'before'} {self.owner.__name__}.{self.function}"


BEFORE_COMMIT = CodePlace(Committer, "_commit")
"""All is ready and delivered, and the transaction is not begun."""
AFTER_COMMIT = CodePlace(Committer, "_commit", after=True)
"""The transaction is done, and nothing is published."""
WHEN_FOLLOWED = CodePlace(Committer, "_follow", after=True)
"""A secondary has gone on to what was committed."""
BEFORE_SWEEP = CodePlace(Retention, "sweep")
"""What is retained is known, and the files are not listed."""
BEFORE_PUBLISHING = CodePlace(Staging, "publish")
"""The store was asked what is to be published."""
IN_CLEANING_UP = CodePlace(Staging, "_remove", after=True)
"""What a publication has left is gone, or the first part of it."""
BEFORE_SYNC_OF_NAMES = CodePlace(holdfast.store.durable, "sync_directory")
"""A file or a directory has a name, which is not durable."""

BEFORE_SYNC_OF_DIRECTORIES = CodePlace(holdfast.store.durable, "sync_new_names")
"""A directory is there, and its name is not durable."""

Act = Callable[[Process], None]


class Ambushes:
    """Those of one world. Nobody is struck when it is `calm`, nor in a transaction: that is done at one moment."""

    def __init__(self, scheduler: Scheduler, calm: float) -> None:
        self._scheduler = scheduler
        self._calm = calm
        self._laid: dict[CodePlace, list[Callable[[Process], None]]] = {}

    def lay(
        self, place: CodePlace, act: Act, *, whom: Callable[[Process], bool], chance: float = 1.0, most: int = 1
    ) -> None:
        """`act` befalls a process of those `whom` it may, when it comes there: with this chance, so often at most."""
        left = [most]

        def strike(process: Process) -> None:
            if left[0] and whom(process) and self._scheduler.random.random() < chance:
                left[0] -= 1
                self._scheduler.at(self._scheduler.time, lambda: act(process))

        self._laid.setdefault(place, []).append(strike)

    def _come(self, place: CodePlace) -> None:
        scheduler = self._scheduler
        if not scheduler.is_simulated() or scheduler.closed or scheduler.time >= self._calm:
            return
        task = scheduler.task
        if not task.busy:
            for strike in self._laid[place]:
                strike(task.process)
            scheduler.step()  # in which it strikes

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Inside, those strike that were laid until now."""
        with ExitStack() as watched:
            for place in self._laid:
                real = getattr(place.owner, place.function)
                watched.callback(setattr, place.owner, place.function, real)
                setattr(place.owner, place.function, self._watching(place, real))
            yield

    def _watching(self, place: CodePlace, real: Any) -> Any:
        def watching(*given: Any, **named: Any) -> Any:
            if not place.after:
                self._come(place)
            result = real(*given, **named)
            if place.after:
                self._come(place)
            return result

        return watching
