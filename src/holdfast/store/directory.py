"""A store of immutable files in a directory: written whole, synced, never changed.

The directory may be a local disk or a mount that every task sees.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from holdfast.errors import CorruptPUnitError
from holdfast.store.durable import durable_write

__all__ = ["DirectoryStore"]


@dataclass(frozen=True, slots=True)
class DirectoryStore:
    """Immutable files under a root, named by relative paths."""

    root: Path
    sync: bool = True

    def path(self, name: str) -> Path:
        return self.root / name

    def write(self, name: str, data: bytes | memoryview) -> None:
        """Store new bytes under a name that was never used before."""
        durable_write(self.path(name), data, sync=self.sync)

    def existing(self, name: str) -> Path:
        """The path of a file that must be there."""
        path = self.path(name)
        if not path.exists():
            raise CorruptPUnitError(
                f"{path} is missing",
                cure="restore the file from a copy of the store; nothing was changed",
            )
        return path

    def remove(self, names: Iterable[str]) -> None:
        """Forget files. A name that is not there is no error: removal may have been interrupted before."""
        for name in names:
            self.path(name).unlink(missing_ok=True)

    def names(self) -> Iterator[str]:
        """All names, e.g. to find files that no commit knows."""
        for directory, _, files in os.walk(self.root):
            for file in files:
                yield str((Path(directory) / file).relative_to(self.root))
