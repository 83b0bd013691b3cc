"""Parquet and Arrow IPC files: counted rows, typed columns, cut anywhere.

Not promised: that a flipped bit in an Arrow file is seen. Arrow IPC has no checksums; only what would be
unsafe to read (offsets, text encoding) is verified. Parquet is verified as far as its writer put checksums
into it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from holdfast.connect.formats.base import Extent, FileFormat, Rows, first_line
from holdfast.errors import BadRowError, CorruptFileError
from holdfast.plurals import counted

__all__ = ["ArrowFormat", "ParquetFormat", "fit"]

CHUNK_ROWS = 1_000_000

_WIDENS: dict[type[pl.DataType], tuple[type[pl.DataType], ...]] = {
    pl.Int8: (pl.Int16, pl.Int32, pl.Int64, pl.Float32, pl.Float64),
    pl.Int16: (pl.Int32, pl.Int64, pl.Float32, pl.Float64),
    pl.Int32: (pl.Int64, pl.Float64),
    pl.UInt8: (pl.UInt16, pl.UInt32, pl.UInt64, pl.Int16, pl.Int32, pl.Int64, pl.Float32, pl.Float64),
    pl.UInt16: (pl.UInt32, pl.UInt64, pl.Int32, pl.Int64, pl.Float32, pl.Float64),
    pl.UInt32: (pl.UInt64, pl.Int64, pl.Float64),
    pl.Float32: (pl.Float64,),
    pl.Categorical: (pl.String,),
    pl.Enum: (pl.String,),
    pl.String: (pl.Categorical,),
}


def fit(found: pl.Schema, wanted: pl.Schema, path: Path) -> list[pl.Expr]:
    """How to make the declared columns from those of a file: as they are, or cast where no value can be
    lost."""
    columns = []
    for name, dtype in wanted.items():
        if name not in found:
            raise BadRowError(
                f"the file {path} has no column '{name}'; it has {', '.join(found.names())}",
                cure=f"leave '{name}' out of the schema given to files(), or write the file with it",
            )
        has = found[name]
        if has == dtype:
            columns.append(pl.col(name))
        elif isinstance(has, pl.Null) or type(dtype) in _WIDENS.get(type(has), ()):
            columns.append(pl.col(name).cast(dtype))
        else:
            raise BadRowError(
                f"column '{name}' of the file {path} is {has}, but {dtype} was declared",
                cure=f"declare '{name}' as {has} in the schema given to files() and cast it in the"
                f" pipeline, or write the file with {dtype}",
            )
    return columns


@contextmanager
def _corruption_named(path: Path, place: str) -> Iterator[None]:
    try:
        yield
    except (pl.exceptions.PolarsError, pa.ArrowException, OSError, ValueError, pl.exceptions.PanicException) as error:
        raise CorruptFileError(
            f"cannot read {place} of {path}: {first_line(error)}",
            cure="the file is truncated, damaged or of another format: write it again, or take it out of the"
            " input; writers must rename a file into place when it is complete",
        ) from error


class _Columnar(FileFormat):
    def check_schema(self, schema: pl.Schema) -> None:
        return None

    def is_whole(self, path: Path) -> bool | None:
        """The footer is written last."""
        try:
            self.extent(path)
        except CorruptFileError:
            return False
        return True

    def cut(self, path: Path, at: int, stop: int) -> int:
        return min(at, stop)


@dataclass(frozen=True, slots=True)
class ParquetFormat(_Columnar):
    """Rows are counted in the footer; only the row groups that a range touches are read."""

    def infer(self, path: Path) -> pl.Schema:
        with _corruption_named(path, "the footer"):
            return pl.Schema(pl.read_parquet_schema(path))

    def extent(self, path: Path) -> Extent:
        with _corruption_named(path, "the footer"):
            return Extent(0, pq.read_metadata(path).num_rows, 1.0)

    def read(self, path: Path, start: int, stop: int, schema: pl.Schema) -> Iterator[Rows]:
        columns = fit(self.infer(path), schema, path)
        for low in range(start, stop, CHUNK_ROWS):
            high = min(low + CHUNK_ROWS, stop)
            with _corruption_named(path, f"rows {low} to {high}"):
                # No globbing and no columns from directory names: the path is one file and means itself.
                scan = pl.scan_parquet(path, glob=False, hive_partitioning=False)
                frame = scan.slice(low, high - low).select(columns).collect()
            yield Rows(_whole(frame, high - low, path))


@dataclass(frozen=True, slots=True)
class ArrowFormat(_Columnar):
    """Arrow IPC files, memory-mapped: an uncompressed file is read without copying it.

    A file that is cut short while it is mapped kills the reading process (SIGBUS); the retry then finds the
    file changed and says so.
    """

    def infer(self, path: Path) -> pl.Schema:
        with _corruption_named(path, "the footer"):
            return _as_frame(_open(path).schema.empty_table()).schema

    def extent(self, path: Path) -> Extent:
        with _corruption_named(path, "the footer"):
            return Extent(0, _open(path).count_rows(), 1.0)

    def read(self, path: Path, start: int, stop: int, schema: pl.Schema) -> Iterator[Rows]:
        columns = fit(self.infer(path), schema, path)
        done = start
        with _corruption_named(path, "the footer"):
            reader = _open(path)
        for number, low in enumerate(_batch_starts(path, path.stat().st_mtime_ns)):
            if low >= stop:
                break
            with _corruption_named(path, f"record batch {number} (rows from {low})"):
                batch = reader.get_batch(number)
                if low + batch.num_rows <= start:
                    continue
                first, last = max(start, low), min(stop, low + batch.num_rows)
                batch.validate(full=True)  # lengths, offsets and text: wrong ones would make readers leave their memory
                frame = _as_frame(pa.Table.from_batches([batch.slice(first - low, last - first)]))
                frame = frame.select(columns)
            for part in frame.iter_slices(CHUNK_ROWS):
                yield Rows(part)
            done = last
        if done < stop:
            raise _short(path, stop - start, done - start)


def _open(path: Path) -> pa.ipc.RecordBatchFileReader:
    return pa.ipc.open_file(pa.memory_map(str(path)))


@lru_cache(maxsize=256)
def _batch_starts(path: Path, mtime_ns: int) -> tuple[int, ...]:
    """The first row of each record batch. Cached because a compressed batch must be unpacked to be
    counted."""
    with _corruption_named(path, "the record batches"):
        reader = _open(path)
        starts, at = [], 0
        for number in range(reader.num_record_batches):
            starts.append(at)
            at += reader.get_batch(number).num_rows
        return tuple(starts)


def _as_frame(table: pa.Table) -> pl.DataFrame:
    frame = pl.from_arrow(table)
    assert isinstance(frame, pl.DataFrame)
    return frame


def _whole(frame: pl.DataFrame, rows: int, path: Path) -> pl.DataFrame:
    if frame.height != rows:
        raise _short(path, rows, frame.height)
    return frame


def _short(path: Path, planned: int, found: int) -> CorruptFileError:
    return CorruptFileError(
        f"the file {path} gave {found} of {counted(planned, 'row')} that its footer promised",
        cure="write the file again",
    )
