"""The death of a process at any step that changes a directory, without a process.

Inside `steps(dies_at)` the calls that change directories are counted; the one of that number does not happen, and nor
does any after it, whatever `finally` and `except` try: for the disk the process is dead.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

_CHANGES = ("rename", "replace", "link", "unlink", "mkdir", "rmdir", "fsync", "fdatasync")


class PowerLossError(BaseException):
    """Nobody is there to catch it."""


@dataclass(slots=True)
class Steps:
    dies_at: int | None
    seen: Callable[[], None]
    count: int = 0
    dead: bool = field(default=False, init=False)

    def take(self) -> None:
        """A step is due."""
        if self.dead or self.count == self.dies_at:
            self.dead = True
            raise PowerLossError
        self.count += 1

    def around(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*args: Any, **options: Any) -> Any:
            self.take()
            result = real(*args, **options)
            self.seen()
            return result

        return counted


@contextmanager
def steps(dies_at: int | None, seen: Callable[[], None] = lambda: None) -> Iterator[Steps]:
    """`seen` is called after each step: what a reader finds then must make sense."""
    made = Steps(dies_at, seen)
    with pytest.MonkeyPatch.context() as patch:
        for name in _CHANGES:
            patch.setattr(os, name, made.around(getattr(os, name)))
        try:
            yield made
        except PowerLossError:
            made.dead = True
