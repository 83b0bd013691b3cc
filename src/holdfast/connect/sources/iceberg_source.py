"""An Iceberg table as a source: the rows that are in it, then those that each snapshot adds (`lake_source.py`).

A slice also says which column of a file is which of the table, so it gives the same rows after columns were renamed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import polars as pl

from holdfast.connect.base import Chunk
from holdfast.connect.extra_library import require_library
from holdfast.connect.iceberg_catalog import IcebergName, iceberg_name
from holdfast.connect.schema import AnySchema, as_schema
from holdfast.connect.source_need import SourceNeed
from holdfast.connect.sources.iceberg_snapshots import (
    IcebergColumn,
    IcebergFile,
    SnapshotChange,
    columns_of,
    next_snapshot,
    physical_names,
    schema_of,
    snapshot_files,
)
from holdfast.connect.sources.lake_source import PARQUET, LakeSource, TableChanges, check_words
from holdfast.errors import InputError
from holdfast.store.location import local_path
from holdfast.threads import SYSTEM

if TYPE_CHECKING:
    from pyiceberg.table import Table

__all__ = ["IcebergOrder", "IcebergSource", "iceberg"]

IcebergOrder = Literal["snapshot", "file"]

_LOOK_SECONDS = 0.25
"""A catalog is not asked more often whether there is more."""


class IcebergSource(LakeSource):
    """See `iceberg`."""

    function, step = "iceberg", "snapshot"

    def __init__(
        self, named: IcebergName, schema: pl.Schema, *, after: int | None, grow: bool, changes: TableChanges,
        in_order: bool,
    ) -> None:  # fmt: skip
        super().__init__(schema, after=after, grow=grow, changes=changes, in_order=in_order)
        self.origin = named
        self._table: Table | None = None
        self._looked = 0.0

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_table": None}

    @property
    def table(self) -> str:
        return f"Iceberg table {self.origin}"

    def _fresh(self) -> Table:
        """The table as it is now, or was a moment ago."""
        now = SYSTEM.monotonic()
        if self._table is None or now - self._looked >= _LOOK_SECONDS:
            self._table, self._looked = load_table(self.origin), now
        return self._table

    def _newest(self) -> int | None:
        current = self._fresh().current_snapshot()
        return None if current is None else current.snapshot_id

    def _following(self, done: int) -> int | None:
        return next_snapshot(self.origin, self._fresh(), done)

    def _is_reached(self, done: int | None, last: int | None) -> bool:
        return done == last

    def _step(self, step: int) -> SnapshotChange:
        return snapshot_files(self.origin, self._fresh(), step, whole=False)

    def _whole(self, step: int) -> Sequence[IcebergFile]:
        return snapshot_files(self.origin, self._fresh(), step, whole=True).files

    def _columns_of(self, file: IcebergFile) -> dict[str, Any]:
        return {"columns": [asdict(column) for column in columns_of(self._fresh()) if column.name in self._declared]}

    def _path(self, name: str, step: int) -> Path:
        path = Path(name.removeprefix("file://")) if name.startswith("file://") else local_path(name, "a data file")
        if not path.exists():
            raise InputError(
                f"a file of snapshot {step} of the {self.table} is gone: {path}. Its snapshot was expired before it was"
                " read",
                cure="keep snapshots for longer than the pipeline may be behind, and read the table into a new store",
            ).of(str(path))
        return path

    def _chunks(self, path: Path, part: dict[str, Any]) -> Iterator[Chunk]:
        names = physical_names(str(path), [IcebergColumn(**column) for column in part["columns"]])
        there = [name for name in self.schema if name in names]
        declared = pl.Schema({names[name]: self._declared[name] for name in self._declared if name in names})
        start, stop = int(part["start"]), int(part["stop"])
        if not there:  # of a file that has none of them, its rows are counted all the same
            nulls = {name: [None] * (stop - start) for name in self.schema}
            yield Chunk(pl.DataFrame(nulls, schema=self.schema), place=str(path))
            return
        plain = len(there) == len(self.schema) and all(name == names[name] for name in names)
        # A filter may look at columns that the file has not, or has under another name.
        need = self.need if plain else SourceNeed([names[name] for name in there])
        columns = [
            pl.col(names[name]).alias(name) if name in names else pl.lit(None, dtype=dtype).alias(name)
            for name, dtype in self.schema.items()
        ]
        for rows in PARQUET.read(path, start, stop, declared, need):
            yield Chunk(rows.frame if plain else rows.frame.select(columns), place=str(path), sifted=rows.sifted)

    def lists(self, directory: Path) -> bool:
        return directory.resolve().is_relative_to(self.origin.root(self._fresh()).resolve())


def load_table(named: IcebergName) -> Table:
    """The table as it is now."""
    from pyiceberg.exceptions import NoSuchTableError  # noqa: PLC0415 - an extra
    from sqlalchemy.exc import SQLAlchemyError  # noqa: PLC0415 - as late as the catalog

    try:
        return named.loaded()
    except (NoSuchTableError, SQLAlchemyError, OSError, ValueError) as error:
        raise InputError(
            f"cannot read the Iceberg table {named}: {error}",
            cure="check that the catalog is right and that the table is in it",
        ) from error


def iceberg(
    table: str,
    catalog: str | Mapping[str, str],
    *,
    schema: AnySchema | None = None,
    after: int | None = None,
    grow: bool = True,
    changes: TableChanges = "fail",
    order: IcebergOrder = "snapshot",
) -> IcebergSource:
    """The rows of an Iceberg table, named as in "shop.orders": those that are there, then those that snapshots add.

    `catalog` is the name of one that `pyiceberg` is configured with, or its properties. `after` is the id of a
    snapshot: only what later ones add is read. With `grow=False` the table ends at the snapshot that it has when the
    pipeline starts. `changes` says what happens at a snapshot that deletes or changes rows: "fail", or "skip" it whole.
    Without a `schema` all columns of the table are read.

    With `order="snapshot"` the files of a snapshot have no order, and none of their rows makes another one late: an
    epoch has rows of one snapshot at most, and the table as it is at the start counts as one. With `order="file"` files
    follow one another as they were added, and a row is late by all the rows before it.
    """
    require_library("pyiceberg", "iceberg", "hf.source.iceberg()")
    check_words("iceberg", changes=(changes, get_args(TableChanges)), order=(order, get_args(IcebergOrder)))
    named = iceberg_name("iceberg()", table, catalog)
    wanted = schema_of(load_table(named)) if schema is None else as_schema(schema, "iceberg()")
    return IcebergSource(named, wanted, after=after, grow=grow, changes=changes, in_order=order == "file")
