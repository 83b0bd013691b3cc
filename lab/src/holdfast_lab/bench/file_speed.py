"""YSB from files: Holdfast against plain Polars on the same files and cores, and Structured Streaming beside them.

The files are there before anything starts: a backlog. What counts is rows per second from the start of the first epoch,
before a row is read, to the commit of the last result: the bars are on this, for a crew. `steady` is the speed after
the first quarter of the rows. Polars is timed inside a process of its own, without its start and imports.

All take turns within one run, the other way round in every second round, and a ratio is the median of those within the
rounds. Whatever Holdfast puts out must equal what Polars does.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from shutil import rmtree
from statistics import median
from typing import Any

import polars as pl
from pyspark.sql import SparkSession

from holdfast.connect.sinks.file_sink import parquet, read_output
from holdfast.connect.sources.files import files
from holdfast.engine.fragment_run import FragmentRun
from holdfast.engine.spark_platform import SparkPlatform
from holdfast.epoch.report import EpochReport
from holdfast.errors import HoldfastError
from holdfast_lab.bench.bench_figures import Reports
from holdfast_lab.bench.file_input import SIZES, EventFiles, write_event_files
from holdfast_lab.bench.memory_watch import processor_seconds
from holdfast_lab.bench.query_runs import BenchOptions
from holdfast_lab.experiment.definition import Bar, at_least
from holdfast_lab.workloads.queries import query
from holdfast_lab.workloads.spark_run import seconds_for_all, sql_schema

__all__ = ["BARS", "FileRun", "FileSpeed", "measure_files", "measure_files_on_spark", "steady_speed"]

BARS: Mapping[str, float] = {"parquet": 0.6, "ndjson": 0.85, "csv": 0.85}
"""Rows per second of a crew over those of plain Polars, at least."""
ROUNDS = 3
_EXECUTORS = ("crew", "jobs")
_THREADS = 2
_SHARE_OF_SPARK = 4
"""Structured Streaming reads one file of so many."""


@dataclass(frozen=True, slots=True)
class FileRun:
    """One run over a backlog. Speeds are rows per second, `per_cpu_second` of CPU time of all processes."""

    format: str
    engine: str
    rows: int
    backlog: float
    steady: float | None
    per_cpu_second: float | None
    epochs: int | None = None
    first_rows: int | None = None
    """Rows of the first epoch."""


@dataclass(frozen=True, slots=True)
class FileSpeed:
    """All runs, in the order of rounds."""

    runs: tuple[FileRun, ...]

    def of(self, format: str, engine: str) -> list[FileRun]:
        return [run for run in self.runs if (run.format, run.engine) == (format, engine)]

    def ratio(self, format: str, engine: str, figure: Callable[[FileRun], float | None]) -> float | None:
        """The engine's figure over what Polars has as a backlog, by rounds."""
        pairs = zip(self.of(format, engine), self.of(format, "polars"), strict=False)
        ratios = [mine / other.backlog for run, other in pairs if (mine := figure(run)) is not None]
        return round(median(ratios), 3) if ratios else None

    def bars(self) -> list[Bar]:
        return [
            at_least(f"{format}, backlog, crew over plain Polars", self.ratio(format, "crew", _backlog), bar)
            for format, bar in BARS.items()
            if self.of(format, "crew")
        ]

    def table(self) -> list[dict[str, Any]]:
        """A row for each format and engine: medians of the rounds, in millions of rows per second."""
        found = []
        for format, engine in dict.fromkeys((run.format, run.engine) for run in self.runs):
            runs = self.of(format, engine)
            per_cpu = [run.per_cpu_second for run in runs if run.per_cpu_second is not None]
            steady = [run.steady for run in runs if run.steady is not None]
            found.append(
                {
                    "format": format,
                    "engine": engine,
                    "rows": runs[0].rows,
                    "backlog_mrows_per_s": _millions([run.backlog for run in runs]),
                    "steady_mrows_per_s": _millions(steady),
                    "mrows_per_cpu_s": _millions(per_cpu),
                    "backlog_over_polars": self.ratio(format, engine, _backlog),
                    "steady_over_polars": self.ratio(format, engine, lambda run: run.steady),
                    "epochs": runs[-1].epochs,
                    "first_epoch_rows": runs[-1].first_rows,
                }
            )
        return found

    def to_json(self) -> dict[str, Any]:
        return {
            "query": "files",
            "table": self.table(),
            "runs": [asdict(run) for run in self.runs],
            "bars": [asdict(bar) for bar in self.bars()],
        }


def _backlog(run: FileRun) -> float:
    return run.backlog


def _millions(values: Sequence[float]) -> float | None:
    return round(median(values) / 1e6, 2) if values else None


