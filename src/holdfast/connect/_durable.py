"""Writing files so that they survive a power loss, and naming the one error a person can cure: a full
disk."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from holdfast.errors import StoreFullError

__all__ = ["full_disk_named", "make_directories", "sync_directory", "write_durably"]

_NO_SPACE = frozenset({errno.ENOSPC, errno.EDQUOT})


@contextmanager
def full_disk_named(place: Path) -> Iterator[None]:
    """Turn "no space left" into a StoreFullError that says where and what to do."""
    try:
        yield
    except OSError as error:
        # Polars raises an OSError without an errno; the number is in its text only.
        if error.errno not in _NO_SPACE and not any(f"(os error {code})" in str(error) for code in _NO_SPACE):
            raise
        raise StoreFullError(
            f"no space left while writing {place}",
            cure=f"free space or raise the quota of the file system that holds {place.parent}, then start the"
            " pipeline again: it goes on from the last committed epoch",
        ) from error


def sync_directory(directory: Path) -> None:
    """Make the names in a directory durable: a file's own fsync does not cover its name."""
    handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def make_directories(directory: Path) -> None:
    """Make a directory and its parents, and make their names durable."""
    missing = []
    place = directory
    while not place.exists():
        missing.append(place)
        place = place.parent
    with full_disk_named(directory):
        directory.mkdir(parents=True, exist_ok=True)
        for made in missing:
            sync_directory(made.parent)


def write_durably(path: Path, content: bytes | memoryview) -> None:
    """Write a whole file and sync it and its name. What was written so far is removed on failure."""
    with full_disk_named(path):
        try:
            with path.open("wb", buffering=0) as file:
                rest = memoryview(content)
                while rest.nbytes:
                    rest = rest[file.write(rest) :]
                os.fsync(file.fileno())
        except BaseException:
            path.unlink(missing_ok=True)
            raise
        sync_directory(path.parent)
