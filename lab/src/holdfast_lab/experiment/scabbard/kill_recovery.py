"""Experiment `recovery`, Fig. 10 of Scabbard: throughput around a kill -9, and where the time to recover goes.

A query runs in a process of its own on input that arrives at half the greatest rate it can sustain. The process is
killed with its Java process and all Python workers in the middle of an epoch and started again at once; rows go on
arriving meanwhile. What it has put out at the end must equal what a run without a fault puts out.
"""

from __future__ import annotations

import pickle
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from pyspark.sql import SparkSession

from holdfast.connect.sinks.file_sink import parquet, read_output
from holdfast.engine.fragment_run import FragmentRun
from holdfast.engine.options import RunOptions
from holdfast.engine.spark_platform import SparkPlatform
from holdfast.graph.policies import DELTA
from holdfast_lab.bench.bench_figures import Meter, Reports
from holdfast_lab.bench.dense_input import dense
from holdfast_lab.bench.query_runs import session
from holdfast_lab.chaos.output_difference import compare
from holdfast_lab.chaos.victim import VictimSettings
from holdfast_lab.experiment.arriving_source import ArrivingSource
from holdfast_lab.experiment.definition import Bar, Experiment, Figure, Result, Row, Settings, at_most
from holdfast_lab.experiment.plots import COLOURS
from holdfast_lab.experiment.scabbard.kill_timeline import Kill, KillTimeline, run_with_kills
from holdfast_lab.experiment.scabbard.killed_run import KilledProcess, epoch_options
from holdfast_lab.workloads.queries import PAPER_QUERIES, query

__all__ = ["EXPERIMENT", "PreparedQuery", "prepare"]

_LATENCY = 0.2
_LEAST_ROWS = 200_000
_LIMIT_MS = 500.0
_BIN = 0.5
_PHASES = ("progress", "upstream request", "data", "replay")
_STEPS = (
    "python_ms",
    "session_ms",
    "warm_up_ms",
    "opening_ms",
    *(f"{phase.replace(' ', '_')}_ms" for phase in _PHASES),
)
_PAPER = (
    {
        "query": "LRB1",
        "start_ms": 360,
        "recovery_ms": 100,
        "flink_restart_ms": 38_000,
        "flink_recovery_ms": 2_000,
        "source": "Scabbard, §6.5",
    },
)


@dataclass(frozen=True, slots=True)
class PreparedQuery:
    """A query with what a run without a fault gave. `pause` is the time in which an epoch's rows arrive: twice what the
    epoch takes."""

    query: str
    source: Path
    expected: Path
    epochs: int
    epoch_rows: int
    rows_per_s: float

    @property
    def pause(self) -> float:
        return 2 * self.epoch_rows / self.rows_per_s


def run(settings: Settings) -> Result:

    names = settings.pick(quick=("LRB1",), full=PAPER_QUERIES)
    seconds = settings.pick(quick=32.0, full=52.0)
    kills = settings.pick(quick=1, full=2)
    with session("holdfast") as spark:
        prepared = []
        for name in names:
            settings.say(f"{name}: the greatest rate, and a run without a fault")
            prepared.append(prepare(spark, name, settings.work, seconds, settings.pick(quick=1.5, full=4.0)))
    chance = random.Random(settings.seed)
    told = {query.query: _struck(query, kills, chance, settings) for query in prepared}
    rows = [_row(query, *told[query.query]) for query in prepared]
    return Result(
        keys=("query",),
        rows=rows,
        paper=_PAPER,
        bars=_bars(rows),
        notes=_notes(kills),
        plot=lambda figure: _plot(figure, rows, told),
        shown=("input_tuples_per_s", "before_tuples_per_s", "after_tuples_per_s", "start_ms", "recovery_ms",
               "recovery_p50_ms", *_STEPS[3:], "replayed", "caught_up_s", "equal"),
        also={
            "timelines": {name: _timeline(story) for name, (story, _) in told.items()},
            "kills": {name: [struck.to_json() for struck in story.struck] for name, (story, _) in told.items()},
        },
    )  # fmt: skip


