"""The output of a file sink as a DataFrame of Spark: what is published, whole or epoch by epoch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, get_args

import polars as pl
import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from holdfast.connect.sinks.file_sink import epoch_files, published_epochs
from holdfast.connect.sinks.part_content import SinkFormat, rows_of_parts
from holdfast.connect.spark_types import polars_schema, to_spark_batches
from holdfast.errors import InputError

__all__ = ["LocalOutput", "OutputReader", "OutputStreamReader", "PublishedOutput", "output_schema"]


class PublishedOutput(Protocol):
    """Where a file sink has published: a `LocalOutput`, or an `ObjectOutput` in a bucket."""

    def epochs(self) -> list[int]:
        """The numbers of what is published, in order."""

    def parts(self, epoch: int) -> list[tuple[str, Callable[[], bytes]]]:
        """The files of an epoch by name, and what reads them in any process."""


@dataclass(frozen=True)
class LocalOutput:
    """In a directory."""

    root: Path

    def __str__(self) -> str:
        return str(self.root)

    def epochs(self) -> list[int]:
        if not self.root.is_dir():
            raise InputError(
                f"there is no directory '{self.root}'",
                cure="give the path of a file sink; no run has written there yet, or it ran elsewhere",
            )
        return published_epochs(self.root)

    def parts(self, epoch: int) -> list[tuple[str, Callable[[], bytes]]]:
        return [(file.name, file.read_bytes) for file in epoch_files(self.root, epoch)]


@dataclass(frozen=True)
class _PublishedFile(InputPartition):
    name: str
    content: Callable[[], bytes]

    @property
    def is_typed(self) -> bool:
        """Whether the file says which types its columns have."""
        return not self.name.endswith(".ndjson")

    def rows(self, schema: pl.Schema | None) -> pl.DataFrame:
        return rows_of_parts([(self.name, self.content)], None, schema)


def _files(output: PublishedOutput, epochs: Sequence[int]) -> list[_PublishedFile]:
    return [
        _PublishedFile(*part)
        for epoch in epochs
        for part in output.parts(epoch)
        if part[0].rpartition(".")[2] in get_args(SinkFormat)
    ]


def output_schema(output: PublishedOutput) -> pl.Schema:
    """The columns of an output, from its first file, and those that it has got since, from its last one."""
    epochs = output.epochs()
    ends = [*_files(output, epochs[:1])[:1], *_files(output, epochs[-1:])[-1:]]
    if not ends:
        raise InputError(
            f"nothing is published in {output} yet",
            cure='give the columns with .schema("..."), or wait until the pipeline has published an epoch',
        )
    return pl.Schema({**ends[-1].rows(None).schema, **ends[0].rows(None).schema})


@dataclass
class OutputReader(DataSourceReader):
    output: PublishedOutput
    columns: StructType

    def partitions(self) -> Sequence[InputPartition]:
        return _files(self.output, self.output.epochs()) or [InputPartition(None)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _rows(partition, self.columns)


def _rows(partition: InputPartition, columns: StructType) -> Iterator[pa.RecordBatch]:
    if isinstance(partition, _PublishedFile):
        wanted = polars_schema(columns, "read")
        rows = partition.rows(None if partition.is_typed else wanted)
        absent = [pl.lit(None, dtype).alias(name) for name, dtype in wanted.items() if name not in rows.columns]
        yield from to_spark_batches(rows.with_columns(absent), columns)


class OutputStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The offset is the last epoch that was read."""

    def __init__(self, output: PublishedOutput, columns: StructType) -> None:
        self._output = output
        self._columns = columns
        self._last: int | None = None

    def initialOffset(self) -> dict[str, int]:  # noqa: N802
        return {"epoch": 0}

    def _newest(self) -> int:
        return max(self._output.epochs(), default=0)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._last = self._newest()

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:  # noqa: N802
        newest = self._newest() if self._last is None else self._last
        return {"epoch": max(newest, int(start["epoch"]))}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        epochs = [epoch for epoch in self._output.epochs() if start["epoch"] < epoch <= end["epoch"]]
        return _files(self._output, epochs)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _rows(partition, self._columns)
