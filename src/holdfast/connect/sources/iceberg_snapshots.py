"""The snapshots of an Iceberg table as a source needs them: which comes next, and which files it has added."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import polars as pl
import pyarrow.parquet as pq

from holdfast.connect.iceberg_catalog import IcebergName
from holdfast.errors import InputError

if TYPE_CHECKING:
    from pyiceberg.table import Table
    from pyiceberg.table.snapshots import Snapshot

__all__ = [
    "IcebergFile",
    "SnapshotChange",
    "columns_of",
    "next_snapshot",
    "physical_names",
    "schema_of",
    "snapshot_files",
]

_ADDS, _REWRITES = "append", "replace"
_FIELD_ID = b"PARQUET:field_id"


@dataclass(frozen=True, slots=True)
class IcebergFile:
    """A data file."""

    path: str
    size: int
    rows: int


@dataclass(frozen=True, slots=True)
class IcebergColumn:
    """What tells which column of a file is which of the table: its id, or where a file has none, its names."""

    name: str
    field_id: int
    names: list[str]


@dataclass(frozen=True, slots=True)
class SnapshotChange:
    """What a snapshot did to the rows of the table."""

    operation: str
    files: tuple[IcebergFile, ...]
    removes: bool


def next_snapshot(named: IcebergName, table: Table, done: int) -> int | None:
    """The snapshot that came after one; None if that is the current one."""
    current = table.current_snapshot()
    at, later = current, None
    while at is not None and at.snapshot_id != done:
        later = at.snapshot_id
        at = None if at.parent_snapshot_id is None else table.snapshot_by_id(at.parent_snapshot_id)
    if at is None:
        raise InputError(
            f"snapshot {done} of the Iceberg table {named}, which was read last, is not an ancestor of the current"
            " one: it was expired, or the table was rolled back to an earlier one",
            cure="keep snapshots for longer than the pipeline may be behind, and read the table into a new store",
        )
    return later


def snapshot_files(named: IcebergName, table: Table, snapshot: int, *, whole: bool) -> SnapshotChange:
    """What a snapshot has added; as a `whole`, all files that it has."""
    found = table.snapshot_by_id(snapshot)
    if found is None:
        raise InputError(
            f"snapshot {snapshot} of the Iceberg table {named} is gone: it was expired before it was read",
            cure="keep snapshots for longer than the pipeline may be behind, and read the table into a new store",
        )
    key = (str(named), snapshot, whole)
    if key not in _KNOWN:
        if len(_KNOWN) > 256:
            _KNOWN.clear()
        _KNOWN[key] = _looked_up(named, table, found, whole)
    return _KNOWN[key]


_KNOWN: dict[tuple[str, int, bool], SnapshotChange] = {}
"""A snapshot never changes."""


def _looked_up(named: IcebergName, table: Table, snapshot: Snapshot, whole: bool) -> SnapshotChange:
    operation = snapshot.summary.operation.value if snapshot.summary is not None else _ADDS
    if not whole and operation != _ADDS:
        return SnapshotChange(operation, (), removes=operation != _REWRITES)
    entries = sorted(_entries(named, table, snapshot, whole))
    return SnapshotChange(operation, tuple(file for _, _, file in entries), removes=False)


def _entries(
    named: IcebergName, table: Table, snapshot: Snapshot, whole: bool
) -> Iterator[tuple[int, str, IcebergFile]]:
    from pyiceberg.manifest import FileFormat, ManifestContent, ManifestEntryStatus  # noqa: PLC0415 - an extra

    for manifest in snapshot.manifests(table.io):
        if not whole and manifest.added_snapshot_id != snapshot.snapshot_id:
            continue
        for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=True):
            if manifest.content == ManifestContent.DELETES:
                raise InputError(
                    f"the Iceberg table {named} has delete files: rows that were deleted and are still in its files",
                    cure="rewrite the files without these rows (rewrite_data_files), then start again",
                )
            if not whole and entry.status != ManifestEntryStatus.ADDED:
                continue
            data = entry.data_file
            if data.file_format != FileFormat.PARQUET:
                raise InputError(
                    f"the Iceberg table {named} has a file that is {data.file_format.value}: {data.file_path}",
                    cure="read tables of Parquet files, or rewrite this one as Parquet",
                )
            file = IcebergFile(data.file_path, data.file_size_in_bytes, data.record_count)
            yield entry.sequence_number or 0, data.file_path, file


def columns_of(table: Table) -> list[IcebergColumn]:
    """The columns of the table as it is now."""
    mapping = table.name_mapping()
    aliases = {field.field_id: list(field.names) for field in mapping} if mapping is not None else {}
    return [
        IcebergColumn(field.name, field.field_id, aliases.get(field.field_id, [field.name]))
        for field in table.schema().fields
    ]


def physical_names(path: str, columns: Iterable[IcebergColumn]) -> dict[str, str]:
    """The names that columns have in a file, of those that are in it."""
    ids, names = _fields(path)
    found = {}
    for column in columns:
        by_name = (name for name in column.names if name in names)
        name = ids.get(column.field_id) if ids else next(by_name, None)
        if name is not None:
            found[column.name] = name
    return found


@lru_cache(maxsize=256)
def _fields(path: str) -> tuple[dict[int, str], frozenset[str]]:
    schema = pq.read_schema(path)
    ids = {int(field.metadata[_FIELD_ID]): field.name for field in schema if _FIELD_ID in (field.metadata or {})}
    return ids, frozenset(schema.names)


def schema_of(table: Table) -> pl.Schema:
    """The columns of the table as it is now."""
    return pl.DataFrame(table.schema().as_arrow().empty_table()).schema
