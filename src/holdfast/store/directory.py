"""A store of immutable files in a directory: written whole, synced, never changed.

The directory may be a local disk or a mount that every task sees. A file may have copies of the same name in other
directories, *beside* the store's own: where it is looked for when it is not at home, or not sound.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from holdfast.errors import CorruptPUnitError
from holdfast.store.durable import durable_write
from holdfast.store.removal import Right, remove_files

__all__ = ["DirectoryStore", "made_before"]

_OLD_SECONDS = 86_400.0


@dataclass(frozen=True, slots=True)
class DirectoryStore:
    """Immutable files under a root, named by relative paths."""

    root: Path
    sync: bool = True
    beside: tuple[Path, ...] = ()
    """Other directories that may hold a file of the same name, in the order in which they are asked."""

    @property
    def places(self) -> tuple[Path, ...]:
        return (self.root, *self.beside)

    @property
    def alone(self) -> DirectoryStore:
        """The store's own directory, without those beside it."""
        return replace(self, beside=())

    def path(self, name: str) -> Path:
        return self.root / name

    def write(self, name: str, data: bytes | memoryview) -> None:
        """Store new bytes under a name that was never used before."""
        durable_write(self.path(name), data, sync=self.sync)

    def copies(self, name: str) -> list[Path]:
        """Where the file is, home first."""
        return [path for place in self.places if (path := place / name).exists()]

    def found(self, name: str) -> Path | None:
        """Where the file is, if it is anywhere."""
        return next((path for place in self.places if (path := place / name).exists()), None)

    def existing(self, name: str) -> Path:
        """The path of a file that must be there."""
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

    def is_old(self, name: str, now: float) -> bool:
        """Whether nobody has written a file, or touched it, for a day."""
        found = self.found(name)
        try:
            return found is not None and found.stat().st_mtime < now - _OLD_SECONDS
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
    are. The draft of a file, a dot before its name, is as old as the file. What has no epoch in its name may belong to
    any."""
    if epoch is None:
        return True
    made = name.rpartition("/")[2].removeprefix(".").partition("-")[0]
    return made.isdecimal() and int(made) < epoch