def prepare(spark: SparkSession, name: str, place: Path, seconds: float, pacing_seconds: float) -> PreparedQuery:
    """Find the size of an epoch that takes about the latency, and run an input that takes `seconds` to arrive."""

    asked = query(name)
    made = dense(asked.dataset)
    home = place / name
    meter = Meter(pacing_seconds, warm_epochs=8)
    pacing = FragmentRun(
        asked.build(made.source(place / "input"), parquet(home / "pacing-out"), pipeline_name="pacing"),
        SparkPlatform(spark),
        RunOptions(store=home / "pacing", latency=_LATENCY, least_rows=_LEAST_ROWS, overlap=False, checkpoint=DELTA),
        observer=meter,
    )
    meter.stop = pacing.stop
    pacing.run()
    measured = meter.measured()
    size = int(median(report.rows for report in measured))
    taken = median(report.committed - report.started for report in measured)
    epochs = max(8, round(seconds / (2 * taken)))
    bounded = made.source(place / "input", rows=epochs * size)
    fault_free = Reports()
    pipeline = asked.build(ArrivingSource(bounded, size, 0.0), parquet(home / "expected"), pipeline_name="victim")
    FragmentRun(
        pipeline,
        SparkPlatform(spark),
        epoch_options(home / "fault-free", size),
        observer=fault_free,
    ).run()
    ended = [report.committed for report in fault_free.epochs]
    pickled = home / "source.pickle"
    pickled.write_bytes(pickle.dumps(bounded))
    rate = size * (len(ended) - 3) / (ended[-1] - ended[2])
    return PreparedQuery(name, pickled, home / "expected", epochs, size, rate)


def _struck(prepared: PreparedQuery, kills: int, chance: random.Random, settings: Settings) -> tuple[KillTimeline, int]:
    """Run it with kills; what it told, and how many rows of its output are lost or too many."""

    settings.say(
        f"{prepared.query}: {prepared.epochs} epochs of {prepared.epoch_rows:,} rows, one every"
        f" {prepared.pause:.2f} s, and {kills} kill -9"
    )
    asked = VictimSettings(
        query=prepared.query,
        rows=prepared.epochs * prepared.epoch_rows,
        epoch_rows=prepared.epoch_rows,
        pause=prepared.pause,
        home=str(settings.work / prepared.query / "killed"),
        input=str(prepared.source),
    )
    share = prepared.epochs / kills
    plan = [
        Kill(
            epoch=round(share * (number + 0.2)),  # early in its share: there must be time to catch up
            latest=round(share * (number + 0.5)),
            seconds=chance.uniform(0.2, 0.8) * prepared.pause / 2,
            waited=prepared.pause,
        )
        for number in range(kills)
    ]
    story = run_with_kills(KilledProcess(asked, settings.work / "t"), plan, settings.say)
    difference = compare(read_output(asked.output, "parquet"), read_output(prepared.expected, "parquet"))
    return story, difference.lost + difference.duplicated


def _row(prepared: PreparedQuery, story: KillTimeline, wrong: int) -> dict[str, Any]:
    """Of the kill whose recovery took longest, and the median of all."""
    worst = max(story.struck, key=lambda struck: struck.recovery)
    before, after = story.throughput()
    return {
        "query": prepared.query,
        "max_tuples_per_s": prepared.rows_per_s,
        "input_tuples_per_s": prepared.rows_per_s / 2,
        "epoch_rows": prepared.epoch_rows,
        "kills": len(story.struck),
        "before_tuples_per_s": before,
        "after_tuples_per_s": after,
        "start_ms": worst.start * 1e3,
        "recovery_ms": worst.recovery * 1e3,
        "recovery_p50_ms": median(struck.recovery for struck in story.struck) * 1e3,
        **{step: seconds * 1e3 for step, seconds in zip(_STEPS, worst.steps(_PHASES), strict=True)},
        "replayed": worst.replayed,
        "loaded_units": worst.units,
        "loaded_bytes": worst.bytes,
        "caught_up_s": worst.caught_up,
        "wrong_rows": wrong,
        "equal": wrong == 0,
    }


