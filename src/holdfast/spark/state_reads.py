"""The state of an operator after a retained epoch as a DataFrame of Spark."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import polars as pl
import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from holdfast.connect.spark_types import to_spark_batches
from holdfast.state.inspection import shown_state

__all__ = ["StateReader", "state_schema"]


@dataclass
class StateReader(DataSourceReader):
    """Reads the state in one task: it is as `hf.state` shows it."""

    store: Path
    meta: str | None
    pipeline: str
    operator: str
    epoch: int | None
    at: str | None
    columns: StructType | None = None

    def fixed(self, columns: StructType) -> StateReader:
        """For one epoch, which stays the same however often tasks run; its state must be retained until then."""
        found, _ = self._shown()
        return replace(self, epoch=found, at=None, columns=columns)

    def _shown(self) -> tuple[int, pl.DataFrame]:
        found, rows = shown_state(self.store, self.pipeline, self.operator, self.epoch, self.at, meta=self.meta)
        return found.epoch, rows

    def partitions(self) -> Sequence[InputPartition]:
        return [InputPartition(0)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert self.columns is not None
        yield from to_spark_batches(self._shown()[1], self.columns)

    def rows(self) -> pl.DataFrame:
        return self._shown()[1]


def state_schema(reader: StateReader) -> pl.Schema:
    return reader.rows().schema
