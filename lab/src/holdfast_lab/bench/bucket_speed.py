"""YSB from an object store into it, beside the same rows from local files into local files, and two client libraries.

The S3 server is a process on the same cores (`s3_server.py`) that keeps objects in memory: what it takes is missing for
the pipeline, and a network has other latencies. So the figures compare ways to do the same work, and are no figures of
S3. Structured Streaming reads the local files, as in `holdfast bench files`.

The libraries are `obstore`, which connectors use, and `pyarrow.fs`: so many small objects are put, listed and read by a
range, one after the other, and a large one is put and read. `pyarrow.fs` cannot put an object only if there is none,
which a sink needs.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from shutil import rmtree
from statistics import median
from typing import Any

import obstore
import pyarrow.fs as pafs
from obstore.store import S3Store
from pyspark.sql import SparkSession

from holdfast.connect.sinks.file_sink import parquet, read_output
from holdfast.connect.sources.files import files
from holdfast.engine.fragment_run import FragmentRun
from holdfast.engine.spark_platform import SparkPlatform
from holdfast.errors import HoldfastError
from holdfast_lab.bench.bench_figures import Reports
from holdfast_lab.bench.file_input import EventFiles, write_event_files
from holdfast_lab.bench.file_speed import FileRun, steady_speed
from holdfast_lab.bench.memory_watch import processor_seconds
from holdfast_lab.bench.query_runs import BenchOptions
from holdfast_lab.chaos.s3_server import S3Server, make_bucket
from holdfast_lab.workloads.queries import query

__all__ = ["BucketSpeed", "ClientTime", "measure_clients", "measure_objects"]

SIZES: Mapping[str, tuple[int, int]] = {"parquet": (8, 2_000_000), "ndjson": (4, 500_000)}
"""Files and rows per file."""
ROUNDS = 3
_SMALL, _LARGE = 100, 32 << 20
_COUNT = 200
_TRIES = 3
_PLACES = ("object store", "local files")


@dataclass(frozen=True, slots=True)
class ClientTime:
    """The best of some tries; `cpu_ms` is of the client's process alone."""

    task: str
    library: str
    ms: float
    cpu_ms: float


@dataclass(frozen=True, slots=True)
class BucketSpeed:
    """All that was measured."""

    clients: tuple[ClientTime, ...]
    runs: tuple[FileRun, ...]

    def client_table(self) -> list[dict[str, Any]]:
        return [asdict(client) for client in self.clients]

    def table(self) -> list[dict[str, Any]]:
        found = []
        for format, engine in dict.fromkeys((run.format, run.engine) for run in self.runs):
            runs = [run for run in self.runs if (run.format, run.engine) == (format, engine)]
            found.append(
                {
                    "format": format,
                    "engine": f"Structured Streaming, {_PLACES[1]}" if engine == "spark" else f"Holdfast, {engine}",
                    "rows": runs[-1].rows,
                    "mrows_per_s": round(median(run.backlog for run in runs) / 1e6, 2),
                    "epochs": runs[-1].epochs,
                }
            )
        return found

    def to_json(self) -> dict[str, Any]:
        return {
            "query": "objectstore",
            "clients": self.client_table(),
            "table": self.table(),
            "runs": [asdict(run) for run in self.runs],
        }


def measure_clients(server: S3Server, say: Callable[[str], None], *, count: int = _COUNT) -> tuple[ClientTime, ...]:
    """Both libraries, at the same tasks."""
    make_bucket(server, "clients")
    small, large = b"x" * _SMALL, os.urandom(_LARGE)
    store = S3Store(
        "clients", config={"endpoint": server.endpoint, "region": "us-east-1"}, client_options={"allow_http": True}
    )
    arrow = pafs.S3FileSystem(
        access_key="lab", secret_key="lab", endpoint_override=server.endpoint.removeprefix("http://"), scheme="http",
        region="us-east-1", allow_delayed_open=True,  # a small object is then one request
    )  # fmt: skip

    def arrow_put(key: str, content: bytes) -> object:
        with arrow.open_output_stream(f"clients/{key}") as out:
            return out.write(content)

    def arrow_read(key: str, size: int) -> object:
        with arrow.open_input_file(f"clients/{key}") as file:
            return file.read_at(size, 0)

    numbers = range(count)
    tasks: list[tuple[str, str, Callable[[], object]]] = [
        (f"put {count} small", "obstore", lambda: [obstore.put(store, f"s/{n}", small) for n in numbers]),
        (f"put {count} small", "pyarrow.fs", lambda: [arrow_put(f"s/{n}", small) for n in numbers]),
        (f"list {count}", "obstore", lambda: list(obstore.list(store, "s/"))),
        (f"list {count}", "pyarrow.fs", lambda: arrow.get_file_info(pafs.FileSelector("clients/s"))),
        (
            f"read {count} ranges",
            "obstore",
            lambda: [obstore.get_range(store, f"s/{n}", start=0, end=50) for n in numbers],
        ),
        (f"read {count} ranges", "pyarrow.fs", lambda: [arrow_read(f"s/{n}", 50) for n in numbers]),
        ("put 32 MiB", "obstore", lambda: obstore.put(store, "large", large)),
        ("put 32 MiB", "pyarrow.fs", lambda: arrow_put("large", large)),
        ("read 32 MiB", "obstore", lambda: obstore.get(store, "large").bytes()),
        ("read 32 MiB", "pyarrow.fs", lambda: arrow_read("large", _LARGE)),
    ]
    found = []
    for task, library, work in tasks:
        times = [_timed(work) for _ in range(_TRIES)]
        seconds, used = min(times)
        found.append(ClientTime(task, library, round(seconds * 1e3, 1), round(used * 1e3, 1)))
        say(f"{task}, {library}: {seconds * 1e3:,.0f} ms")
    return tuple(found)


