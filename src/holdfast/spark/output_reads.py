"""The output of a file sink as a DataFrame of Spark: what is published, whole or epoch by epoch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

import polars as pl
import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from holdfast.connect.sinks.file_sink import epoch_files, published_epochs
from holdfast.connect.sinks.part_content import SinkFormat, rows_of_parts
from holdfast.connect.spark_types import polars_schema, to_spark_batches
from holdfast.errors import InputError

__all__ = ["OutputReader", "OutputStreamReader", "output_schema"]


@dataclass(frozen=True)
class _PublishedFile(InputPartition):
    path: Path

    def rows(self, schema: pl.Schema | None) -> pl.DataFrame:
        return rows_of_parts([(self.path.name, self.path.read_bytes)], None, schema)


def _files(root: Path, epochs: Sequence[int]) -> list[_PublishedFile]:
    return [
        _PublishedFile(file)
        for epoch in epochs
        for file in epoch_files(root, epoch)
        if file.suffix[1:] in get_args(SinkFormat)
    ]


def _published(root: Path) -> list[int]:
    if not root.is_dir():
        raise InputError(
            f"there is no directory '{root}'",
            cure="give the path of a file sink; no run has written there yet, or it ran elsewhere",
        )
    return published_epochs(root)


def output_schema(root: Path) -> pl.Schema:
    """The columns of an output, from its first file, and those that it has got since, from its last one."""
    found = _files(root, _published(root))
    if not found:
        raise InputError(
            f"nothing is published in {root} yet",
            cure='give the columns with .schema("..."), or wait until the pipeline has published an epoch',
        )
    last = found[-1].rows(None).schema if len(found) > 1 else {}
    return pl.Schema({**last, **found[0].rows(None).schema})


@dataclass
class OutputReader(DataSourceReader):
    root: Path
    columns: StructType

    def partitions(self) -> Sequence[InputPartition]:
        return _files(self.root, _published(self.root)) or [InputPartition(None)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _rows(partition, self.columns)


def _rows(partition: InputPartition, columns: StructType) -> Iterator[pa.RecordBatch]:
    if isinstance(partition, _PublishedFile):
        wanted = polars_schema(columns, "read")
        rows = partition.rows(wanted if partition.path.suffix == ".ndjson" else None)
        absent = [pl.lit(None, dtype).alias(name) for name, dtype in wanted.items() if name not in rows.columns]
        yield from to_spark_batches(rows.with_columns(absent), columns)


class OutputStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The offset is the last epoch that was read."""

    def __init__(self, root: Path, columns: StructType) -> None:
        self._root = root
        self._columns = columns
        self._last: int | None = None

    def initialOffset(self) -> dict[str, int]:  # noqa: N802
        return {"epoch": 0}

    def _newest(self) -> int:
        return max(_published(self._root), default=0)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._last = self._newest()

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:  # noqa: N802
        newest = self._newest() if self._last is None else self._last
        return {"epoch": max(newest, int(start["epoch"]))}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        epochs = [epoch for epoch in _published(self._root) if start["epoch"] < epoch <= end["epoch"]]
        return _files(self._root, epochs)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _rows(partition, self._columns)
