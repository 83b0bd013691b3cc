"""The data files of a publication to a table of a lake: what tasks have staged, as it is or merged into fewer and
larger files, one partition in each.

A staged file that is large is of one partition and becomes a file of the table as it is. Small ones hold rows of all
partitions; those of several epochs are put together and cut by partition. What was made stands in an index beside the
files, so that every host that finishes the publication does so with the same ones.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import polars as pl

from holdfast.connect.lake_columns import partition_path, partition_text
from holdfast.connect.sinks.part_files import link_or_copy
from holdfast.store import durable_write, full_disk_named, make_directories, sync_directory, synced

__all__ = [
    "SMALL",
    "Cut",
    "StagedFile",
    "TableFile",
    "Values",
    "cut_by_partition",
    "read_index",
    "show_files",
    "write_table_files",
]

SMALL = 16_000_000
_AT_ONCE = 64_000_000
"""Bytes: smaller files are merged, about so many at a time."""
_INDEX = "index.json"

Values = Mapping[str, str | None]
Cut = Callable[[pl.DataFrame], Iterator[tuple[Values, pl.DataFrame]]]
"""Gives the rows of each partition, as they are written to its files."""


@dataclass(frozen=True, slots=True)
class StagedFile:
    """A file that a task has written; `values` of the partition columns, if it is of one partition."""

    file: str
    rows: int
    bytes: int
    values: Values | None


@dataclass(frozen=True, slots=True)
class TableFile:
    """A file of the table, by its name among those of the publication."""

    name: str
    values: Values
    rows: int

    def path(self, prefix: str) -> str:
        """Where it is in the table."""
        return f"{partition_path(self.values)}{prefix}-{self.name}"


def cut_by_partition(rows: pl.DataFrame, columns: Sequence[str]) -> Iterator[tuple[Values, pl.DataFrame]]:
    """The rows of each partition, in their order and without the partition columns."""
    if not columns:
        yield {}, rows
        return
    for values, some in rows.partition_by(*columns, as_dict=True, include_key=False, maintain_order=True).items():
        yield dict(zip(columns, map(partition_text, values), strict=True)), some


def write_table_files(root: Path, staged: Sequence[StagedFile], cut: Cut, into: Path) -> None:
    """Fill a new directory with the files of a publication, and the index of them."""
    into.mkdir(parents=True)
    made: list[TableFile] = []
    for some in _together(staged):
        if len(some) == 1 and some[0].values is not None:
            name = f"{len(made):05d}.parquet"
            link_or_copy(root / some[0].file, into / name)
            made.append(TableFile(name, some[0].values, some[0].rows))
            continue
        for staged_file in some:
            (root / staged_file.file).stat()  # a file that is gone is told as such, not as Polars does
        frames = [pl.read_parquet(root / file.file, hive_partitioning=False, glob=False) for file in some]
        for values, rows in cut(pl.concat(frames, how="diagonal")):
            name = f"{len(made):05d}.parquet"
            with full_disk_named(into / name):
                rows.write_parquet(into / name)
            with (into / name).open("rb") as handle:
                synced(handle.fileno())
            made.append(TableFile(name, values, rows.height))
    durable_write(into / _INDEX, json.dumps([asdict(file) for file in made]).encode())
    sync_directory(into)


def _together(staged: Iterable[StagedFile]) -> Iterator[list[StagedFile]]:
    """Which files are put together, in their order. One that a task has cut out for a partition stays as it is: it may
    lack the partition columns."""
    some: list[StagedFile] = []
    for file in staged:
        large = bool(file.values) or (file.values is not None and file.bytes >= SMALL)
        if some and (large or sum(other.bytes for other in some) + file.bytes > _AT_ONCE):
            yield some
            some = []
        some.append(file)
        if large:
            yield some
            some = []
    if some:
        yield some


def read_index(place: Path) -> list[TableFile]:
    """The files of a publication."""
    return [TableFile(**entry) for entry in json.loads((place / _INDEX).read_bytes())]


def show_files(place: Path, files: Sequence[TableFile], table: Path, prefix: str) -> None:
    """Put files where the table has its own. Nobody reads them before the log names them."""
    parents: dict[Path, None] = {}
    for file in files:
        target = table / file.path(prefix)
        if target.parent not in parents:
            make_directories(target.parent)
            parents[target.parent] = None
        # It may be there of a publication that was interrupted, or is going on elsewhere: it has the same content.
        with contextlib.suppress(FileExistsError):
            link_or_copy(place / file.name, target)
    for parent in parents:
        sync_directory(parent)