def _timed(work: Callable[[], object]) -> tuple[float, float]:
    start, used = time.perf_counter(), time.process_time()
    work()
    return time.perf_counter() - start, time.process_time() - used


def measure_objects(
    spark: SparkSession,
    server: S3Server,
    options: BenchOptions,
    place: Path,
    say: Callable[[str], None],
    *,
    sizes: Mapping[str, tuple[int, int]] = SIZES,
    rounds: int = ROUNDS,
) -> tuple[list[FileRun], dict[str, EventFiles]]:
    """Both places in turns; what they put out must be equal. Also what was written, by format."""
    root = make_bucket(server, "events")
    store = S3Store(
        "events", config={"endpoint": server.endpoint, "region": "us-east-1"}, client_options={"allow_http": True}
    )
    written = {}
    for format, (count, rows) in sizes.items():
        say(f"writing {count} files of {format}")
        written[format] = write_event_files(place, format, count, rows)
        for path in written[format].paths():
            obstore.put(store, f"in-{format}/{path.name}", path)
    runs = []
    for number in range(-1, rounds):  # the first one warms up
        for format, input in written.items():
            outputs = []
            for where in _PLACES if number % 2 == 0 else reversed(_PLACES):
                home = place / f"{format}-{where.partition(' ')[0]}-{number}"
                remote = where == _PLACES[0]
                root_in = f"{root}/in-{format}" if remote else input.directory
                root_out = f"{root}/out-{home.name}" if remote else home / "out"
                run = _run(
                    spark, options, home, input, (root_in, root_out), server.options() if remote else None, where
                )
                say(f"{format}, {where}: {run.backlog / 1e6:,.2f} M rows/s" + (" (warm-up)" if number < 0 else ""))
                runs += [run] if number >= 0 else []
                shown = read_output(root_out, "parquet", storage_options=server.options() if remote else None)
                outputs.append(shown.sort("campaign_id", "window_start"))
                rmtree(home, ignore_errors=True)
            if not outputs[0].equals(outputs[1]):
                raise HoldfastError(f"{format}: the outputs differ", cure="report this: one of them is wrong")
    return runs, written


def _run(
    spark: SparkSession,
    options: BenchOptions,
    home: Path,
    input: EventFiles,
    places: tuple[str | Path, str | Path],
    storage: dict[str, str | int | float | bool] | None,
    where: str,
) -> FileRun:
    options = replace(options, executor="crew")
    source = files(places[0], input.format, input.schema, storage_options=storage)  # type: ignore[arg-type]
    sink = parquet(places[1], storage_options=storage)
    reports = Reports()
    settings = replace(options.run_options(home, 20_000, 1_000_000_000), until_idle=True)
    used = processor_seconds()
    pipeline = query("YSB").build(source, sink, pipeline_name=home.name)
    FragmentRun(pipeline, SparkPlatform(spark), settings, observer=reports).run()
    used = processor_seconds() - used
    epochs = [report for report in reports.epochs if report.rows]
    read = sum(report.rows for report in epochs)
    if read != input.rows:
        raise HoldfastError(f"{read} of {input.rows} rows were read", cure="report this: rows are lost or doubled")
    seconds = _seconds(reports, epochs[0].started)
    return FileRun(
        input.format, where, read, read / seconds, steady_speed(epochs), read / used, len(epochs), epochs[0].rows
    )


def _seconds(reports: Reports, since: float) -> float:
    committed: Sequence[float] = [report.committed for report in reports.epochs]
    return committed[-1] - since
