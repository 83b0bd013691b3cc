"""Experiment `data-reduction`, Fig. 11 of Scabbard: what push-up and compression save, apart and together.

The queries that the paper calls bound by the disk run through a p-stream right behind their source, in the paper's six
configurations. The fragment that writes the stream and the one that reads it share this machine.
"""

from __future__ import annotations

import math
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from holdfast.connect.base import Source
from holdfast.connect.sinks.file_sink import parquet
from holdfast.engine.fragment_runs import FragmentsRun
from holdfast.engine.observer import Observer
from holdfast.engine.options import RunOptions
from holdfast.engine.spark_platform import SparkPlatform
from holdfast.epoch.report import EpochReport
from holdfast.graph.policies import DELTA
from holdfast.pstream.description import MeasuredPlace as PlaceMeasured
from holdfast.pstream.description import Placement
from holdfast_lab.bench.bench_figures import Meter
from holdfast_lab.bench.query_runs import session
from holdfast_lab.experiment.definition import Bar, Experiment, Figure, Result, Row, Settings, at_least
from holdfast_lab.experiment.plots import grouped_bars
from holdfast_lab.experiment.scabbard.varied_input import varied
from holdfast_lab.workloads.queries import Query, query

__all__ = ["CONFIGURATIONS", "EXPERIMENT", "MeasuringPlan", "ReductionConfig", "ReductionFigures", "measure"]

_QUERIES = ("CM1", "CM2", "SG1", "YSB", "NQ", "SM")
_TIMES = 7.0
_QUICK_SECONDS = 90.0
_MAX_ERROR = 0.005  # two decimal digits
_MEMORY = Path("/dev/shm")
_MEMORY_NEEDED = 4 << 30
_BUDGET = "2 GB"
_SOURCE = "Scabbard, §6.6 and Fig. 11"
_PAPER = (
    ("no-opt", "up to 780 MB/s, the bandwidth of the disk"),
    ("both-lossless", "throughput 7 to 50 times that of no-opt, with both reductions"),
    ("both-lossy", "for CM1 and SG1 20-40 % faster than lossless"),
    ("both-no-disk", "1.2-4 times faster than with the disk"),
)


@dataclass(frozen=True, slots=True)
class ReductionConfig:
    """Which reductions are on, and whether the p-stream lies on a disk that is synced."""

    name: str
    push_up: bool
    compress: bool
    lossy: bool = False
    disk: bool = True

    def persist(self, query: Query) -> dict[str, Any]:
        """The options of the p-stream."""
        lossy = dict.fromkeys(float_columns(query), _MAX_ERROR) if self.lossy else None
        return {"push_up": self.push_up, "compress": self.compress, "lossy": lossy, "budget": _BUDGET}


CONFIGURATIONS = (
    ReductionConfig("no-opt", push_up=False, compress=False),
    ReductionConfig("p-pu", push_up=True, compress=False),
    ReductionConfig("only-cmp", push_up=False, compress=True),
    ReductionConfig("both-lossless", push_up=True, compress=True),
    ReductionConfig("both-lossy", push_up=True, compress=True, lossy=True),
    ReductionConfig("both-no-disk", push_up=True, compress=True, disk=False),
)


def float_columns(query: Query) -> list[str]:
    return [name for name, dtype in query.dataset.load(1).schema.items() if dtype.is_float()]


@dataclass(frozen=True, slots=True)
class MeasuringPlan:
    """How long to measure, how long an epoch may take, how many of them are for warming up, at least, and how many rows
    the first one has."""

    seconds: float
    latency: float
    warm_epochs: int
    least_rows: int = 500_000


@dataclass(frozen=True, slots=True)
class ReductionFigures:
    """What a run gave after its warm-up, from the reports of both fragments."""

    tuples: int
    seconds: float
    stream_bytes: int
    all_bytes: int
    writer_cpu: float
    reader_cpu: float
    placement: Placement

    @staticmethod
    def of(reports: Sequence[EpochReport], began: float, writer: str, placement: Placement) -> ReductionFigures:
        """From the commit at `began` to the last one: what was written must also have been read."""
        after = [report for report in reports if report.committed > began]
        wrote = [report for report in after if report.fragment == writer]
        return ReductionFigures(
            tuples=sum(report.entered for report in wrote),
            seconds=max(report.committed for report in after) - began if after else 0.0,
            stream_bytes=sum(report.streamed_bytes for report in wrote),
            all_bytes=sum(report.written_bytes for report in after),
            writer_cpu=sum(sum(report.cpu.values()) for report in wrote),
            reader_cpu=sum(sum(report.cpu.values()) for report in after if report.fragment != writer),
            placement=placement,
        )


