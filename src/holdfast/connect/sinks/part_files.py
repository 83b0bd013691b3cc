"""The files of a published directory: what tasks have prepared, as it is or merged into fewer and larger files.

A file of the output is immutable, so what is large enough is linked and not copied. Small files of several epochs are
merged, in their order, as streams: memory is bounded, and so is what one publication may cost.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import polars as pl
from polars.exceptions import PolarsError

from holdfast.store import full_disk_named, sync_directory, synced

__all__ = ["link_or_copy", "merge_files", "merged_groups", "write_parts"]

_SMALL = 16_000_000
_LARGE = 128_000_000
"""Bytes: files below the first are merged, until a merged one has about the second."""

Files = Sequence[tuple[Path, int]]


def write_parts(files: Files, into: Path, *, merge: bool) -> None:
    """Make a directory of these files, which are given with their sizes; `merge` those that are small."""
    into.mkdir(parents=True)
    number = 0
    for some in merged_groups(files) if merge else [[file] for file, _ in files]:
        draft = into / f"part-{number:05d}{some[0].suffix}"
        if len(some) > 1 and merge_files(some, draft):
            number += 1
            continue
        for file in some:
            link_or_copy(file, into / f"part-{number:05d}{file.suffix}")
            number += 1
    sync_directory(into)


def merged_groups(files: Files) -> Iterator[list[Path]]:
    """Which files become one."""
    some: list[Path] = []
    gathered = 0
    for file, size in files:
        if size >= _SMALL or gathered + size > _LARGE or (some and some[0].suffix != file.suffix):
            if some:
                yield some
            some, gathered = [], 0
        some.append(file)
        gathered += size
        if size >= _SMALL:
            yield some
            some, gathered = [], 0
    if some:
        yield some


def _merge_parquet(files: list[Path], into: Path) -> None:
    pl.scan_parquet(files, hive_partitioning=False, glob=False).sink_parquet(into)


def _merge_arrow(files: list[Path], into: Path) -> None:
    rows = pl.scan_ipc(files, hive_partitioning=False, glob=False)
    rows.sink_ipc(into, compression="uncompressed", compat_level=pl.CompatLevel.oldest())


def _merge_lines(files: list[Path], into: Path) -> None:
    with into.open("xb") as writing:
        for file in files:
            with file.open("rb") as reading:
                shutil.copyfileobj(reading, writing, 1 << 20)


_MERGE: dict[str, Callable[[list[Path], Path], None]] = {
    ".parquet": _merge_parquet,
    ".arrow": _merge_arrow,
    ".ndjson": _merge_lines,
}


def merge_files(files: list[Path], into: Path) -> bool:
    """Write one file with the rows of all; False if they do not fit together, because the pipeline's columns have
    changed between their epochs."""
    for file in files:
        file.stat()  # a file that is gone is told as such, not as Polars does
    try:
        with full_disk_named(into):
            _MERGE[into.suffix](files, into)
    except PolarsError:
        into.unlink(missing_ok=True)
        return False
    _sync(into)
    return True


def link_or_copy(file: Path, into: Path) -> None:
    """Give a file another name. Where a file system has no links, a copy does."""
    try:
        os.link(file, into)
    except (FileNotFoundError, FileExistsError):
        raise
    except OSError:
        with full_disk_named(into):
            shutil.copyfile(file, into)
        _sync(into)


def _sync(file: Path) -> None:
    with file.open("rb") as handle:
        synced(handle.fileno())
