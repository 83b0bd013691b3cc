"""The log of a Delta table as a source needs it: which files a version has added, and which there are in all.

Commits are read from the log as they stand, because a version that was read is never looked at again: polling a table
costs no more when it has grown. All files of a version are what `deltalake` says, which knows checkpoints.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import polars as pl
import pyarrow as pa

from holdfast.connect.lake_columns import partition_text
from holdfast.errors import InputError

__all__ = ["DataFile", "DeltaLog", "VersionChange"]

_COLUMN_MAPPING = "delta.columnMapping.mode"


@dataclass(frozen=True, slots=True)
class DataFile:
    """A file of the table. `rows` is None where its writer has not said how many there are."""

    path: str
    size: int
    rows: int | None
    values: tuple[tuple[str, str | None], ...]


@dataclass(frozen=True, slots=True)
class VersionChange:
    """What a version did to the rows of the table."""

    operation: str
    files: tuple[DataFile, ...]
    removes: bool
    """Whether it took rows away, or put others in their place."""


@dataclass(frozen=True, slots=True)
class DeltaLog:
    """Of the table in a directory."""

    root: Path

    @property
    def place(self) -> Path:
        return self.root / "_delta_log"

    def exists(self) -> bool:
        return self.place.is_dir() and any(self.place.glob("*.json"))

    def schema(self) -> pl.Schema:
        """The columns of the table as it is now."""
        return pl.DataFrame(pa.schema(self._table(None).schema().to_arrow()).empty_table()).schema

    def last_version(self) -> int:
        return int(self._table(None).version())

    def has(self, version: int) -> bool:
        """Whether a version is there. One that is missing while there are later ones is an error."""
        if self._commit(version).exists():
            return True
        later = [path.stem for path in self.place.glob("*.json") if path.stem.isdecimal() and int(path.stem) > version]
        if not later or self._commit(version).exists():
            return False
        raise InputError(
            f"the Delta table {self.root} has version {int(min(later))}, but no longer version {version}, which is to"
            " be read next: it was removed from the log",
            cure="read the table into a new store, or keep its log for longer (delta.logRetentionDuration)",
        )

    def change(self, version: int) -> VersionChange:
        """What a version did."""
        return _change(self._commit(version))

    def files(self, version: int) -> tuple[DataFile, ...]:
        """All files of the table at a version, those that were written first at first."""
        return _files(self, version)

    def _commit(self, version: int) -> Path:
        return self.place / f"{version:020d}.json"

    def _table(self, version: int | None) -> Any:
        from deltalake import DeltaTable  # noqa: PLC0415 - an extra
        from deltalake.exceptions import DeltaError  # noqa: PLC0415 - an extra

        try:
            return DeltaTable(str(self.root), version=version)
        except DeltaError as error:
            which = "" if version is None else f" at version {version}"
            raise InputError(
                f"cannot read the Delta table {self.root}{which}: {error}",
                cure="check that it is a Delta table and that its log is whole; where that of a version was cleaned up,"
                " read the table into a new store, as it is now",
            ) from error


@lru_cache(maxsize=1024)
def _change(commit: Path) -> VersionChange:
    files, removes, operation = [], False, "unknown"
    for line in commit.read_text(encoding="utf-8").splitlines():
        action = json.loads(line)
        if (add := action.get("add")) is not None and add.get("dataChange", True):
            rows = json.loads(add["stats"]).get("numRecords") if add.get("stats") else None
            values = tuple((add.get("partitionValues") or {}).items())
            files.append(DataFile(unquote(add["path"]), int(add["size"]), rows, values))
        elif (remove := action.get("remove")) is not None:
            removes = removes or bool(remove.get("dataChange", True))
        elif (info := action.get("commitInfo")) is not None:
            operation = str(info.get("operation", operation))
        elif (metadata := action.get("metaData")) is not None:
            _check_mapping(commit.parents[1], metadata.get("configuration") or {})
    return VersionChange(operation, tuple(files), removes)


@lru_cache(maxsize=16)
def _files(log: DeltaLog, version: int) -> tuple[DataFile, ...]:
    table = log._table(version)
    _check_mapping(log.root, table.metadata().configuration)
    features = table.protocol().reader_features or ()
    if "deletionVectors" in features and pa.table(table.deletion_vectors()).num_rows:
        raise InputError(
            f"the Delta table {log.root} has deletion vectors: rows that were deleted and are still in its files",
            cure="rewrite the files without these rows (REORG TABLE ... APPLY (PURGE)), then start again",
        )
    actions = pa.table(table.get_add_actions(flatten=True)).to_pylist()
    actions.sort(key=lambda action: (action["modification_time"], action["path"]))
    columns = table.metadata().partition_columns
    return tuple(
        DataFile(
            unquote(action["path"]),
            action["size_bytes"],
            action.get("num_records"),
            tuple((name, partition_text(action[f"partition.{name}"])) for name in columns),
        )
        for action in actions
    )


def _check_mapping(root: Path, configuration: dict[str, Any]) -> None:
    mode = configuration.get(_COLUMN_MAPPING, "none")
    if mode != "none":
        raise InputError(
            f"the Delta table {root} has columns under other names in its files (column mapping '{mode}')",
            cure="read a copy of the table without column mapping",
        )
