"""Parquet and Arrow IPC files: counted rows, typed columns, cut anywhere.

Not promised: that a flipped bit in an Arrow file is seen. Arrow IPC has no checksums; only what would be
unsafe to read (offsets, text encoding) is verified. Parquet is verified as far as its writer put checksums
into it.
"""

from __future__ import annotations

from abc import abstractmethod
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate, pairwise
from pathlib import Path

import polars as pl
import pyarrow as pa

from holdfast.connect.base import Sifted
from holdfast.connect.formats.file_format import Extent, FileFormat, Rows, first_line
from holdfast.connect.formats.input_file import InputFile
from holdfast.connect.formats.parquet_pieces import at_hand, read_footer
from holdfast.connect.source_need import SourceNeed
from holdfast.errors import BadRowError, CorruptFileError
from holdfast.plurals import counted

__all__ = ["ArrowFormat", "ParquetFormat", "fit", "widens"]

CHUNK_ROWS = 1_000_000
_LONGER = 8
"""A range may be longer by one part of so many, to end where a row group does."""

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


def widens(has: pl.DataType, into: pl.DataType) -> bool:
    """Whether every value of a type is one of another."""
    return type(into) in _WIDENS.get(type(has), ())


def fit(found: pl.Schema, declared: pl.Schema, path: InputFile, wanted: Sequence[str] | None = None) -> list[pl.Expr]:
    """How to make the declared columns, or those of them that are wanted, from those of a file: as they are, or cast
    where no value can be lost. The file must have all of them."""
    columns: dict[str, pl.Expr] = {}
    for name, dtype in declared.items():
        if name not in found:
            raise BadRowError(
                f"the file {path} has no column '{name}'; it has {', '.join(found.names())}",
                cure=f"remove '{name}' from the schema given to files(), or write the file with it",
            )
        has = found[name]
        if has == dtype:
            columns[name] = pl.col(name)
        elif isinstance(has, pl.Null) or widens(has, dtype):
            columns[name] = pl.col(name).cast(dtype)
        else:
            raise BadRowError(
                f"column '{name}' of the file {path} is {has}, but {dtype} was declared",
                cure=f"declare '{name}' as {has} in the schema given to files() and cast it in the"
                f" pipeline, or write the file with {dtype}",
            )
    return list(columns.values()) if wanted is None else [columns[name] for name in wanted]


@contextmanager
def _corruption_named(path: InputFile, place: str) -> Iterator[None]:
    try:
        yield
    except (pl.exceptions.PolarsError, pa.ArrowException, OSError, ValueError, pl.exceptions.PanicException) as error:
        raise CorruptFileError(
            f"cannot read {place} of {path}: {first_line(error)}",
            cure="the file is truncated, damaged or of another format: write it again, or remove it from the"
            " input; writers must rename a file into place when it is complete",
        ) from error


