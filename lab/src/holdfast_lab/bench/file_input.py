"""Files of ad events to measure reading with: the same rows as Parquet, NDJSON or CSV.

Event times go up from file to file. All other columns are the same in every file: writing them anew would take longer
than what is measured.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from holdfast_lab.workloads.synthetic import ysb_events

__all__ = ["FILE_FORMATS", "EventFiles", "write_event_files"]

FILE_FORMATS = ("parquet", "ndjson", "csv")
ROWS_PER_EVENT_SECOND = 1_000_000
ROW_GROUP = 250_000
"""Rows of a row group of Parquet."""


@dataclass(frozen=True, slots=True)
class EventFiles:
    """`count` files of `rows_per_file` rows in a directory."""

    format: str
    directory: Path
    count: int
    rows_per_file: int
    schema: pl.Schema

    @property
    def rows(self) -> int:
        return self.count * self.rows_per_file

    def paths(self, most: int | None = None) -> list[Path]:
        return sorted(self.directory.iterdir())[:most]


def write_event_files(place: Path, format: str, count: int, rows_per_file: int) -> EventFiles:
    """Write the files to a new directory in `place`."""
    directory = place / f"events-{format}"
    directory.mkdir(parents=True)
    events = ysb_events(rows_per_file, rows_per_second=ROWS_PER_EVENT_SECOND)
    span = rows_per_file * 1_000 // ROWS_PER_EVENT_SECOND
    for number in range(count):
        frame = events.with_columns(pl.col("event_time") + number * span)
        _write(frame, format, directory / f"{number:04}.{format}")
    return EventFiles(format, directory, count, rows_per_file, events.schema)


def _write(frame: pl.DataFrame, format: str, path: Path) -> None:
    if format == "parquet":
        frame.write_parquet(path, row_group_size=ROW_GROUP)
    elif format == "ndjson":
        frame.write_ndjson(path)
    else:
        frame.write_csv(path)


SIZES: Mapping[str, tuple[int, int]] = {"parquet": (50, 4_000_000), "ndjson": (8, 1_000_000), "csv": (16, 2_000_000)}
"""Files and rows per file: some seconds of reading on two cores, several epochs."""
