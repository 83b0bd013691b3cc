"""A Delta table as a source: the rows that are in it, then those that each version adds (`lake_source.py`).

A slice also has the values of partition columns, which are not in the files.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, get_args

import polars as pl

from holdfast.connect.base import Chunk, Position
from holdfast.connect.extra_library import require_library
from holdfast.connect.lake_columns import partition_literal
from holdfast.connect.schema import AnySchema, as_schema
from holdfast.connect.source_need import SourceNeed
from holdfast.connect.sources.delta_log import DataFile, DeltaLog, VersionChange
from holdfast.connect.sources.lake_source import PARQUET, LakeSource, TableChanges, check_words
from holdfast.errors import DeclarationError, HoldfastError, InputError
from holdfast.store.location import local_path

__all__ = ["DeltaOrder", "DeltaSource", "delta"]

DeltaOrder = Literal["version", "file"]
AnyPath = str | os.PathLike[str]

_MOST_VERSIONS = 1_000
"""So many are looked at for the lag."""


class DeltaSource(LakeSource):
    """See `delta`."""

    function, step = "delta", "version"

    def __init__(
        self, root: Path, schema: pl.Schema, *, after: int | None, grow: bool, changes: TableChanges, in_order: bool
    ) -> None:
        super().__init__(schema, after=after, grow=grow, changes=changes, in_order=in_order)
        self.log = DeltaLog(root)

    @property
    def table(self) -> str:
        return f"Delta table {self.log.root}"

    def _newest(self) -> int | None:
        if self.log.exists():
            return self.log.last_version()
        if self.bounded:
            raise InputError(
                f"there is no Delta table in {self.log.root}", cure="give the path of a table, or delta(..., grow=True)"
            )
        return None

    def _following(self, done: int) -> int | None:
        return done + 1 if self.log.has(done + 1) else None

    def _is_reached(self, done: int | None, last: int | None) -> bool:
        return done is not None and last is not None and done >= last

    def _step(self, step: int) -> VersionChange:
        return self.log.change(step)

    def _whole(self, step: int) -> Sequence[DataFile]:
        return self.log.files(step)

    def _columns_of(self, file: DataFile) -> dict[str, Any]:
        return {"values": dict(file.values)}

    def _path(self, name: str, step: int) -> Path:
        path = self.log.root / name
        if not path.exists():
            raise InputError(
                f"a file of version {step} of the {self.table} is gone: {name}. Rows of that version were compacted or"
                " deleted, and then vacuumed before they were read",
                cure="vacuum with a retention longer than the pipeline may lag, and read the table into a new store",
            ).of(str(path))
        return path

    def _chunks(self, path: Path, part: dict[str, Any]) -> Iterator[Chunk]:
        found, values = PARQUET.infer(path), part["values"]
        columns = [name for name in self.schema if name in found and name not in values]
        declared = pl.Schema(
            {name: dtype for name, dtype in self._declared.items() if name in found and name not in values}
        )
        more = [
            partition_literal(values.get(name), dtype).alias(name)
            for name, dtype in self.schema.items()
            if name not in columns
        ]
        # A filter may look at columns that are not in the file.
        need = SourceNeed(columns) if more else self.need
        start, stop = int(part["start"]), int(part["stop"])
        if not columns:  # of a file that has none of them, its rows are counted all the same
            yield Chunk(pl.select(pl.repeat(None, stop - start)).select(*more), place=str(path))
            return
        for rows in PARQUET.read(path, start, stop, declared, need):
            frame = rows.frame.with_columns(more).select(self.schema.names()) if more else rows.frame
            yield Chunk(frame, place=str(path), sifted=rows.sifted)

    def lag(self, position: Position) -> int | None:
        at, rows = dict(position), 0
        try:
            if self.bounded and at["last"] is None:
                at["last"] = self._newest()
            for _ in range(_MOST_VERSIONS):
                if not self._begin(at, ()):
                    break
                files = self._files(at)
                rows += sum(self._rows_of(file, at["reading"]) for file in files[at["file"] :]) - at["row"]
                at.update(done=at["reading"], reading=None, file=0, row=0)
        except (HoldfastError, OSError):
            return None  # whether that is an error, `take` says
        return rows

    def row_bytes(self) -> float | None:
        try:
            files = self.log.files(self.log.last_version()) if self.log.exists() else ()
            known = [file for file in files if file.rows]
            return known[0].size / known[0].rows if known and known[0].rows else None
        except (HoldfastError, OSError):
            return None

    def reads(self) -> Sequence[Path]:
        return [self.log.root]

    def lists(self, directory: Path) -> bool:
        return directory.resolve().is_relative_to(self.log.root.resolve())

    def notices(self, position: Position) -> tuple[str, ...]:
        return () if self.log.exists() else (f"there is no Delta table in {self.log.root} yet",)


def delta(
    path: AnyPath,
    *,
    schema: AnySchema | None = None,
    after: int | None = None,
    grow: bool = True,
    changes: TableChanges = "fail",
    order: DeltaOrder = "version",
) -> DeltaSource:
    """The rows of a Delta table in a directory: those that are there, then those that each version adds.

    `after` reads only what versions after this one add. With `grow=False` the table ends at the version that it has
    when the pipeline starts. `changes` says what happens at a version that deletes or changes rows: "fail", or "skip"
    it whole. Without a `schema` all columns of the table are read; a column that a file has not is null in its rows.

    With `order="version"` the files of a version have no order, and none of their rows makes another one late: an epoch
    has rows of one version at most, and the table as it is at the start counts as one. With `order="file"` files follow
    one another as they were written, and a row is late by all the rows before it.
    """
    require_library("deltalake", "delta", "hf.source.delta()")
    check_words("delta", changes=(changes, get_args(TableChanges)), order=(order, get_args(DeltaOrder)))
    if after is not None and after < 0:
        raise DeclarationError(f"delta(): after={after} is not a version", cure="give a version number, from 0 on")
    root = local_path(path, "delta()").absolute()
    log = DeltaLog(root)
    if schema is None and not log.exists():
        raise DeclarationError(
            f"delta(): there is no Delta table in {root} to take the schema from",
            cure="give delta() a schema, or create the table before declaring the pipeline",
        )
    wanted = log.schema() if schema is None else as_schema(schema, "delta()")
    return DeltaSource(root, wanted, after=after, grow=grow, changes=changes, in_order=order == "file")