class _Columnar(FileFormat):
    def check_schema(self, schema: pl.Schema) -> None:
        return None

    def is_whole(self, path: InputFile) -> bool | None:
        """The footer is written last."""
        try:
            self.extent(path)
        except CorruptFileError:
            return False
        return True

    def cut(self, path: InputFile, start: int, at: int, stop: int) -> int:
        """At the next border of what is stored together, if a range that ends there is hardly longer: nobody then has
        to decode the same pages as a neighbour."""
        borders = _borders(self, path, path.stat().st_mtime_ns)
        border = borders[min(bisect_left(borders, at), len(borders) - 1)]
        return min(stop, border if at <= border <= at + (at - start) // _LONGER else at)

    @abstractmethod
    def groups(self, path: InputFile) -> list[int]:
        """How many rows each part of a file has that is stored together."""


@dataclass(frozen=True, slots=True)
class ParquetFormat(_Columnar):
    """Rows are counted in the footer; only the row groups that a range touches are read."""

    def infer(self, path: InputFile) -> pl.Schema:
        with _corruption_named(path, "the footer"), at_hand(path) as file:
            return pl.Schema(pl.read_parquet_schema(file))

    def extent(self, path: InputFile) -> Extent:
        with _corruption_named(path, "the footer"):
            return Extent(0, read_footer(path).num_rows, 1.0)

    def row_bytes(self, path: InputFile, columns: Sequence[str]) -> float | None:
        with _corruption_named(path, "the footer"):
            footer = read_footer(path)
            if not footer.num_rows:
                return None
            first = next(group for n in range(footer.num_row_groups) if (group := footer.row_group(n)).num_rows)
            chunks = [first.column(number) for number in range(first.num_columns)]
        # Of a nested column the path goes on behind its name.
        read = [chunk for chunk in chunks if chunk.path_in_schema.partition(".")[0] in columns]
        return float(sum(chunk.total_compressed_size for chunk in read) / first.num_rows)

    def groups(self, path: InputFile) -> list[int]:
        with _corruption_named(path, "the footer"):
            footer = read_footer(path)
            return [footer.row_group(number).num_rows for number in range(footer.num_row_groups)]

    def read(self, path: InputFile, start: int, stop: int, schema: pl.Schema, need: SourceNeed) -> Iterator[Rows]:
        wanted = fit(self.infer(path), schema, path, need.columns)
        for low, high in pairwise(self._chunks(path, start, stop)):
            with at_hand(path, low, high, need.columns) as file:
                # No globbing and no columns from directory names: the path is one file and means itself.
                scan = pl.scan_parquet(file, glob=False, hive_partitioning=False).slice(low, high - low).select(wanted)
                rows = None if need.filter is None else _sifted(scan, need, high - low)
                if rows is None:
                    with _corruption_named(path, f"rows {low} to {high}"):
                        rows = Rows(_whole(scan.collect(), high - low, path))
            yield rows

    def _chunks(self, path: InputFile, start: int, stop: int) -> Iterator[int]:
        """Where the chunks of a range begin and end: at borders of row groups, where these are not too far apart."""
        at = start
        while at < stop:
            yield at
            at = min(stop, self.cut(path, at, at + CHUNK_ROWS, stop))
        yield stop


@dataclass(frozen=True, slots=True)
class ArrowFormat(_Columnar):
    """Arrow IPC files, memory-mapped: an uncompressed file is read without copying it.

    A file that is cut short while it is mapped kills the reading process (SIGBUS); the retry then finds the
    file changed and says so.
    """

    def infer(self, path: InputFile) -> pl.Schema:
        with _corruption_named(path, "the footer"):
            return _as_frame(_open(path).schema.empty_table()).schema

    def extent(self, path: InputFile) -> Extent:
        with _corruption_named(path, "the footer"):
            return Extent(0, _open(path).count_rows(), 1.0)

    def row_bytes(self, path: InputFile, columns: Sequence[str]) -> float | None:
        rows = self.extent(path).stop
        return path.stat().st_size / rows if rows else None

    def groups(self, path: InputFile) -> list[int]:
        # A compressed batch must be unpacked to be counted.
        with _corruption_named(path, "the record batches"):
            reader = _open(path)
            return [reader.get_batch(number).num_rows for number in range(reader.num_record_batches)]

    def read(self, path: InputFile, start: int, stop: int, schema: pl.Schema, need: SourceNeed) -> Iterator[Rows]:
        wanted = fit(self.infer(path), schema, path, need.columns)
        done = start
        with _corruption_named(path, "the footer"):
            reader = _open(path)
        for number, low in enumerate(_borders(self, path, path.stat().st_mtime_ns)[:-1]):
            if low >= stop:
                break
            with _corruption_named(path, f"record batch {number} (rows from {low})"):
                batch = reader.get_batch(number)
                if low + batch.num_rows <= start:
                    continue
                first, last = max(start, low), min(stop, low + batch.num_rows)
                batch.validate(full=True)  # lengths, offsets and text: wrong ones would make readers leave their memory
                frame = _as_frame(pa.Table.from_batches([batch.slice(first - low, last - first)]))
                frame = frame.select(wanted)
            for part in frame.iter_slices(CHUNK_ROWS):
                yield Rows(part)
            done = last
        if done < stop:
            raise _short(path, stop - start, done - start)


def _open(path: InputFile) -> pa.ipc.RecordBatchFileReader:
    return pa.ipc.open_file(pa.memory_map(str(path)) if isinstance(path, Path) else path.open("rb"))


@lru_cache(maxsize=256)
def _borders(format: _Columnar, path: InputFile, mtime_ns: int) -> tuple[int, ...]:
    """The first row of each part of a file that is stored together, and the end. Kept, since every cut asks for it."""
    return (0, *accumulate(format.groups(path)))


def _as_frame(table: pa.Table) -> pl.DataFrame:
    frame = pl.from_arrow(table)
    assert isinstance(frame, pl.DataFrame)
    return frame


def _sifted(scan: pl.LazyFrame, need: SourceNeed, rows: int) -> Rows | None:
    """The rows that pass the filter; None where all must be looked at. Polars leaves row groups out by their statistics
    and decodes the other columns of those rows alone that pass."""
    assert need.filter is not None
    try:
        if need.times is None:
            counted_rows = scan.select(pl.len()).collect().item()
            return Rows(scan.filter(need.filter).collect(), sifted=Sifted(rows)) if counted_rows == rows else None
        times = scan.select(need.times.column).collect().to_series()
        if len(times) != rows or times.null_count() or not times.is_sorted():
            return None
        least, greatest = times.to_physical()[0], times.to_physical()[-1]
        if not need.times.holds(times.dtype, least, greatest):
            return None
        return Rows(scan.filter(need.filter).collect(), sifted=Sifted(rows, least, greatest))
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError, ValueError):
        return None  # the plain way says what is wrong with the file, or the pipeline's own filter what is with it


def _whole(frame: pl.DataFrame, rows: int, path: InputFile) -> pl.DataFrame:
    if frame.height != rows:
        raise _short(path, rows, frame.height)
    return frame


def _short(path: InputFile, planned: int, found: int) -> CorruptFileError:
    return CorruptFileError(
        f"the file {path} gave {found} of {counted(planned, 'row')} that its footer promised",
        cure="write the file again",
    )
