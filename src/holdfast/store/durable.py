"""Writing files so that they survive a power loss, and naming the one error a person can cure: a full disk.

Durable means synced to the device: the file's bytes, and its name in its directory.
"""

from __future__ import annotations

import errno
import os
import shutil
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from holdfast.errors import StoreFullError
from holdfast.store.removal import Private, remove_files
from holdfast.store.sync_clock import synced

__all__ = ["durable_write", "full_disk_named", "make_directories", "replace_copy", "sync_directory", "sync_names_above"]

_DRAFT = Private("it was not finished, so nothing refers to it")
_NO_SPACE = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


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
            f"cannot write {place}: no space left",
            cure=f"free space or raise the quota of the file system that holds {place.parent}, then start the"
            " pipeline again: it resumes from the last committed epoch",
        ) from error


def sync_directory(directory: Path) -> None:
    """Make the names in a directory durable: a file's own fsync does not cover its name."""
    handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        synced(handle)
    finally:
        os.close(handle)


def make_directories(directory: Path, *, sync: bool = True) -> None:
    """Make a directory and those above it, and make their names durable."""
    missing = [place for place in (directory, *directory.parents) if not place.exists()]
    with full_disk_named(directory):
        directory.mkdir(parents=True, exist_ok=True)
        if missing and sync:
            sync_new_names(missing)


def sync_new_names(made: Sequence[Path]) -> None:
    """Make the names of new directories durable."""
    for place in made:
        sync_directory(place.parent)


def sync_names_above(path: Path, top: Path, known: set[Path]) -> None:
    """Make the names of the directories durable that hold a file, below `top`: the process that made them may not have
    come to that yet. Those that are `known` are durable already."""
    for place in path.parents:
        if place == top or place in known:
            return
        sync_directory(place.parent)
        known.add(place)


def durable_write(path: Path, content: bytes | memoryview, *, sync: bool = True) -> None:
    """Write a new file whole and sync it and its name. On a failure no file stays behind.

    A name that is taken is an error, and the file that has it stays as it is.
    """
    with full_disk_named(path):
        try:
            file = path.open("xb", buffering=0)
        except FileNotFoundError:
            make_directories(path.parent, sync=sync)
            file = path.open("xb", buffering=0)
        try:
            with file:
                rest = memoryview(content)
                while rest.nbytes:
                    rest = rest[file.write(rest) :]
                if sync:
                    synced(file.fileno())
        except BaseException:
            remove_files([path], _DRAFT)
            raise
        if sync:
            sync_directory(path.parent)


def replace_copy(
    source: Path, target: Path, *, sync: bool = True, start: int | None = None, length: int | None = None
) -> None:
    """Copy a file over another, or to where none is, so that readers of the target see the old or the new, whole. With
    `start` and `length`, only that part of the source."""
    draft = target.with_name(f".{target.name}.{uuid.uuid4().hex}")
    with full_disk_named(target):
        make_directories(target.parent, sync=sync)
        try:
            with source.open("rb") as reading, draft.open("xb") as writing:
                if start is None or length is None:
                    shutil.copyfileobj(reading, writing, 1 << 20)
                else:
                    reading.seek(start)
                    for at in range(0, length, 1 << 20):
                        writing.write(reading.read(min(1 << 20, length - at)))
                writing.flush()
                if sync:
                    synced(writing.fileno())
            draft.replace(target)
        except BaseException:
            remove_files([draft], _DRAFT)
            raise
        if sync:
            sync_directory(target.parent)
