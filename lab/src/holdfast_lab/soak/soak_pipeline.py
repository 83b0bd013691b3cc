"""The pipeline of the soak: windows into files, a p-stream, and running totals of keys behind it into a database.

Every epoch takes the same rows, closes windows and changes state, so that every part of a commit has something to do.
What has come out is known from the number of rows that went in.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl

from holdfast.connect.sinks.database import database
from holdfast.connect.sinks.file_sink import parquet, published_epochs
from holdfast.connect.sources.generator import generator
from holdfast.graph.aggregates.sums import count
from holdfast.graph.nodes import ProcessContext, Step
from holdfast.graph.pipeline import Pipeline
from holdfast.graph.windows import tumbling
from holdfast.store import Private, remove_tree

__all__ = ["EPOCH_ROWS", "SoakReader", "soak_pipeline"]

EPOCH_ROWS = 200
_KEYS = 10
_SECOND_ROWS = 100
"""Rows of a second of event time: an epoch closes windows."""
_ROWS = {"time": pl.Int64, "key": pl.Int64, "value": pl.Int64}
_TOTALS = {"key": pl.Int64, "rows": pl.Int64, "total": pl.Int64}
_READ = Private("output that the soak has read, as its only reader")


def _rows(start: int, stop: int) -> pl.DataFrame:
    number = np.arange(start, stop, dtype=np.int64)
    values = {"time": number * 1_000 // _SECOND_ROWS, "key": number % _KEYS, "value": number % 1_009}
    return pl.DataFrame(values, schema=_ROWS)


def _add_up(rows: pl.DataFrame, state: pl.DataFrame, context: ProcessContext) -> Step:
    """The rows and the sum of each key: those of this call go out, those of all become state."""
    here = rows.group_by("key", maintain_order=True).agg(rows=pl.len().cast(pl.Int64), total=pl.col("value").sum())
    known = here.join(state, on="key", how="left", suffix="_before")
    after = known.select(
        "key",
        rows=pl.col("rows") + pl.col("rows_before").fill_null(0),
        total=pl.col("total") + pl.col("total_before").fill_null(0),
    )
    return Step(output=here, upserts=after)


def soak_pipeline(place: Path) -> Pipeline:
    pipeline = Pipeline("soak")
    events = pipeline.source("events", generator(_rows, _ROWS), event_time="time", time_unit="ms")
    windows = events.key_by("key").window(tumbling("1s"), name="windows").agg(n=count())
    windows.sink("counts", parquet(place / "counts"))
    totals = events.persist("kept").key_by("key")
    added = totals.process(
        _add_up, state={"rows": pl.Int64, "total": pl.Int64}, output=_TOTALS, keep_forever=True, name="totals"
    )
    added.sink("sums", database(f"sqlite:///{place / 'sums.db'}", "sums"))
    return pipeline


@dataclass(slots=True)
class SoakReader:
    """Takes the output away, as a reader would, and adds it up: what has come out must not grow with the epochs."""

    place: Path
    windows: int = 0
    counted: int = 0
    summed: int = 0

    def take(self) -> None:
        for epoch in published_epochs(self.place / "counts"):
            directory = self.place / "counts" / f"epoch={epoch:012d}"
            for file in directory.glob("*.parquet"):
                rows = pl.read_parquet(file.read_bytes())
                self.windows += rows.height
                self.counted += int(rows["n"].sum())
            remove_tree(directory, _READ)
        with closing(sqlite3.connect(self.place / "sums.db", timeout=60)) as connection, connection:
            connection.execute("BEGIN IMMEDIATE")  # what comes after the sum is not deleted with it
            [(rows,)] = connection.execute("SELECT coalesce(sum(rows), 0) FROM sums").fetchall()
            connection.execute("DELETE FROM sums")
        self.summed += int(rows)

    def wrong(self, rows: int) -> int:
        """How many rows are missing or too many, after so many were read and all that is due has come out."""
        of_window = _SECOND_ROWS // _KEYS
        closed = rows // _SECOND_ROWS - 1  # the newest event time does not close its own second
        wrong = abs(self.windows - closed * _KEYS) * of_window + abs(self.counted - self.windows * of_window)
        return abs(self.summed - rows) + wrong