def _order() -> list[tuple[str, ReductionConfig]]:
    """What the bars are about first: in a quick run, the rest as far as the time goes."""
    first = [config for config in CONFIGURATIONS if config.name in ("no-opt", "both-lossless")]
    rest = [config for config in CONFIGURATIONS if config not in first]
    return [(name, config) for group in (first, rest) for name in _QUERIES for config in group]


def run(settings: Settings) -> Result:

    pace = settings.pick(
        quick=MeasuringPlan(0.5, latency=0.4, warm_epochs=2), full=MeasuringPlan(8.0, latency=1.0, warm_epochs=6)
    )
    end = time.monotonic() + _QUICK_SECONDS if settings.quick else math.inf
    found: dict[tuple[str, str], Row] = {}
    left_out: list[str] = []
    with session("holdfast") as spark, _in_memory(settings.work) as (memory, really):
        made: dict[str, Source] = {}
        for name, configuration in _order():
            asked = query(name)
            if configuration.lossy and not float_columns(asked):
                continue
            if time.monotonic() > end:
                left_out.append(f"{name} {configuration.name}")
                continue
            if asked.dataset.name not in made:
                made[asked.dataset.name] = varied(asked.dataset, settings.seed).source(settings.work / "input")
            settings.say(f"{name}: {configuration.name}")
            place = (settings.work if configuration.disk else memory) / f"{name}-{configuration.name}"
            ran = measure(spark, asked, made[asked.dataset.name], configuration, place, pace)
            found[name, configuration.name] = _row(name, configuration, ran)
    order = [(name, configuration.name) for name in _QUERIES for configuration in CONFIGURATIONS]
    rows = [found[key] for key in order if key in found]
    rows = [_against(row, rows) for row in rows]
    return Result(
        keys=("query", "configuration"),
        rows=rows,
        paper=[{"configuration": name, "says": says, "source": _SOURCE} for name, says in _PAPER],
        bars=_bars(rows),
        notes=[*_notes(pace, really), *([f"No time was left for: {', '.join(left_out)}."] if left_out else [])],
        plot=lambda figure: _plot(figure, rows),
        shown=(
            "bytes_per_tuple", "reduction", "rows_reduction", "with_state_bytes_per_tuple", "tuples_per_s", "speedup",
            "place", "reason",
        ),
    )  # fmt: skip


@contextmanager
def _in_memory(otherwise: Path) -> Iterator[tuple[Path, bool]]:
    """A directory in memory, removed at the end; below `otherwise` where there is none with room."""
    if not _MEMORY.is_dir() or shutil.disk_usage(_MEMORY).free < _MEMORY_NEEDED:
        yield otherwise / "unsynced", False
        return
    with tempfile.TemporaryDirectory(prefix="holdfast-", dir=_MEMORY, ignore_cleanup_errors=True) as directory:
        yield Path(directory), True


def measure(
    spark: SparkSession,
    query: Query,
    source: Source,
    configuration: ReductionConfig,
    place: Path,
    pace: MeasuringPlan,
) -> ReductionFigures:
    """Run a query through a p-stream for some time after a warm-up, and until the reader has read all of it."""

    pipeline = query.build(source, parquet(place / "out"), persist=configuration.persist(query))
    options = RunOptions(
        store=place / "store",
        latency=pace.latency,
        least_rows=pace.least_rows,
        durable=configuration.disk,
        until_idle=True,
        checkpoint=DELTA,
    )
    reports: list[EpochReport] = []
    meter = Meter(pace.seconds, warm_epochs=pace.warm_epochs)

    class ReductionMeter(Observer):
        def epoch_committed(self, report: EpochReport) -> None:
            reports.append(report)
            if report.fragment == writer:
                meter.epoch_committed(report)

    try:
        running = FragmentsRun(pipeline, SparkPlatform(spark), options, observer=ReductionMeter())
        [stream] = running.cuts.streams
        [writer] = [fragment.name for fragment in running.cuts.fragments if fragment.writes]
        meter.stop = running.runs[writer].stop  # the reader goes on until nothing is left
        running.run()
        began = meter.reports[meter.warm - 1].committed if meter.warm else float("inf")
        return ReductionFigures.of(reports, began, writer, stream.placement)
    finally:
        shutil.rmtree(place, ignore_errors=True)