def measure_files(
    spark: SparkSession,
    options: BenchOptions,
    place: Path,
    say: Callable[[str], None],
    *,
    sizes: Mapping[str, tuple[int, int]] = SIZES,
    rounds: int = ROUNDS,
) -> tuple[FileSpeed, dict[str, EventFiles]]:
    """Measure all but Structured Streaming, which wants a session of its own. Also what was written, by format."""
    written = {}
    for format, (count, rows) in sizes.items():
        say(f"writing {count} files of {format}")
        written[format] = write_event_files(place, format, count, rows)
    runs = []
    for number in range(-1, rounds):  # the first one warms up
        for format, input in written.items():
            engines = ("polars", *_EXECUTORS) if number % 2 == 0 else (*reversed(_EXECUTORS), "polars")
            for engine in engines if number >= 0 else (*_EXECUTORS, "polars"):
                run = _run(spark, options, place, input, engine)
                say(f"{format}, {engine}: {run.backlog / 1e6:,.2f} M rows/s" + (" (warm-up)" if number < 0 else ""))
                runs += [run] if number >= 0 else []
            _check_equal(place, format)
    return FileSpeed(tuple(runs)), written


def _run(spark: SparkSession, options: BenchOptions, place: Path, input: EventFiles, engine: str) -> FileRun:
    if engine == "polars":
        return _on_polars(place, input)
    return _on_holdfast(spark, options, place, input, engine)


def _on_polars(place: Path, input: EventFiles) -> FileRun:
    command = [sys.executable, "-m", "holdfast_lab.bench.polars_query", input.format, str(_result(place, input.format))]
    done = subprocess.run(
        [*command, *map(str, input.paths())],
        env={**os.environ, "POLARS_MAX_THREADS": str(_THREADS)}, stdout=subprocess.PIPE, text=True, check=True,
    )  # fmt: skip
    taken = json.loads(done.stdout.splitlines()[-1])
    return FileRun(input.format, "polars", input.rows, input.rows / taken["seconds"], None, input.rows / taken["cpu"])


def _on_holdfast(spark: SparkSession, options: BenchOptions, place: Path, input: EventFiles, executor: str) -> FileRun:
    home = place / f"{input.format}-{executor}"
    options = replace(options, executor=executor)  # type: ignore[arg-type]
    rmtree(home, ignore_errors=True)
    source = files(input.directory, input.format, input.schema)  # type: ignore[arg-type]
    pipeline = query("YSB").build(source, parquet(home / "out"), pipeline_name=home.name)
    reports = Reports()
    settings = replace(options.run_options(home, 20_000, 1_000_000_000), until_idle=True)
    used = processor_seconds()
    FragmentRun(pipeline, SparkPlatform(spark), settings, observer=reports).run()
    used = processor_seconds() - used
    epochs = [report for report in reports.epochs if report.rows]
    read = sum(report.rows for report in epochs)
    if read != input.rows:
        raise HoldfastError(f"{read} of {input.rows} rows were read", cure="report this: rows are lost or doubled")
    seconds = reports.epochs[-1].committed - epochs[0].started
    return FileRun(
        input.format, executor, read, read / seconds, steady_speed(epochs), read / used, len(epochs),
        epochs[0].rows,
    )  # fmt: skip


def steady_speed(epochs: Sequence[EpochReport]) -> float | None:
    """Rows per second from the commit by which a quarter of all rows was read, to the last one's."""
    total, read = sum(report.rows for report in epochs), 0
    for number, report in enumerate(epochs):
        read += report.rows
        if read >= total / 4:
            rest = epochs[number + 1 :]
            return sum(later.rows for later in rest) / (rest[-1].committed - report.committed) if rest else None
    return None


def _result(place: Path, format: str) -> Path:
    return place / f"{format}-polars.parquet"


def _check_equal(place: Path, format: str) -> None:
    expected = pl.read_parquet(_result(place, format))
    for executor in _EXECUTORS:
        found = read_output(place / f"{format}-{executor}" / "out", "parquet").select(expected.columns)
        order = ["campaign_id", "window_start"]
        if not found.sort(order).equals(expected.sort(order)):
            raise HoldfastError(
                f"from {format} files the {executor} executor puts out something else than Polars",
                cure="report this: one of them is wrong",
            )


def measure_files_on_spark(spark: SparkSession, place: Path, written: Mapping[str, EventFiles]) -> list[FileRun]:
    """Structured Streaming over a part of each format's files, all that there is in one go."""
    found = []
    for format, input in written.items():
        part = place / f"{format}-part"
        part.mkdir()
        chosen = input.paths(max(1, input.count // _SHARE_OF_SPARK))
        for path in chosen:
            os.link(path, part / path.name)
        reader = spark.readStream.schema(sql_schema(input.schema)).option("header", "true")
        stream = reader.format({"ndjson": "json"}.get(format, format)).load(str(part))
        seconds = seconds_for_all(spark, "YSB", stream, place / f"{format}-checkpoint")
        rows = len(chosen) * input.rows_per_file
        found.append(FileRun(format, "spark", rows, rows / seconds, None, None))
    return found
