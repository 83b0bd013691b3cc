"""Removing files, by a right that is asked for when they go.

A process that was stopped for a while, and does not know that another one has its work by now, must not remove what
that one needs. So nothing of a store is removed without a right, which is checked after it was decided what goes: what
a successor has made is not among that, however late its predecessor gets to removing. No other module of the packages
that keep stores removes a file by itself.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

__all__ = ["Private", "Right", "remove_directory", "remove_files", "remove_tree"]

_AT_ONCE = 100
"""The right is checked again after so many files: meanwhile it may have gone."""


class Right(Protocol):
    """The right to remove files."""

    def check(self) -> None:
        """Raises if the right was lost."""


@dataclass(frozen=True, slots=True)
class Private:
    """The right to what this process has made and nothing else refers to or looks for; `why` gives the reason."""

    why: str

    def check(self) -> None:
        pass


def remove_files(paths: Iterable[Path], right: Right) -> None:
    """Remove files. One that is not there is no error: removal may have been interrupted before."""
    decided = sorted(paths)  # in an order that does not depend on hashes: what happens can be repeated
    for start in range(0, len(decided), _AT_ONCE):
        right.check()
        for path in decided[start : start + _AT_ONCE]:
            path.unlink(missing_ok=True)


def remove_tree(place: Path, right: Right) -> None:
    """Remove a directory with all that is in it, as far as that can be done."""
    right.check()
    shutil.rmtree(place, ignore_errors=True)


def remove_directory(place: Path, right: Right) -> None:
    """Remove a directory, if it is empty."""
    right.check()
    with contextlib.suppress(OSError):
        place.rmdir()
