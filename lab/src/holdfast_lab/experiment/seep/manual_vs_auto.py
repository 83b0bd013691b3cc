"""Experiment `manual-vs-auto`, Fig. 10 of SEEP: fixed numbers of partitions against the autoscaler.

The toll query of Linear Road on the same rising input, with each number of partitions that a person might choose, and
from one partition on with the autoscaler. The best number by hand is the least one that keeps the latency low.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from holdfast_lab.experiment.definition import Bar, Experiment, Figure, Result, Row, Settings, at_most
from holdfast_lab.experiment.plots import COLOURS
from holdfast_lab.experiment.seep.rising_input import Ramp
from holdfast_lab.experiment.seep.scaling_queries import linear_road
from holdfast_lab.experiment.seep.scaling_runs import Capacity, capacity, disturbed, put_under_load, relative, session
from holdfast_lab.experiment.seep.scaling_threshold import LONGEST, figures

__all__ = ["EXPERIMENT", "best_by_hand"]

_LOW, _HIGH = 0.2, 0.95  # of a CPU: one partition comes to about 0.75 by the clock, two to a bit more than 1
_THRESHOLD = 0.7
_MOST = 6
_AS_GOOD = 1.25
_AUTO = "autoscaled"
_SOURCE = "SEEP, §6.1 and Fig. 10"


def run(settings: Settings) -> Result:

    counts = settings.pick(quick=(1, 2, 3, 4), full=(1, 2, 3, 4, 5, 6))
    rise, hold = settings.pick(quick=(9.0, 5.0), full=(60.0, 60.0))
    load = linear_road(settings.seed)
    rows: dict[int, dict[str, Any]] = {}
    with session(_MOST) as spark:
        full = capacity(spark, load, settings.work / "capacity", settings.pick(quick=7.0, full=20.0))
        settings.say(f"one partition: {full}")
        ramp = Ramp(_LOW * full.rows_per_cpu_s, _HIGH * full.rows_per_cpu_s, rise, hold)
        scaling = relative(
            _THRESHOLD, full, most=_MOST, sources=False,
            report=settings.pick(quick=1.0, full=5.0), cooldown=settings.pick(quick=2.5, full=15.0),
        )  # fmt: skip
        for count in (*counts[:2], 0, *counts[2:]):
            name = f"{count} by hand" if count else _AUTO
            settings.say(f"{name}: {ramp.low:,.0f} to {ramp.high:,.0f} reports/s")
            story = put_under_load(
                spark, load, ramp, settings.work / name.replace(" ", "-"),
                partitions=count or 1, scaling=None if count else scaling, max_seconds=LONGEST * ramp.seconds,
            )  # fmt: skip
            rows[count] = {"allocation": name, **figures(story)}
            for told in story.to_json():
                settings.say(f"  {told['at']:.1f} s: {told['told']}")
    by_hand, auto = [rows[count] for count in counts], rows[0]
    best = best_by_hand(by_hand)
    return Result(
        keys=("allocation",),
        rows=[*by_hand, auto],
        paper=_paper(str(best["allocation"])),
        bars=_bars(auto, best),
        notes=[*_notes(full, best), *disturbed(row["others_cpu"] for row in rows.values())],
        plot=lambda figure: _plot(figure, by_hand, auto, best),
        also={"capacity_tuples_per_s": full.rows_per_s, "capacity_cpu": full.use, "best_by_hand": best["allocation"],
              "more_percent": 100 * (auto["partitions"] / best["partitions"] - 1)},
    )  # fmt: skip


def best_by_hand(rows: Sequence[Row]) -> Row:
    """The fewest partitions whose 95th percentile of the latency is not far above the least of all."""
    least = min(row["latency_p95_ms"] for row in rows)
    good = [row for row in rows if row["latency_p95_ms"] <= _AS_GOOD * least]
    return min(good, key=lambda row: int(row["partitions"]))


def _paper(best: str) -> tuple[Row, ...]:
    return (
        {"allocation": _AUTO, "partitions": 25, "latency_p50_ms": 101, "latency_p95_ms": 714, "source": _SOURCE},
        {"allocation": best, "partitions": 20, "latency_p50_ms": None, "latency_p95_ms": None, "source": _SOURCE},
    )


def _bars(auto: Row, best: Row) -> list[Bar]:
    return [
        at_most(
            "partitions, autoscaled by the best number by hand (paper: 1.25)",
            auto["partitions"] / best["partitions"],
            1.5,
        ),
        at_most("median latency, autoscaled by the best by hand", auto["latency_p50_ms"] / best["latency_p50_ms"], 1.5),
    ]


def _notes(full: Capacity, best: Row) -> list[str]:
    return [
        f"One partition was measured first: {full}. The input rises so far that the operator needs {_LOW:g} CPUs at"
        f" first and {_HIGH:g} at the end, and stays there; no report is dropped.",
        f"The threshold is {_THRESHOLD:.0%} of the CPU the partition used.",
        f"The best number by hand is the least one whose 95th percentile is at most {_AS_GOOD:g} times the least of"
        f" all: {best['allocation']}. The paper's 20 and 25 are VMs of the whole query.",
        "By hand all partitions are there from the beginning; the autoscaler begins with one, and its latency includes"
        " what it took to notice and to change.",
        "Latency is from when a row was due to the commit of its epoch. Partitions are tasks on the cores there are:"
        " with two cores, more than two bring no more CPU, so the best number by hand cannot be much above two.",
    ]


def _plot(figure: Figure, rows: Sequence[Row], auto: Row, best: Row) -> None:

    axes = figure.subplots()
    at = [row["partitions"] for row in rows]
    for name, label, colour, mark in (
        ("latency_p50_ms", "median", COLOURS[0], "o-"),
        ("latency_p95_ms", "95th percentile", COLOURS[3], "s--"),
    ):
        axes.plot(at, [row[name] for row in rows], mark, color=colour, label=f"by hand, {label}")
        axes.scatter([auto["partitions"]], [auto[name]], s=160, marker="*", color=colour, label=f"autoscaled, {label}")
    axes.axvline(best["partitions"], color=COLOURS[6], linestyle=":", label="best by hand")
    axes.set_xlabel("partitions")
    axes.set_ylabel("latency, ms")
    axes.set_ylim(bottom=0)
    axes.set_xticks(range(1, 1 + max(*at, auto["partitions"])))
    axes.legend()


EXPERIMENT = Experiment(
    name="manual-vs-auto",
    title="Latency with partitions chosen by hand, and by the autoscaler",
    figure="SEEP, Fig. 10",
    needs="Java 17",
    run=run,
)
