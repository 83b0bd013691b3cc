"""Experiment `unaligned-checkpoints`, Fig. 9 of Scabbard: checkpoints of state alone, and of streams along with state.

YSB, as in the paper, by the size of a batch, which is an epoch here. *Aligned* checkpoints hold the state of the
windows at a boundary between epochs, and the input is read again after a failure. *Unaligned* ones persist the rows
between source and windows, too, as a log would have them; Holdfast's p-stream does the same after push-up and
compression. Flink takes both kinds by its own protocol.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any

from pyspark.sql import SparkSession

from holdfast.connect.base import Source
from holdfast.connect.sinks.file_sink import parquet
from holdfast.engine.fragment_runs import FragmentsRun
from holdfast.engine.observer import Observer
from holdfast.engine.options import RunOptions
from holdfast.engine.spark_platform import SparkPlatform
from holdfast.epoch.report import EpochReport
from holdfast.errors import HoldfastError
from holdfast.graph.policies import DELTA
from holdfast_lab.bench.bench_figures import Meter
from holdfast_lab.bench.query_runs import session
from holdfast_lab.experiment.definition import Bar, Experiment, Figure, Result, Row, Settings, at_least, at_most
from holdfast_lab.experiment.plots import COLOURS, MARKERS, readable
from holdfast_lab.experiment.scabbard.query_engines import flink_lines, latency_columns, load_of
from holdfast_lab.experiment.scabbard.varied_input import varied
from holdfast_lab.experiment.time_limit import TimeLimit
from holdfast_lab.workloads.flink_run import run_flink
from holdfast_lab.workloads.queries import query

__all__ = ["ALIGNED", "EXPERIMENT", "P_STREAM", "ROWS", "BatchFigures", "measure"]

ALIGNED, ROWS, P_STREAM = "aligned", "unaligned, rows", "unaligned, p-stream"
_PERSIST: dict[str, dict[str, Any] | None] = {
    ALIGNED: None,
    ROWS: {"push_up": False, "compress": False},
    P_STREAM: {"push_up": True, "compress": True},
}
_FLINK = {"flink, aligned": False, "flink, unaligned": True}
_FLINK_KB = 32
"""A buffer of its network, which is what Flink makes a batch of."""

_SIZES_KB = (64, 256, 1_024, 4_096, 16_384, 65_536)
_QUICK_SIZES_KB = (256, 4_096)
_QUICK_SECONDS, _FULL_SECONDS = 75.0, 1_500.0
_WAITING_BATCHES = 8
"""So many batches may wait between the writer of a p-stream and its reader."""
_QUERY = "YSB"
_SOURCE = "Scabbard, §6.4 and Fig. 9"


@dataclass(frozen=True, slots=True)
class BatchFigures:
    """What a run gave after its warm-up. Latencies are from the plan of a batch to the commit that has it in the
    windows; a checkpoint's time is what the syncs of tasks and the commit take, in all fragments that a batch goes
    through."""

    tuples: int
    seconds: float
    latencies: list[float]
    checkpoint_seconds: float
    state_bytes: int
    stream_bytes: int
    epochs: int

    @staticmethod
    def of(reports: Sequence[EpochReport], began: float, first: str) -> BatchFigures:
        """`first` is the fragment that reads the source; what it has written must also have been read."""
        entering = [report for report in reports if report.fragment == first]
        behind = [report for report in reports if report.fragment != first]
        counted = [report for report in reports if report.committed > began]
        here = [report for report in entering if report.committed > began]
        done = _contained(entering, behind) if behind else [report.committed for report in entering]
        latencies = [
            commit - report.started
            for report, commit in zip(entering, done, strict=True)
            if commit is not None and report.committed > began
        ]
        fragments = {report.fragment for report in counted}
        return BatchFigures(
            tuples=sum(report.entered for report in here),
            seconds=max((report.committed for report in counted), default=began) - began,
            latencies=latencies,
            checkpoint_seconds=sum(_checkpoint([one for one in counted if one.fragment == name]) for name in fragments),
            state_bytes=sum(report.written_bytes - report.streamed_bytes for report in counted),
            stream_bytes=sum(report.streamed_bytes for report in counted),
            epochs=len(here),
        )


def _contained(writing: Sequence[EpochReport], reading: Sequence[EpochReport]) -> list[float | None]:
    """When the rows of each epoch of a writer were committed by the reader of its p-stream."""
    found: list[float | None] = []
    written = read = 0
    left = iter(reading)
    last: float | None = None
    for report in writing:
        written += report.streamed_rows
        while read < written and (one := next(left, None)) is not None:
            read, last = read + one.rows, one.committed
        found.append(last if read >= written else None)
    return found


def _checkpoint(reports: Sequence[EpochReport]) -> float:
    return mean(report.times.sync + report.times.commit for report in reports if report.times is not None)


def run(settings: Settings) -> Result:

    seconds = settings.pick(quick=1.5, full=8.0)
    sizes = settings.pick(quick=_QUICK_SIZES_KB, full=_SIZES_KB)
    limit = TimeLimit(settings.pick(quick=_QUICK_SECONDS, full=_FULL_SECONDS))
    rows: list[dict[str, Any]] = []
    asked = query(_QUERY)
    with session("holdfast") as spark:
        source = varied(asked.dataset, settings.seed).source(settings.work / "input")
        for size in sizes:
            for way in _PERSIST:
                if limit.allows(f"{way} with {size} kB"):
                    settings.say(f"{way}: batches of {size} kB")
                    ran = measure(spark, source, way, size, settings.work / f"{way}-{size}", seconds)
                    rows.append(_row(way, size, ran))
    notes = [*_notes(seconds), *limit.notes()]
    if not settings.quick:
        rows += _on_flink(settings, notes)
    return Result(
        keys=("way", "batch_kb"),
        rows=rows,
        paper=[
            {"way": ALIGNED, "says": "Flink++ is 5 times slower than Scabbard-Chk, with 6 times the checkpoint time"
             " beyond 1 MB", "source": _SOURCE},
            {"way": ROWS, "says": "100 times the bytes of aligned checkpoints", "source": _SOURCE},
        ],
        bars=_bars(rows, sizes),
        notes=notes,
        plot=lambda figure: _plot(figure, rows),
        shown=("tuples_per_s", "latency_p50_ms", "latency_p95_ms", "checkpoint_ms", "bytes_per_tuple",
               "checkpoint_kb"),
    )  # fmt: skip


def measure(
    spark: SparkSession, source: Source, way: str, batch_kb: int, place: Path, seconds: float, warm_epochs: int = 6
) -> BatchFigures:
    """Run YSB in epochs of one size, and until what was written to a p-stream has been read."""

    asked = query(_QUERY)
    size, persist = max(1, batch_kb * 1_024 // asked.tuple_bytes), _PERSIST[way]
    if persist is not None:
        persist = {**persist, "budget": max(1 << 20, _WAITING_BATCHES * batch_kb * 1_024)}
    pipeline = asked.build(source, parquet(place / "out"), persist=persist)
    options = RunOptions(
        store=place / "store", latency=60.0, least_rows=size, most_rows=size, until_idle=True, checkpoint=DELTA
    )
    reports: list[EpochReport] = []
    meter = Meter(seconds, warm_epochs=warm_epochs)

    class CheckpointMeter(Observer):
        def epoch_committed(self, report: EpochReport) -> None:
            reports.append(report)
            if report.fragment == first:
                meter.epoch_committed(report)

    try:
        running = FragmentsRun(pipeline, SparkPlatform(spark), options, observer=CheckpointMeter())
        [first] = [fragment.name for fragment in running.cuts.fragments if fragment.writes or persist is None]
        meter.stop = running.runs[first].stop  # a reader goes on until nothing is left
        running.run()
        began = meter.reports[meter.warm - 1].committed if meter.warm else float("inf")
        return BatchFigures.of(reports, began, first)
    finally:
        shutil.rmtree(place, ignore_errors=True)


def _row(way: str, size: int, found: BatchFigures) -> dict[str, Any]:

    tuples, epochs = max(1, found.tuples), max(1, found.epochs)
    return {
        "way": way,
        "batch_kb": size,
        "tuples_per_s": found.tuples / found.seconds if found.seconds else None,
        **latency_columns(found.latencies),
        "checkpoint_ms": 1e3 * found.checkpoint_seconds,
        "bytes_per_tuple": (found.state_bytes + found.stream_bytes) / tuples,
        "stream_bytes_per_tuple": found.stream_bytes / tuples,
        "checkpoint_kb": (found.state_bytes + found.stream_bytes) / epochs / 1e3,
        "checkpoints": found.epochs,
    }


def _on_flink(settings: Settings, notes: list[str]) -> list[dict[str, Any]]:
    """Both kinds of checkpoints on Flink, a checkpoint every second; without Flink, a note."""

    seconds, load = 10.0, load_of(_QUERY, settings.seed)
    rows: list[dict[str, Any]] = []
    for way, unaligned in _FLINK.items():
        place = settings.work / way.replace(", ", "-")
        settings.say(way)
        try:
            lines = flink_lines(load, place / "input", 40_000_000_000)
            ran = run_flink(place, _QUERY, lines, seconds, checkpoints=True, unaligned=unaligned)
        except HoldfastError as error:
            notes.append(f"{way}: it could not be run ({error}).")
            continue
        finally:
            shutil.rmtree(place, ignore_errors=True)
        known = ran.checkpoints
        written = sum(one.written_bytes for one in known)
        rows.append(
            {
                "way": way,
                "batch_kb": _FLINK_KB,
                "tuples_per_s": ran.tuples_per_s,
                "checkpoint_ms": 1e3 * mean(one.seconds for one in known) if known else None,
                "bytes_per_tuple": written / max(1, ran.tuples),
                "checkpoint_kb": written / len(known) / 1e3 if known else None,
                "checkpoints": len(known),
            }
        )
    return rows


def _bars(rows: Sequence[Row], sizes: Sequence[int]) -> list[Bar]:
    """Where the paper's text has figures: the bytes of aligned checkpoints, and what persisting a stream may cost."""
    by = {(row["way"], row["batch_kb"]): row for row in rows}
    found = []
    largest = max((size for size in sizes if all((way, size) in by for way in _PERSIST)), default=None)
    if largest is not None:
        aligned, plain, stream = (by[way, largest] for way in (ALIGNED, ROWS, P_STREAM))
        less = plain["bytes_per_tuple"] / aligned["bytes_per_tuple"] if aligned["bytes_per_tuple"] else None
        found.append(at_least(f"{largest} kB: bytes of unaligned checkpoints over aligned ones", less, 100.0))
        share = stream["tuples_per_s"] / plain["tuples_per_s"] if plain["tuples_per_s"] else None
        found.append(at_least(f"{largest} kB: throughput of the p-stream over that of plain rows", share, 1.0))
        cost = stream["bytes_per_tuple"] / plain["bytes_per_tuple"] if plain["bytes_per_tuple"] else None
        found.append(at_most(f"{largest} kB: bytes of the p-stream over those of plain rows", cost, 0.2))
    return found


