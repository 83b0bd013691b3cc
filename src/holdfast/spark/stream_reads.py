"""A p-stream as a DataFrame of Spark: what it holds, or as a stream whose offsets are positions in it.

A streaming query is a reader of the p-stream like any pipeline: what it has not read stays, and what it has read goes
when all readers have it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import polars as pl
import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from holdfast.connect.base import Slice
from holdfast.connect.spark_types import polars_schema, to_spark_batches
from holdfast.errors import DeclarationError, UnknownStreamError
from holdfast.meta import opened_meta
from holdfast.pstream.description import StreamDescription
from holdfast.pstream.link import StreamSource
from holdfast.pstream.pstream import PStream

__all__ = ["PStreamReader", "PStreamStreamReader", "opened_source"]

_PIECES = 8
_NOBODY = "spark"


@dataclass(frozen=True)
class _StreamSlice(InputPartition):
    source: StreamSource
    piece: Slice


def _known_types() -> dict[str, pl.DataType]:
    plain = (
        pl.Int8, pl.Int16, pl.Int32, pl.Int64, pl.UInt8, pl.UInt16, pl.UInt32, pl.UInt64, pl.Float32, pl.Float64,
        pl.Boolean, pl.String, pl.Binary, pl.Date, pl.Time,
    )  # fmt: skip
    zones = (None, "UTC")
    known: list[pl.DataType] = [kind() for kind in plain]
    known += [pl.Datetime(unit, zone) for unit in ("ms", "us", "ns") for zone in zones]
    known += [pl.Duration(unit) for unit in ("ms", "us", "ns")]
    return {str(kind): kind for kind in known}


@contextmanager
def _opened(store: Path, stream: str, meta: str | None, *, writes: bool = False) -> Iterator[PStream]:
    with opened_meta(store, meta, writes=writes) as opened:
        log = PStream(opened, store.resolve(), stream)
        log.state()  # an error that lists those that there are
        yield log


def opened_source(store: Path, stream: str, meta: str | None, columns: pl.Schema | None = None) -> StreamSource:
    """The source that pipelines read the stream by, with these columns, or all."""
    with _opened(store, stream, meta) as log:
        return _source(log, store, columns)


def _source(log: PStream, store: Path, columns: pl.Schema | None) -> StreamSource:
    found = StreamDescription.decode(log.state().description).schema
    known = _known_types()
    typed: dict[str, pl.DataType] = {}
    for name, kind in found.items():
        if columns is not None and name not in columns:
            continue
        if kind not in known:
            typed |= _first_rows(log, name, kind)
        else:
            typed[name] = known[kind]
    missing = [] if columns is None else [name for name in columns if name not in typed]
    if missing:
        raise UnknownStreamError(
            f"p-stream '{log.name}' has no column '{missing[0]}'", cure=f"it has {', '.join(found)}"
        )
    source = StreamSource(log.name, pl.Schema(typed), foreign=True)
    return replace(source.bound(log, store.resolve(), _NOBODY, None), log=None)


def _first_rows(log: PStream, name: str, kind: str) -> dict[str, pl.DataType]:
    """The type of a column with parts, which only its rows can tell."""
    for entry in log.read(0, 1):
        for frame in log.load([entry], [name])[:1]:
            return {name: frame.schema[name]}
    raise UnknownStreamError(
        f"p-stream '{log.name}' holds no rows now from which to infer the type of column '{name}' ({kind})",
        cure="read it once it has rows, or leave the column out with .schema(...)",
    )


def _rows(partition: InputPartition, columns: StructType) -> Iterator[pa.RecordBatch]:
    if isinstance(partition, _StreamSlice):
        for chunk in partition.source.read(partition.piece):
            yield from to_spark_batches(chunk.frame, columns)


def _partitions(log: PStream, source: StreamSource, after: int | None, upto: int) -> list[_StreamSlice]:
    """What lies behind one entry, or the first that is held, up to another, in a few slices."""
    bound = replace(source, log=log)
    return [_StreamSlice(source, piece) for piece in bound.between(after, upto, _PIECES)]


@dataclass
class PStreamReader(DataSourceReader):
    """All that the stream holds when the query is planned."""

    store: Path
    stream: str
    meta: str | None
    columns: StructType

    def partitions(self) -> Sequence[InputPartition]:
        with _opened(self.store, self.stream, self.meta) as log:
            source = _source(log, self.store, polars_schema(self.columns, "read"))
            return _partitions(log, source, None, log.state().number) or [InputPartition(None)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _rows(partition, self.columns)


class PStreamStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Offsets are positions: the number of an entry, and the rows up to its end."""

    def __init__(
        self, store: Path, stream: str, meta: str | None, columns: StructType, reader: str, rows: int | None
    ) -> None:
        if "/" in reader:
            raise DeclarationError(f"reader='{reader}' has a slash in it", cure="give the query a plain name")
        self._place = (store, stream, meta)
        self._columns = columns
        self._reader = reader
        self._rows = rows
        self._last: int | None = None

    def initialOffset(self) -> dict[str, int]:  # noqa: N802
        with _opened(*self._place, writes=True) as log:
            marker = log.subscribe(self._reader)
            return {"number": marker.number, "offset": marker.offset}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        return ReadAllAvailable() if self._rows is None else ReadMaxRows(self._rows)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        with _opened(*self._place) as log:
            self._last = log.state().number

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:  # noqa: N802
        with _opened(*self._place) as log:
            state = log.state()
            last = state.number if self._last is None else min(self._last, state.number)
            if isinstance(limit, ReadMaxRows) or last < state.number:
                most = limit.max_rows if isinstance(limit, ReadMaxRows) else 1 << 62
                entries = [entry for entry in log.read(start["number"], most) if entry.number <= last]
                if not entries:
                    return start
                return {"number": entries[-1].number, "offset": entries[-1].offset + entries[-1].rows}
            return {"number": state.number, "offset": state.offset}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        with _opened(*self._place) as log:
            source = replace(_source(log, self._place[0], polars_schema(self._columns, "read")), reader=self._reader)
            return _partitions(log, source, start["number"], end["number"])

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _rows(partition, self._columns)

    def commit(self, end: dict[str, int]) -> None:
        """Spark needs nothing before this any more."""
        with _opened(*self._place, writes=True) as log:
            log.release(self._reader, end["number"], end["offset"])
            log.trim()
