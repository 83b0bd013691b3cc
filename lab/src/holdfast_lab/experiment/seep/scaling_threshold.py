"""Experiment `threshold`, Fig. 9 of SEEP: partitions and latency by the threshold of the scaling policy.

The toll query of Linear Road on input that rises beyond what one partition can do, from one partition on, once for each
threshold. A low one splits early and often; a high one waits until the operator is close to overload.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from holdfast_lab.experiment.definition import Bar, Experiment, Figure, Result, Row, Settings, at_least
from holdfast_lab.experiment.plots import COLOURS
from holdfast_lab.experiment.seep.rising_input import Ramp
from holdfast_lab.experiment.seep.scaling_queries import linear_road
from holdfast_lab.experiment.seep.scaling_runs import (
    Capacity,
    ScalingRun,
    capacity,
    disturbed,
    put_under_load,
    relative,
    session,
)

__all__ = ["EXPERIMENT", "LONGEST", "figures"]

_LOW, _HIGH = 0.2, 0.95  # of a CPU: one partition comes to about 0.75 by the clock, two to a bit more than 1
_MOST = 6
_SETTLED = 2.0
LONGEST = 1.8
"""A run that is so far behind is ended: by this many times the time of its input."""
_SOURCE = "SEEP, §6.1: 50 % to 70 % is the best trade-off; the curves are in Fig. 9 only"
_PAPER = tuple(
    {"threshold_percent": percent, "latency_p50_ms": None, "best_trade_off": True, "source": _SOURCE}
    for percent in (50, 60, 70)
)


def run(settings: Settings) -> Result:

    percents = settings.pick(quick=(10, 30, 50, 70, 90), full=(10, 20, 30, 40, 50, 60, 70, 80, 90))
    rise, hold = settings.pick(quick=(9.0, 5.0), full=(60.0, 30.0))
    load = linear_road(settings.seed)
    rows, timelines, decisions = [], {}, {}
    with session(_MOST) as spark:
        full = capacity(spark, load, settings.work / "capacity", settings.pick(quick=7.0, full=20.0))
        settings.say(f"one partition: {full}")
        ramp = Ramp(_LOW * full.rows_per_cpu_s, _HIGH * full.rows_per_cpu_s, rise, hold)
        for percent in percents:
            settings.say(f"threshold {percent} %: {ramp.low:,.0f} to {ramp.high:,.0f} reports/s")
            scaling = relative(
                percent / 100, full, most=_MOST, sources=False,
                report=settings.pick(quick=1.0, full=5.0), cooldown=settings.pick(quick=2.5, full=15.0),
            )  # fmt: skip
            story = put_under_load(
                spark, load, ramp, settings.work / f"at-{percent}", scaling=scaling, max_seconds=LONGEST * ramp.seconds
            )
            rows.append({"threshold_percent": percent, "threshold_cpu": scaling.threshold, **figures(story)})
            timelines[str(percent)] = story.timeline(1.0)
            decisions[str(percent)] = story.to_json()
            for told in decisions[str(percent)]:
                settings.say(f"  {told['at']:.1f} s: {told['told']}")
    return Result(
        keys=("threshold_percent",),
        rows=rows,
        paper=_PAPER,
        bars=_bars(rows),
        notes=[*_notes(full), *disturbed(row["others_cpu"] for row in rows)],
        plot=lambda figure: _plot(figure, rows),
        also={"capacity_tuples_per_s": full.rows_per_s, "capacity_cpu": full.use, "timelines": timelines,
              "decisions": decisions},
    )  # fmt: skip


def figures(story: ScalingRun) -> dict[str, Any]:
    """What is compared of a run: partitions at its end, and the latency of rows after the first epochs."""
    p50, p95 = story.latency_ms(50, 95, since=_SETTLED)
    return {
        "partitions": story.partitions,
        "changes": story.changes,
        "latency_p50_ms": p50,
        "latency_p95_ms": p95,
        "committed_percent": 100 * story.rows / story.ramp.rows,
        "others_cpu": story.others,
        "behind_s": max(0.0, story.epochs[-1].at - story.ramp.seconds),
    }


def _bars(rows: Sequence[Row]) -> list[Bar]:
    lowest, highest = rows[0], rows[-1]
    more = lowest["partitions"] - highest["partitions"]
    rising = sum(after["partitions"] > before["partitions"] for before, after in pairwise(rows))
    return [
        at_least(
            f"partitions at {lowest['threshold_percent']} % less those at {highest['threshold_percent']} %", more, 1
        ),
        at_least("steps in which a higher threshold takes no more partitions", len(rows) - 1 - rising, len(rows) - 1),
    ]


def _notes(full: Capacity) -> list[str]:
    return [
        f"One partition was measured first: {full}. The input rises so far that the operator needs {_LOW:g} CPUs at"
        f" first and {_HIGH:g} at the end, and stays there; no report is dropped. A threshold"
        " of 100 % is the CPU that the partition used at full load.",
        f"Latency is from when a row was due to the commit of its epoch, over all rows after the first {_SETTLED:g} s."
        f" `behind_s` is how long after the last row was due it was committed. A run that takes {LONGEST:g} times as"
        " long as its input is ended; `committed_percent` is then below 100.",
        f"At most {_MOST} partitions are allowed. They are tasks on the cores there are: with two cores a third"
        " partition brings no more CPU, only more tasks to start in every epoch. The paper's partitions are machines.",
        "The toll calculator is plain Python, row by row, by highway, direction and segment; other operators of Linear"
        " Road are left out. The number of tasks that read is fixed at 1.",
    ]


def _plot(figure: Figure, rows: Sequence[Row]) -> None:

    axes = figure.subplots()
    at = [row["threshold_percent"] for row in rows]
    axes.bar(at, [row["partitions"] for row in rows], 5, color=COLOURS[5], label="partitions at the end")
    axes.set_xlabel("threshold, % of what a partition uses at full load")
    axes.set_ylabel("partitions")
    axes.axvspan(50, 70, color=COLOURS[6], alpha=0.15, label="best in the paper")
    right = axes.twinx()
    right.plot(at, [row["latency_p50_ms"] for row in rows], "o-", color=COLOURS[0], label="median latency")
    right.plot(at, [row["latency_p95_ms"] for row in rows], "s--", color=COLOURS[3], label="95th percentile")
    right.set_ylabel("latency, ms")
    right.set_ylim(bottom=0)
    handles = [side.get_legend_handles_labels() for side in (axes, right)]
    axes.legend(handles[0][0] + handles[1][0], handles[0][1] + handles[1][1], loc="upper right")


EXPERIMENT = Experiment(
    name="threshold",
    title="Partitions and latency by the scaling threshold",
    figure="SEEP, Fig. 9",
    needs="Java 17",
    run=run,
)
