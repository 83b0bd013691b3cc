"""Files and Delta tables as lookup tables: they are read by the sources that read them as input, from first to last."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence

import polars as pl

from holdfast.connect.base import Source
from holdfast.connect.extra_library import require_library
from holdfast.connect.formats.columnar import ArrowFormat, ParquetFormat, fit
from holdfast.connect.formats.format_names import FormatName
from holdfast.connect.formats.input_file import InputFile
from holdfast.connect.lookups.lookup_table import Lookup, look_seconds
from holdfast.connect.object_store.storage_options import AnyOptions
from holdfast.connect.schema import AnySchema
from holdfast.connect.sources.delta_source import DeltaSource
from holdfast.connect.sources.delta_source import delta as delta_source
from holdfast.connect.sources.files import FileSource
from holdfast.connect.sources.files import files as file_source
from holdfast.connect.sources.object_set import ObjectSet
from holdfast.errors import BadRowError, CorruptFileError, InputError, LookupTableError
from holdfast.spans import Duration, seconds_of

__all__ = ["DeltaLookup", "FileLookup", "delta", "files"]

AnyPath = str | os.PathLike[str]
_ROWS = 1 << 40
_LOOKS = 10
"""So often files are waited for that are being written to."""


class FileLookup(Lookup):
    """See `files`."""

    def __init__(self, source: FileSource, every: float, settle: float) -> None:
        self.source = source
        self.schema = source.schema
        self.every = every
        self._settle = settle

    def mark(self) -> str:
        """The names, sizes and times of the files. Those that were written to just now are waited for."""
        for _ in range(_LOOKS):
            present = self.source.files.present()
            if not present:
                raise CorruptFileError(
                    f"there is no file at {self.source.files.describe()}",
                    cure="correct the path given to lookup.files(), or put the table there",
                )
            wait = max(file.mtime_ns for file in present) / 1e9 + self._settle - time.time()
            if not 0 < wait <= self._settle:  # a time in the future is none to wait for
                return repr([(file.name, file.size, file.mtime_ns) for file in present])
            time.sleep(wait)
        raise InputError(
            f"the files at {self.source.files.describe()} keep being written to",
            cure="write a file under a name that starts with '.' or '_', and rename it when it is complete; then"
            " settle=0 will do",
        )

    def read(self) -> pl.DataFrame:
        if isinstance(self.source.format, ParquetFormat | ArrowFormat):
            for file in self.source.files.present():
                self._check_columns(self.source.files.path(file.name))
        return _all_rows(self.source)

    def _check_columns(self, path: InputFile) -> None:
        try:
            fit(self.source.format.infer(path), self.schema, path)
        except BadRowError as error:
            raise LookupTableError(error.problem, cure=error.cure) from error

    def describe(self) -> str:
        return self.source.describe()


class DeltaLookup(Lookup):
    """See `delta`."""

    def __init__(self, source: DeltaSource, every: float) -> None:
        self.source = source
        self.schema = source.schema
        self.every = every

    def mark(self) -> str:
        return str(self.source.log.last_version())

    def read(self) -> pl.DataFrame:
        found = self.source.log.schema()
        for name, dtype in self.schema.items():
            if name not in found or found[name] != dtype:
                now = f"is {found[name]} now" if name in found else "is no longer there"
                raise LookupTableError(
                    f"column '{name}' of the {self.source.table}, which was {dtype}, {now}",
                    cure="declare the table with the columns that it has: lookup.delta(..., schema=...)",
                )
        return _all_rows(self.source)

    def describe(self) -> str:
        return f"the {self.source.table}"


def _all_rows(source: Source) -> pl.DataFrame:
    """What a source that ends has, from first to last."""
    frames = [pl.DataFrame(schema=source.schema)]
    position = source.start()
    while True:
        take = source.take(position, _ROWS, 1)
        frames += [chunk.frame for piece in take.slices for chunk in source.read(piece)]
        if take.done:
            return pl.concat(frames)
        position = take.position


def files(
    path: AnyPath | Sequence[AnyPath],
    format: FormatName | None = None,
    schema: AnySchema | None = None,
    *,
    every: Duration | None = None,
    settle: Duration = 2.0,
    has_header: bool = True,
    separator: str = ",",
    null_values: Sequence[str] = (),
    storage_options: AnyOptions | None = None,
) -> FileLookup:
    """The rows of a directory, a glob pattern, a file or a list of files, of this machine or in an object store, as a
    lookup table.

    The files are looked at once a second, or as often as `every` says, and read again when one of them has come, gone
    or changed. All of them together are the table. What was written to within `settle` is waited for; objects are
    complete when they are there. The other settings are those of `hf.source.files`.
    """
    source = file_source(
        path, format, schema, has_header=has_header, separator=separator, null_values=null_values,
        storage_options=storage_options,
    )  # fmt: skip
    seconds = 0.0 if isinstance(source.files, ObjectSet) else seconds_of("lookup.files(): settle", settle)
    return FileLookup(source, look_seconds("lookup.files", every), seconds)


def delta(path: AnyPath, *, schema: AnySchema | None = None, every: Duration | None = None) -> DeltaLookup:
    """The rows of a Delta table in a directory, as a lookup table: all rows of its last version.

    The version is looked at once a second, or as often as `every` says, and the table is read again when there is
    another one. Without a `schema` all columns are read.
    """
    require_library("deltalake", "delta", "hf.lookup.delta()")
    return DeltaLookup(delta_source(path, schema=schema, grow=False), look_seconds("lookup.delta", every))