def _row(query: str, configuration: ReductionConfig, found: ReductionFigures) -> dict[str, Any]:
    tuples, place = max(1, found.tuples), found.placement.place
    return {
        "query": query,
        "configuration": configuration.name,
        "bytes_per_tuple": found.stream_bytes / tuples,
        "with_state_bytes_per_tuple": found.all_bytes / tuples,
        "tuples_per_s": found.tuples / found.seconds if found.seconds else None,
        "stream_mb_per_s": found.stream_bytes / found.seconds / 1e6 if found.seconds else None,
        "writer_cpu_ns_per_tuple": found.writer_cpu / tuples * 1e9,
        "reader_cpu_ns_per_tuple": found.reader_cpu / tuples * 1e9,
        "tuples": found.tuples,
        "place": f"partials of {place.window}" if place.window else f"after {place.after}",
        "columns": list(place.columns),
        "reason": found.placement.reason,
        "rows_bytes_per_tuple": _of_rows(found.placement),
        "places": [_told(measured) for measured in found.placement.measured],
    }


def _of_rows(placement: Placement) -> float | None:
    """The fewest bytes of a place that keeps rows, in the sample that the place was chosen by."""
    return min((place.bytes_per_row for place in placement.measured if place.place.window is None), default=None)


def _told(measured: PlaceMeasured) -> dict[str, Any]:
    return {**asdict(measured.place), "bytes_per_tuple": measured.bytes_per_row, "plain": measured.plain_per_row}


def _against(row: Row, rows: Sequence[Row]) -> dict[str, Any]:
    """The row with its factors over no-opt of the same query."""
    [base] = [other for other in rows if other["query"] == row["query"] and other["configuration"] == "no-opt"]

    def over(one: float | None, other: float | None) -> float | None:
        return one / other if one is not None and other else None

    return {
        **row,
        "reduction": over(base["bytes_per_tuple"], row["bytes_per_tuple"]),
        "rows_reduction": over(base["bytes_per_tuple"], row["rows_bytes_per_tuple"]),
        "speedup": over(row["tuples_per_s"], base["tuples_per_s"]),
    }


def _bars(rows: Sequence[Row]) -> list[Bar]:
    """The factor in bytes per query. The paper's is in throughput, where its disk is the bottleneck."""
    both = {row["query"]: row for row in rows if row["configuration"] == "both-lossless"}
    return [
        at_least(f"{query}: bytes of no-opt over those of both-lossless", row["reduction"], _TIMES)
        for query, row in both.items()
    ]


def _notes(pace: MeasuringPlan, in_memory: bool) -> list[str]:
    without = "in memory (a tmpfs)" if in_memory else "on the disk (there is no tmpfs with room)"
    return [
        "Bytes per tuple are those of the p-units of the p-stream, files with all that is in them, over the tuples that"
        " entered; 'with state' adds the p-units of the windows' state, which both fragments make durable every epoch.",
        "Tuples per second are those that entered over the time until the reader had committed all of them; writer and"
        f" reader share the machine. Each run measured {pace.seconds:g} s after a warm-up, in"
        f" epochs of {pace.latency:g} s.",
        "The input repeats the samples of the real datasets at their own times, each round with its rows in another"
        " random order (generated datasets: with another seed), so that no codec profits from the repetition.",
        "The paper's push-up stops at filters and projections. Here the stream may also hold partial aggregates per"
        " second of event time; those are sums and counts, which a lossy column's error does not apply to. 'rows'"
        " is what the best place without partials would have saved, in the sample of rows that the place is chosen by.",
        f"both-lossy rounds float columns by at most {_MAX_ERROR}; YSB, NQ and SM have none and are left out there.",
        f"both-no-disk has its store {without}, unsynced.",
    ]


def _plot(figure: Figure, rows: Sequence[Row]) -> None:

    above, below = figure.subplots(2, 1, sharex=True)
    shown: tuple[tuple[Any, str, str], ...] = (
        (above, "bytes_per_tuple", "persisted bytes per tuple"),
        (below, "tuples_per_s", "tuples/s"),
    )
    for axes, value, label in shown:
        grouped_bars(axes, rows, group="query", series="configuration", value=value, ylabel=label, log=True)
        legend = axes.get_legend()
        if legend is not None:
            legend.remove()
    handles, labels = above.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=6, fontsize=9)


EXPERIMENT = Experiment(
    name="data-reduction",
    title="Persisted bytes and throughput with push-up and compression, apart and together",
    figure="Scabbard, Fig. 11",
    needs="Java 17; a disk that syncs; a tmpfs for the configuration without disk",
    run=run,
)
