"""A store of immutable files in a directory: written whole, synced, never changed.

The directory may be a local disk or a mount that every task sees. A file may have copies of the same name in other
directories, the *other places*: where it is looked for when it is not at home, or not sound. What lies in a
segment (`segment.py`) may have copies that are files of their own, under its whole name; they are looked at first.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from holdfast.errors import CorruptPUnitError
from holdfast.store.durable import durable_write
from holdfast.store.removal import Right, remove_files
from holdfast.store.segment import last_epoch, segment_of

__all__ = ["DirectoryStore", "made_before"]

_OLD_SECONDS = 86_400.0


@dataclass(frozen=True, slots=True)
class DirectoryStore:
    """Immutable files under a root, named by relative paths."""

    root: Path
    sync: bool = True
    other_places: tuple[Path, ...] = ()
    """Other directories that may hold a file of the same name, in the order in which they are asked."""

    @property
    def places(self) -> tuple[Path, ...]:
        return (self.root, *self.other_places)

    @property
    def alone(self) -> DirectoryStore:
        """The store's own directory, without the other places."""
        return replace(self, other_places=())

    def path(self, name: str) -> Path:
        return self.root / name

    def write(self, name: str, data: bytes | memoryview) -> None:
        """Store new bytes under a name that was never used before."""
        durable_write(self.path(name), data, sync=self.sync)

    def copies(self, name: str) -> list[Path]:
        """Where it is, home first: files of its own, and segments."""
        return list(self._holding(name))

    def found(self, name: str) -> Path | None:
        """The file that holds it, if there is one."""
        return next(self._holding(name), None)

    def _holding(self, name: str) -> Iterator[Path]:
        segment = segment_of(name)
        for place in self.places:
            for file in (name,) if segment is None else (name, segment):
                path = f"{place}/{file}"  # paths are made of what is there only: this is asked for in every epoch
                if os.path.exists(path):
                    yield Path(path)

    def existing(self, name: str) -> Path:
        """The file that must hold it."""
        path = self.found(name)
        if path is None:
            raise CorruptPUnitError(
                f"{self.path(name)} is missing",
                cure="restore the file from a copy of the store; nothing was changed",
            )
        return path

    def remove(self, names: Iterable[str], right: Right) -> None:
        """Forget files and all their copies. A name that is not there is no error: removal may have been interrupted
        before."""
        remove_files([place / name for name in names for place in self.places], right)

    def is_old(self, name: str, now: float, seconds: float = _OLD_SECONDS) -> bool:
        """Whether a file was neither written nor touched for so long; by default, for a day."""
        found = self.found(name)
        try:
            return found is not None and found.stat().st_mtime < now - seconds
        except FileNotFoundError:
            return False

    def touch(self, name: str) -> bool:
        """Have a file count as new; False if it is gone."""
        try:
            os.utime(self.path(name))
        except FileNotFoundError:
            return False
        return True

    def names(self) -> Iterator[str]:
        """All names, e.g. to find files that no commit knows."""
        seen: set[str] = set()
        for place in self.places:
            for directory, _, files in os.walk(place):
                for file in files:
                    name = str((Path(directory) / file).relative_to(place))
                    if name not in seen:
                        seen.add(name)
                        yield name


def made_before(name: str, epoch: int | None) -> bool:
    """Whether a file, whose name begins with the epoch it was made in, is older than an epoch; without an epoch all
    are. The draft of a file, a dot before its name, is as old as the file. A segment is as old as the last epoch it may
    be written for. What has no epoch in its name may belong to any."""
    if epoch is None:
        return True
    if (last := last_epoch(name)) is not None:
        return last < epoch
    made = name.rpartition("/")[2].removeprefix(".").partition("-")[0]
    return made.isdecimal() and int(made) < epoch
