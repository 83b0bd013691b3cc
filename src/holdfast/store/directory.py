"""A store of immutable files in a directory: written whole, synced, never changed.

Durable means synced to the device: the file's bytes and its directory entry. The directory may be a local disk or
a mount that every task sees.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from holdfast.errors import CorruptPUnitError, StoreFullError

__all__ = ["DirectoryStore", "durable_write", "full_disk_is_clear", "sync_directory"]


def sync_directory(path: Path) -> None:
    """Make names created in or removed from the directory durable."""
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def full_disk_is_clear(path: Path) -> Iterator[None]:
    """Turn the system's word for a full disk into one that says what to do."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise StoreFullError(
                f"cannot write {path}: {os.strerror(error.errno)}",
                cure="free space or move the store; nothing was committed, and the next start goes on from there",
            ) from error
        raise


def durable_write(path: Path, data: bytes | memoryview, *, sync: bool = True) -> None:
    """Write a new file and sync it and its directory. On an error no file stays behind."""
    with full_disk_is_clear(path):
        try:
            with path.open("xb", buffering=0) as file:
                view = memoryview(data)
                while view:
                    view = view[file.write(view) :]
                if sync:
                    os.fsync(file.fileno())
        except FileNotFoundError:
            _make_directory(path.parent, sync)
            durable_write(path, data, sync=sync)
            return
        except FileExistsError:
            # Somebody else's file: it must stay as it is.
            raise
        except OSError:
            path.unlink(missing_ok=True)
            raise
        if sync:
            sync_directory(path.parent)


def _make_directory(path: Path, sync: bool) -> None:
    """Make a directory and those above it, as durable as the files that go into them."""
    missing = [directory for directory in (path, *path.parents) if not directory.exists()]
    path.mkdir(parents=True, exist_ok=True)
    if sync:
        for directory in missing:
            sync_directory(directory.parent)


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

    def names(self, below: str = "") -> Iterator[str]:
        """All names, e.g. to find files that no commit knows."""
        base = self.root / below
        for directory, _, files in os.walk(base):
            for file in files:
                yield str((Path(directory) / file).relative_to(self.root))