def _notes(seconds: float) -> list[str]:
    return [
        f"YSB, which has tumbling windows. A batch is an epoch, all of the same size; {seconds:g} s after a warm-up.",
        "Latency is from the plan of a batch to the commit of the epoch that has it in its windows, unaligned that of"
        " the fragment behind the p-stream. The checkpoint's time is that of the syncs in tasks and of the commit;"
        " unaligned there are two fragments, and their times add up.",
        f"At most {_WAITING_BATCHES} batches (or 1 MB) wait between the fragments; beyond that the writer waits.",
        "The paper's 'aligned' is Flink's protocol in C++ (Flink++) with an exchange that waits for its barriers."
        " Holdfast has no barriers: an epoch's boundary is in its plan.",
    ]


def _plot(figure: Figure, rows: Sequence[Row]) -> None:

    shown = (
        ("tuples_per_s", "tuples/s"),
        ("latency_p50_ms", "latency, ms (median)"),
        ("checkpoint_ms", "checkpoint, ms"),
        ("bytes_per_tuple", "persisted bytes per tuple"),
    )
    ways = list(dict.fromkeys(row["way"] for row in rows))
    for axes, (value, label) in zip(figure.subplots(2, 2).flat, shown, strict=True):
        for place, way in enumerate(ways):
            own = [row for row in rows if row["way"] == way and row.get(value)]
            axes.plot(
                [row["batch_kb"] for row in own], [row[value] for row in own], label=way, color=COLOURS[place],
                marker=MARKERS[place],
            )  # fmt: skip
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_xlabel("batch, kB")
        axes.set_ylabel(label)
        readable(axes.yaxis)
        readable(axes.xaxis)
    figure.axes[0].legend(fontsize=8)


EXPERIMENT = Experiment(
    name="unaligned-checkpoints",
    title="Checkpoints of state alone and of streams along with state, by batch size",
    figure="Scabbard, Fig. 9",
    needs="Java 17; a disk that syncs; Flink from PyPI for its two rows (not with --quick)",
    run=run,
)
