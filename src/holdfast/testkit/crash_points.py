"""Crashes in one process: steps that are counted, and a death at one of them.

A death is an exception that is no `Exception`: nothing of a run catches it, so what a run leaves is what a killed
process leaves. `CrashPoints` counts the steps that a run reaches; `dying` counts the lines of a connector's own code.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType
from typing import Any
from weakref import WeakValueDictionary

_KIT = str(Path(__file__).parent)

__all__ = ["CrashPoints", "DiedError", "SharedObject", "dying"]


class DiedError(BaseException):
    """What a run ends of where the kit lets it crash. Do not catch it: a killed process could not either."""


class SharedObject:
    """An object that stays one, also in copies of what holds it: between driver and tasks of this process programs are
    pickled, as they would be between processes."""

    def __reduce__(self) -> tuple[Callable[[int], SharedObject], tuple[int]]:
        _SHARED[id(self)] = self
        return _shared, (id(self),)


_SHARED: WeakValueDictionary[int, SharedObject] = WeakValueDictionary()


def _shared(number: int) -> SharedObject:
    return _SHARED[number]


class CrashPoints(SharedObject):
    """The steps of a run by name, in the order in which they were reached. The one of number `dies_at`, counted from 1,
    is a death. The attempt of a task of number `loses_at` is lost, and the task runs again."""

    def __init__(self) -> None:
        self.reached: list[str] = []
        self.dies_at: int | None = None
        self.attempts = 0
        self.loses_at: int | None = None

    def reach(self, name: str) -> None:
        self.reached.append(name)
        if len(self.reached) == self.dies_at:
            raise DiedError(name)

    def lose(self, name: str) -> bool:
        """Whether what a task has said is lost."""
        self.attempts += 1
        return self.attempts == self.loses_at


class LineCount:
    """Counts the lines that are run of files below some directories, and dies before one of them."""

    def __init__(self, roots: tuple[str, ...], dies_at: int | None) -> None:
        self.count = 0
        self.at = ""
        """Where it has died."""
        self._roots = roots
        self._dies_at = dies_at
        self._known: dict[CodeType, bool] = {}

    def enter(self, frame: FrameType, event: str, argument: object) -> Any:
        code = frame.f_code
        if code not in self._known:
            file = code.co_filename
            self._known[code] = file.startswith(self._roots) and not file.startswith(_KIT)
        return self._line if self._known[code] else None

    def _line(self, frame: FrameType, event: str, argument: object) -> Any:
        if event == "line":
            self.count += 1
            if self.count == self._dies_at:
                self.at = f"line {frame.f_lineno} of {frame.f_code.co_qualname}"
                raise DiedError(self.at)
        return self._line


@contextmanager
def dying(roots: tuple[str, ...], dies_at: int | None) -> Iterator[LineCount]:
    """Within it, this thread dies before the line of number `dies_at` that is run of files below these directories. It
    ends there, and the caller sees where it has died: what is raised while a death unwinds, nobody would have seen."""
    lines = LineCount(roots, dies_at)
    before = sys.gettrace()
    sys.settrace(lines.enter)
    try:
        yield lines
    except BaseException:
        if not lines.at:
            raise
    finally:
        sys.settrace(before)
