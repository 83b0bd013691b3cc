"""Experiment `linear-road`, Figs. 6 and 7 of SEEP: the whole Linear Road benchmark while its traffic grows.

A closed loop: nothing may be lost, and every answer is checked. On a cluster of Spark workers on this machine the
autoscaler adds partitions and workers as the input grows; with `--kill` one of the workers is lost in the middle.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from holdfast.scale.pool import OwnCluster
from holdfast_lab.experiment.definition import Bar, Experiment, Figure, Result, Settings, at_least, at_most
from holdfast_lab.experiment.plots import COLOURS, lines
from holdfast_lab.experiment.seep.growing_traffic import (
    RampPlan,
    RampStory,
    at_full_speed,
    drive_up,
    growing_traffic,
    peak_rate,
)
from holdfast_lab.experiment.seep.scaling_runs import Capacity

__all__ = ["EXPERIMENT", "plan_of", "told"]

_SOURCE = "SEEP, §6.1 and Figs. 6 and 7"
_PARTS = 4
_CORES = 4
"""Slots of a Spark worker, of which a crew needs some to spare."""
_THRESHOLD = 0.7
_PEAK = 0.8
"""Of what one partition can do when all is there at once, in the longest epochs: two cores
do not carry much more in time, whoever shares them."""
_BINS = 60
_SHARES = {"latency_p50_ms": 0.5, "latency_p95_ms": 0.95, "latency_p99_ms": 0.99}
_LIMIT_MS = 5_000.0
_FOLLOWS = 0.95
"""Of the input that must come out in the last part."""


def plan_of(settings: Settings) -> RampPlan:
    """A ramp of three hours in an hour of traffic with three times the vehicles; the quick one in less."""

    kill = 0.5 if settings.kill else None
    if settings.quick:
        return RampPlan(settings.expressways or 4, minutes=15.0, speed=30.0, density=6.0, most=2, kill=kill)
    return RampPlan(settings.expressways or 8, minutes=60.0, speed=15.0, density=3.0, most=3, kill=kill)


def run(settings: Settings) -> Result:

    plan = plan_of(settings)
    traffic = growing_traffic(plan, settings.seed)
    settings.say("the answers are known; the cluster starts")
    with OwnCluster(1, 1, cores=_CORES) as cluster:
        cluster.session("holdfast experiment")
        full = at_full_speed(plan, traffic, cluster, settings.work / "full", settings.pick(quick=8.0, full=20.0))
        most = max(1, round(_PEAK * full.rows_per_s / peak_rate(traffic, plan)))
        plan = replace(plan, expressways=settings.expressways or most, threshold=min(1.0, _THRESHOLD * full.use))
        settings.say(
            f"one partition takes {full}; {plan.expressways} expressways, {plan.minutes:g} minutes of traffic in"
            f" {60 * plan.minutes / plan.speed:.0f} s"
        )
        story = drive_up(plan, traffic, cluster, settings.work / "road")
    return told(plan, story, full)


def told(plan: RampPlan, story: RampStory, full: Capacity) -> Result:
    """What a run showed; `full` is what one partition can do."""
    end = float(story.arrived[-1])
    edges = [end * number / _PARTS for number in range(_PARTS + 1)]
    rows = [_row(f"part {number + 1}", story, *edges[number : number + 2]) for number in range(_PARTS)]
    rows.append(_row("all", story, 0.0, end))
    timeline = _timeline(story, end)
    return Result(
        keys=("part",),
        rows=rows,
        paper=[
            {"part": "all", "latency_p50_ms": 153, "latency_p95_ms": 700, "latency_p99_ms": 1_459, "source": _SOURCE},
            {"part": "all", "workers": 50, "expressways": 350, "source": _SOURCE},
            {"part": f"part {_PARTS}", "input_tuples_per_s": 600_000, "source": f"{_SOURCE}, at the end"},
        ],
        bars=_bars(story, rows),
        notes=_notes(plan, story, full),
        plot=lambda figure: _plot(figure, story, timeline),
        also={
            "timeline": timeline,
            "decisions": [{"at": round(at, 2), "told": text} for at, text in story.decisions],
            "killed_at": story.killed,
            "one_partition": {"tuples_per_s": full.rows_per_s, "use": full.use},
        },
    )


def _row(part: str, story: RampStory, begin: float, end: float) -> dict[str, Any]:
    last = end == float(story.arrived[-1])
    latencies = story.latency_ms(*_SHARES.values(), begin=begin, end=float("inf") if last else end)
    return {
        "part": part,
        "expressways": story.expressways,
        "input_tuples_per_s": round(story.input_rate(begin, end)),
        "output_tuples_per_s": round(story.output_rate(begin, end)),
        "workers": story.workers_at(end),
        "partitions": story.partitions_at(end),
        **dict(zip(_SHARES, latencies, strict=True)),
        "late_answers": story.late_answers(begin, float("inf") if last else end),
    }


def _timeline(story: RampStory, end: float) -> list[dict[str, Any]]:
    step = end / _BINS
    found = []
    for number in range(_BINS):
        begin, until = number * step, (number + 1) * step
        latencies = story.latency_ms(*_SHARES.values(), begin=begin, end=until)
        found.append(
            {
                "second": round(begin, 2),
                "input_tuples_per_s": story.input_rate(begin, until),
                "output_tuples_per_s": story.output_rate(begin, until),
                "workers": story.workers_at(until),
                "partitions": story.partitions_at(until),
                **dict(zip(_SHARES, latencies, strict=True)),
            }
        )
    return found


def _bars(story: RampStory, rows: Sequence[dict[str, Any]]) -> list[Bar]:
    verdict = story.verdict
    wrong = None if verdict is None else sum((*verdict.missing.values(), *verdict.extra.values()))
    last, whole = rows[_PARTS - 1], rows[-1]
    follows = last["output_tuples_per_s"] / last["input_tuples_per_s"] if last["input_tuples_per_s"] else None
    late = story.late_answers(end=story.killed if story.killed is not None else float("inf"))
    found = [
        at_most("answers that are missing, double or wrong", wrong, 0),
        at_most("late answers" if story.killed is None else "late answers before the kill", late, 0),
        at_most("99th percentile of the latency, ms", whole["latency_p99_ms"], _LIMIT_MS),
        at_least("output over input in the last part", follows, _FOLLOWS),
        at_least("workers at the end", whole["workers"], 2),
    ]
    if story.killed is not None:
        found.append(at_most("longest time between commits after the kill, s", story.pause(story.killed), 5.0))
    return found


def _notes(plan: RampPlan, story: RampStory, full: Capacity) -> list[str]:
    notes = [
        f"{plan.minutes:g} minutes of the ramp of three hours, {plan.speed:g} times as fast as real time and with"
        f" {plan.density:g} times the vehicles, on {plan.expressways} expressways. SEEP's ramp was compressed, too; it"
        " had 50 machines, and here all workers share one.",
        f"One partition of each operator took {full.rows_per_s:,.0f} tuples/s when all were there at once, and the"
        f" busiest used {full.use:.2f} of a CPU by the clock. An operator is split at {_THRESHOLD:.0%} of that, for a"
        f" partition has no machine of its own here; the traffic grows to {_PEAK:.0%} of what one took, unless --l"
        " says otherwise.",
        "A worker is a Spark worker with an executor of its own. Latency is from the arrival of a row to the commit of"
        " the epoch that has its answer; it does not wait for the system.",
        "Every answer of every expressway was compared with the oracle's."
        if story.verdict is not None
        else "Not all rows were committed in time: answers were not compared.",
    ]
    if story.killed is not None:
        late = story.late_answers(begin=story.killed)
        notes.append(
            f"kill -9 of a worker with its executor and all it ran after {story.killed:.1f} s: the longest time between"
            f" commits from then on was {story.pause(story.killed):.2f} s, and {late:,} answers were late after it."
        )
    return notes


def _plot(figure: Figure, story: RampStory, timeline: Sequence[dict[str, Any]]) -> None:

    above, below = figure.subplots(2, 1, sharex=True)
    at = [row["second"] for row in timeline]
    rates = {"input": "input_tuples_per_s", "output": "output_tuples_per_s"}
    lines(
        above, {name: (at, [row[column] / 1e3 for row in timeline]) for name, column in rates.items()},
        xlabel="", ylabel="thousand tuples/s",
    )  # fmt: skip
    beside = above.twinx()
    for place, name in enumerate(("workers", "partitions"), start=2):
        beside.step(at, [row[name] for row in timeline], where="post", color=COLOURS[place], label=name, linestyle="--")
    beside.set_ylabel("workers, partitions of all operators")
    beside.set_ylim(bottom=0)
    beside.legend(loc="lower right")
    known = [row for row in timeline if row["latency_p50_ms"] is not None]
    series = {
        name.removeprefix("latency_").removesuffix("_ms"): (
            [row["second"] for row in known], [max(1.0, row[name]) for row in known],
        )
        for name in _SHARES
    }  # fmt: skip
    lines(below, series, xlabel="seconds", ylabel="latency, ms", log=True)
    for share, milliseconds in (("p50", 153), ("p99", 1_459)):
        below.axhline(milliseconds, color="black", linewidth=0.8, linestyle=":")
        below.text(0, milliseconds, f"the paper's {share}", fontsize=8, va="bottom")
    if story.killed is not None:
        for axes in (above, below):
            axes.axvline(story.killed, color="black", linestyle="--", linewidth=1.0)


EXPERIMENT = Experiment(
    name="linear-road",
    title="Linear Road while its traffic grows: rates, workers and latency",
    figure="SEEP, Figs. 6 and 7",
    needs="Java 17; memory for a cluster of Spark workers, about 1 GB each",
    run=run,
    takes=("kill", "expressways"),
)