def _bars(rows: Sequence[Row]) -> list[Bar]:
    slowest = [
        at_most(
            f"{row['query']}: recovery without process and JVM start, in ms, slowest kill",
            row["recovery_ms"],
            _LIMIT_MS,
        )
        for row in rows
    ]
    return [*slowest, at_most("rows lost or too many, all queries", sum(row["wrong_rows"] for row in rows), 0)]


def _notes(kills: int) -> list[str]:
    return [
        "Start of the process is from the fork of Python to a session whose workers have run a first small pipeline"
        " (python, session, warm up). Recovery is all from there to the commit of the last epoch that was planned"
        " before the kill: opening the store and taking the lease, then the four phases."
        f" Of {kills} kill(s) per query the slowest is shown.",
        f"The size of an epoch is what the query reads in {_LATENCY} s, since a planned epoch is run again as a whole;"
        f" by default epochs aim at 1 s, and recovery would take as long. It is {_LEAST_ROWS:,} rows at least.",
        "The kill comes while an epoch is in flight and the run keeps up with its input. The process is started again"
        " at once: failure detection is not counted, as in the paper.",
        "Rows arrive at half the rate of a run without a fault in epochs of the same size, also while nothing runs;"
        " what has waited is then worked off at full speed (after). The run has caught up when rows wait no more than"
        " twice as long as before the kill; no figure there means that the input ended first.",
        "The source can be read again, as a broker could; state is made durable with every epoch. The paper persists"
        " the ingress stream and checkpoints every second, on remote storage.",
        "Flink's 38 s and 2 s are the paper's, for the restart of its worker and the recovery of its state.",
    ]


def _timeline(story: KillTimeline) -> list[tuple[float, float]]:
    """Rows committed per second, in bins; time 0 is the first kill."""
    zero = story.struck[0].killed_at
    bins: dict[int, int] = {}
    for commit in story.commits:
        place = int((commit.committed - zero) // _BIN)
        bins[place] = bins.get(place, 0) + commit.rows
    return [(place * _BIN, bins.get(place, 0) / _BIN) for place in range(min(bins), max(bins) + 1)]


def _plot(figure: Figure, rows: Sequence[Row], told: dict[str, tuple[KillTimeline, int]]) -> None:
    """LRB1 over time, or whatever was run, and the steps of all queries stacked."""

    above, below = figure.subplots(2, 1)
    name = "LRB1" if "LRB1" in told else next(iter(told))
    story = told[name][0]
    times, rates = zip(*_timeline(story), strict=True)
    above.step(times, [rate / 1e6 for rate in rates], where="post", color=COLOURS[0], label=f"{name}, committed")
    for struck in story.struck:
        above.axvline(struck.killed_at - story.struck[0].killed_at, color="red", linestyle=":")
        above.axvline(struck.recovered_at - story.struck[0].killed_at, color=COLOURS[2], linestyle=":")
    [row] = [row for row in rows if row["query"] == name]
    above.axhline(row["input_tuples_per_s"] / 1e6, color=COLOURS[6], linewidth=1, label="arriving")
    above.set_xlabel("seconds since the kill (red); recovered (green)")
    above.set_ylabel("million tuples/s")
    above.legend()
    names = [row["query"] for row in rows]
    bottom = [0.0] * len(rows)
    for number, step in enumerate(_STEPS[3:]):
        heights = [row[step] for row in rows]
        below.bar(
            names, heights, 0.5, bottom=bottom, label=step.removesuffix("_ms").replace("_", " "), color=COLOURS[number]
        )
        bottom = [low + high for low, high in zip(bottom, heights, strict=True)]
    below.axhline(_LIMIT_MS, color="black", linestyle="--", linewidth=1)
    below.set_ylabel("recovery without start, ms")
    below.margins(x=max(0.05, 1 / len(rows)))
    handles, labels = below.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=5, fontsize=9)


EXPERIMENT = Experiment(
    name="recovery",
    title="Throughput before and after a kill -9, and the time to recover",
    figure="Scabbard, Fig. 10",
    needs="Java 17; a disk that syncs",
    run=run,
)
