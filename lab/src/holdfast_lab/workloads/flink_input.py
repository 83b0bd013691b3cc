"""Flink's input: the rows that the other engines read, from a source that is not the bottleneck.

A line of the input stands for one instant of event time: the rows of the dataset at that instant, as an array, and how
often they come. Flink reads the line once and unfolds it by two `UNNEST`s, round after round of the rows of the
instant, which is the order of `bench/dense_input.py`. So a line is some ten thousand rows, reading and parsing are a
few per cent of the work, and the rows are those of the dataset: same values, same keys, same times. Only the columns
that the query reads are there.

The input is two files with the same lines, each with half of the rounds, for two readers that keep step in event time.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

import polars as pl

from holdfast.graph.durations import ticks
from holdfast_lab.workloads.datasets import Dataset
from holdfast_lab.workloads.flink_queries import EVENTS

__all__ = ["PARALLELISM", "FlinkInput", "flink_input"]

PARALLELISM = 2
"""Readers, each of a file of its own."""

_ROWS_PER_LINE = 40_000
"""At most about so many: a checkpoint waits for a line that is being unfolded."""

_TYPES = {
    pl.Int8: "INT",
    pl.Int16: "INT",
    pl.Int32: "INT",
    pl.Int64: "BIGINT",
    pl.Float32: "FLOAT",
    pl.String: "STRING",
}


@dataclass(frozen=True, slots=True)
class FlinkInput:
    """Lines in `directory`. Each row of the dataset comes `repeat` times per replay; a line has each `copies` times."""

    data: Dataset
    directory: Path
    columns: tuple[tuple[str, str], ...]
    files: int
    copies: int
    repeat: int
    rows_before: tuple[int, ...]
    """How many rows the first n lines of one file stand for."""

    @property
    def rows(self) -> int:
        """Of all files."""
        return self.files * self.rows_before[-1]

    def rows_of(self, lines: int) -> int:
        """How many rows the first `lines` of a file are."""
        return self.rows_before[min(lines, len(self.rows_before) - 1)]

    def statements(self) -> list[str]:
        """The tables and views that make `events` of the files."""
        fields = ", ".join(f"`{name}` {kind}" for name, kind in self.columns)
        zeros = ", ".join(["0"] * self.copies)
        exposed = [f"r.`{name}`" for name, _ in self.columns]
        if self.data.time_unit == "ms":
            exposed.append(f"t AS `{self.data.event_time}`")
        return [
            f"CREATE TEMPORARY TABLE instants (t BIGINT, rws ARRAY<ROW<{fields}>>,"
            " rt AS TO_TIMESTAMP_LTZ(t, 3), WATERMARK FOR rt AS rt - INTERVAL '0.001' SECOND)"
            f" WITH ('connector' = 'filesystem', 'path' = '{self.directory.as_uri()}', 'format' = 'json')",
            # The array depends on the row in name only. Without that it were the join of two streams, with state.
            f"CREATE TEMPORARY VIEW rounds AS SELECT *, CASE WHEN t IS NULL THEN ARRAY[0] ELSE ARRAY[{zeros}] END"
            " AS copies FROM instants",
            f"CREATE TEMPORARY VIEW {EVENTS} AS SELECT {', '.join(exposed)}, rt"
            " FROM rounds CROSS JOIN UNNEST(copies) AS c(nothing)"
            f" CROSS JOIN UNNEST(rws) AS r({', '.join(f'`{name}`' for name, _ in self.columns)})",
        ]


def flink_input(
    data: Dataset, events: pl.DataFrame, reads: tuple[str, ...], directory: Path, *, repeat: int = 1, rows: int = 0
) -> FlinkInput:
    """Write `events`, each row about `repeat` times, replayed with shifted times until there are `rows` of them.

    `repeat` is rounded to a number that is shared evenly between files and lines; 1 makes one file.
    """
    kept = [name for name in reads if name != data.event_time]
    instant = (pl.col(data.event_time) * 1_000 // ticks("1s", data.time_unit)).alias("t")
    lines = events.select(instant, pl.struct(kept).alias("rws")).group_by("t", maintain_order=True).agg("rws")
    sizes = lines["rws"].list.len().to_list()
    files = PARALLELISM if repeat >= PARALLELISM else 1
    per_file = max(1, round(repeat / files))
    pieces = max(1, round(per_file * max(sizes) / _ROWS_PER_LINE))
    copies = max(1, round(per_file / pieces))
    replays = max(1, -(-rows // (events.height * copies * pieces * files)))
    period = data.period(events) * 1_000 // ticks("1s", data.time_unit)
    directory.mkdir(parents=True)
    once = lines.select(pl.all().gather([at for at in range(lines.height) for _ in range(pieces)]))
    for number in range(files):
        with (directory / f"part-{number}.json").open("wb") as file:
            for replay in range(replays):
                once.with_columns(pl.col("t") + replay * period).write_ndjson(file)
    per_line = [size * copies for size in sizes for _ in range(pieces)]
    return FlinkInput(
        data,
        directory,
        tuple((name, _TYPES[type(events.schema[name])]) for name in kept),
        files,
        copies,
        files * pieces * copies,
        tuple(accumulate(per_line * replays, initial=0)),
    )
