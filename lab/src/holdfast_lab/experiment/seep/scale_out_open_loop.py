"""Experiment `scale-out-open-loop`, Fig. 8 of SEEP: a map/reduce ranking whose input outgrows one partition.

Page views come at a rate that rises beyond what one partition of the reducer can do. Nobody slows the source down:
views that were not read within a bound are discarded. The same input runs with the autoscaler and without, in turns.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from holdfast_lab.experiment.definition import Bar, Experiment, Figure, Result, Row, Settings, at_least, at_most
from holdfast_lab.experiment.plots import COLOURS
from holdfast_lab.experiment.seep.rising_input import Ramp
from holdfast_lab.experiment.seep.scaling_queries import page_views
from holdfast_lab.experiment.seep.scaling_runs import (
    Capacity,
    ScalingRun,
    capacity,
    disturbed,
    put_under_load,
    relative,
    session,
)

__all__ = ["EXPERIMENT"]

_THRESHOLD = 0.7
_PATIENCE = 2.5
_LOW, _HIGH = 0.4, 1.3
_MOST = 4
_STEP = 2.0
_PERIOD = 3.0
_VARIANTS = ("autoscaled", "one partition")
_PAPER = (
    {
        "variant": "autoscaled",
        "input_at_end_tuples_per_s": 550_000,
        "throughput_at_end_tuples_per_s": 550_000,
        "source": "SEEP, §6.1: it scales out until it can sustain the incoming rate",
    },
)


def run(settings: Settings) -> Result:

    load = page_views(settings.seed, window_s=settings.pick(quick=5, full=30))
    rise, hold = settings.pick(quick=(16.0, 18.0), full=(60.0, 90.0))
    rounds = settings.pick(quick=1, full=2)
    stories: dict[str, list[ScalingRun]] = {variant: [] for variant in _VARIANTS}
    with session(_MOST) as spark:
        full = capacity(spark, load, settings.work / "capacity", settings.pick(quick=10.0, full=20.0))
        settings.say(f"one partition: {full}")
        ramp = Ramp(_LOW * full.rows_per_cpu_s, _HIGH * full.rows_per_cpu_s, rise, hold)
        scaling = relative(
            _THRESHOLD, full, most=_MOST,
            report=settings.pick(quick=2.0, full=5.0), cooldown=settings.pick(quick=4.0, full=15.0),
        )  # fmt: skip
        for number in range(rounds):
            for variant in _VARIANTS:
                settings.say(f"{variant}: {ramp.low:,.0f} to {ramp.high:,.0f} views/s within {ramp.seconds:g} s")
                story = put_under_load(
                    spark, load, ramp, settings.work / f"{variant}-{number}",
                    scaling=scaling if variant == "autoscaled" else None, patience=_PATIENCE,
                )  # fmt: skip
                for told in story.to_json():
                    settings.say(f"  {told['at']:.1f} s: {told['told']}")
                stories[variant].append(story)
    rows = [_row(variant, stories[variant]) for variant in _VARIANTS]
    timelines = {variant: stories[variant][0].timeline(_STEP) for variant in _VARIANTS}
    return Result(
        keys=("variant",),
        rows=rows,
        paper=_PAPER,
        bars=_bars(rows),
        notes=[*_notes(full, scaling.threshold, settings), *disturbed(row["others_cpu"] for row in rows)],
        plot=lambda figure: _plot(figure, timelines),
        also={
            "capacity_tuples_per_s": full.rows_per_s,
            "capacity_cpu": full.use,
            "timelines": timelines,
            "cpu_of_partitions": {variant: stories[variant][0].use(_PERIOD) for variant in _VARIANTS},
            "decisions": {variant: [story.to_json() for story in stories[variant]] for variant in _VARIANTS},
        },
    )


def _row(variant: str, stories: Sequence[ScalingRun]) -> dict[str, Any]:
    """Medians over the rounds; the end is the last third of the time in which the rate does not rise any more."""
    ramp = stories[0].ramp
    begin = ramp.rise + ramp.hold * 2 / 3
    ends = [story.throughput(begin, ramp.seconds) for story in stories]
    return {
        "variant": variant,
        "rounds": len(stories),
        "input_at_end_tuples_per_s": ramp.high,
        "throughput_at_end_tuples_per_s": median(ends),
        "sustained_percent": 100 * median(ends) / ramp.high,
        "dropped_percent": 100 * median(story.dropped / ramp.rows for story in stories),
        "dropped_tuples": median(story.dropped for story in stories),
        "committed_tuples": median(story.rows for story in stories),
        "partitions": median(story.partitions for story in stories),
        "reading_tasks": median(len(story.epochs[-1].reading) for story in stories),
        "changes": median(story.changes for story in stories),
        "others_cpu": median(story.others for story in stories),
        "all_accounted_for": all(story.rows + story.dropped == ramp.rows for story in stories),
    }


def _bars(rows: Sequence[Row]) -> list[Bar]:
    scaled, fixed = rows
    gain = scaled["throughput_at_end_tuples_per_s"] / max(1.0, fixed["throughput_at_end_tuples_per_s"])
    lost = scaled["dropped_tuples"] / fixed["dropped_tuples"] if fixed["dropped_tuples"] else None
    return [
        at_least("throughput at the end, autoscaled by one partition", gain, 1.2),
        at_most("rows dropped, autoscaled by one partition", lost, 0.75),
        at_least("partitions at the end", scaled["partitions"], 2),
    ]


def _notes(full: Capacity, threshold: float, settings: Settings) -> list[str]:
    return [
        f"Initially one partition and one task that reads. One partition was measured first: {full}. The rate rises"
        f" so far that the reducer needs {_LOW:g} CPUs at first and {_HIGH:g} at the end. Views that have waited"
        f" {_PATIENCE:g} s when an epoch is planned are dropped; every view is either committed or counted as dropped.",
        f"The threshold is {_THRESHOLD:.0%} of what the partition used at full load, {threshold:.2f} of a CPU by the"
        " clock: an epoch is read, assembled and committed in turns, and the operator cannot use more than its turn.",
        "The reducer is plain Python, row by row, and gets raw rows: no partial aggregates are made before it. It"
        f" counts the views of each page; the ranking of each {settings.pick(quick=5, full=30)} s comes after it, in"
        " one partition, as the paper's sink does it.",
        "Partitions are tasks on the cores there are, not machines: with two cores, two partitions can do almost twice"
        " as much as one, and a third has no core of its own. What else runs on the machine takes from both variants;"
        " they run in turns.",
        "The paper starts with a constant rate far above what it can do, on 18 sources and up to some dozens of VMs.",
    ]


def _plot(figure: Figure, timelines: Mapping[str, Sequence[Row]]) -> None:

    above, below = figure.subplots(2, 1, sharex=True, height_ratios=(3, 2))
    first = next(iter(timelines.values()))
    above.plot([row["second"] for row in first], [row["input_tuples_per_s"] / 1e3 for row in first],
               color="black", linestyle="--", label="input")  # fmt: skip
    for place, (variant, rows) in enumerate(timelines.items()):
        seconds = [row["second"] for row in rows]
        committed = [row["throughput_tuples_per_s"] / 1e3 for row in rows]
        above.plot(seconds, committed, color=COLOURS[place], label=f"{variant}, throughput")
        dropped = [row["dropped_tuples_per_s"] / 1e3 for row in rows]
        above.plot(seconds, dropped, color=COLOURS[place], linestyle=":", label=f"{variant}, dropped")
        partitions = [row["partitions"] for row in rows]
        below.step(seconds, partitions, where="post", color=COLOURS[place], label=variant)
    above.set_ylabel("thousand tuples/s")
    above.legend(fontsize=9)
    below.set_ylabel("partitions of reduce")
    below.set_xlabel("seconds since the beginning of the input")
    below.set_ylim(bottom=0)
    below.yaxis.get_major_locator().set_params(integer=True)
    below.legend()


EXPERIMENT = Experiment(
    name="scale-out-open-loop",
    title="Throughput and loss while the input outgrows one partition, with and without scaling",
    figure="SEEP, Fig. 8",
    needs="Java 17",
    run=run,
)
