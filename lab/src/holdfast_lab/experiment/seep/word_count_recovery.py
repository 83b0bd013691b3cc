"""Experiment `word-count-recovery`, Fig. 11 of SEEP: recovery by state management, upstream backup and source replay.

| way | topology and policy | what is replayed |
|---|---|---|
| R+SM | a p-stream behind the splitter, `interval(5s)` | the words since the last checkpoint |
| R+SM, delta | the same, `delta` | the words of the epoch in flight |
| UB | the same, `none` | the words of the whole window, which the p-stream has buffered |
| SR | in one piece, `none` | the fragments of the whole window, read and split again |
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from holdfast.connect.sinks.file_sink import parquet
from holdfast.engine.fragment_runs import FragmentsRun
from holdfast.engine.options import RunOptions
from holdfast.engine.spark_platform import SparkPlatform
from holdfast.graph.policies import as_policy
from holdfast_lab.bench.bench_figures import Reports
from holdfast_lab.bench.query_runs import session
from holdfast_lab.experiment.definition import Bar, Experiment, Figure, Result, Row, Settings, at_least, at_most
from holdfast_lab.experiment.plots import grouped_bars
from holdfast_lab.experiment.seep.word_count_host import WordCountSettings
from holdfast_lab.experiment.seep.word_count_losses import WordCountRun, loss_row, shares, wrong_rows
from holdfast_lab.experiment.time_limit import TimeLimit
from holdfast_lab.workloads.words import Fragments, fragments, word_count

__all__ = ["EXPERIMENT", "WAYS", "RecoveryWay", "bars", "highest_rate"]

_FASTER_THAN_UB = 4.0
_QUICK_SECONDS = 95.0
_SHARE_OF_GREATEST = 0.4


@dataclass(frozen=True, slots=True)
class RecoveryWay:
    """A way to recover, as a policy and a topology."""

    name: str
    policy: str
    cut: bool


WAYS = (
    RecoveryWay("R+SM", "interval(5s)", True),
    RecoveryWay("UB", "none", True),
    RecoveryWay("SR", "none", False),
    RecoveryWay("R+SM, delta", "delta", True),
)
_PAPER = tuple({"way": name, "recovery_s": None, "source": "SEEP, §6.2, Fig. 11"} for name in ("R+SM", "UB", "SR"))


def run(settings: Settings) -> Result:

    kills = settings.pick(quick=1, full=4)
    limit = TimeLimit(settings.pick(quick=_QUICK_SECONDS, full=3_600.0))
    chance = random.Random(settings.seed)
    rates = [10_000.0] if settings.quick else [1_000.0, 10_000.0, 50_000.0, highest_rate(settings)]
    rows: list[dict[str, Any]] = []
    runs: list[WordCountSettings] = []
    for rate in sorted(set(rates), reverse=True):
        moments = shares(chance, kills) if kills > 1 else [0.5]
        for way in WAYS:
            if not limit.allows(f"{way.name} at {rate:g}/s", needed=rate == max(rates) and way in WAYS[:2]):
                continue
            settings.say(f"{way.name} ({way.policy}) at {rate:,.0f} fragments/s, {kills} host(s) lost")
            asked = WordCountSettings.of(settings.work / f"{rate:g}-{way.name}", rate, way.policy, seed=settings.seed)
            with WordCountRun(asked, settings.work / "t", cut=way.cut) as hosts:
                losses = [hosts.lose(moment) for moment in moments]
                hosts.go_on()
            rows.append({"fragments_per_s": rate, "way": way.name, **loss_row(losses)})
            runs.append(hosts.settings)
    settings.say("the same without a fault, to compare with")
    with session("holdfast") as spark:
        wrong = wrong_rows(spark, runs, settings.work)
    for row, run in zip(rows, runs, strict=True):
        row |= {"wrong_rows": wrong[run.home], "equal": wrong[run.home] == 0}
    rows.sort(key=lambda row: row["fragments_per_s"])
    return Result(
        keys=("fragments_per_s", "way"),
        rows=rows,
        paper=_PAPER,
        bars=bars(rows),
        notes=[*_notes(kills), *limit.notes()],
        plot=lambda figure: _plot(figure, rows),
        shown=("losses", "recovery_s", "recovery_max_s", "replay_s", "data_s", "replayed", "loaded_mb", "start_s",
               "kept_up", "equal"),
    )  # fmt: skip


def highest_rate(settings: Settings) -> float:
    """A share of what both fragments together can do as fast as possible, as a round number: with room to catch up
    after a loss."""

    settings.say("the highest rate that the cut pipeline keeps up with")
    home, rate, seconds = settings.work / "highest", 50_000.0, 12
    reports = Reports()
    source = fragments(Fragments(10_000, rate, settings.seed), round(rate * seconds))
    with session("holdfast") as spark:
        FragmentsRun(
            word_count(source, parquet(home / "out"), cut=True),
            SparkPlatform(spark),
            RunOptions(
                store=home / "store",
                least_rows=int(rate),
                most_rows=int(rate) * 20,
                checkpoint=as_policy("interval(5s)"),
            ),
            observer=reports,
        ).run()
    epochs = reports.epochs
    greatest = sum(report.entered for report in epochs[2:]) / max(1e-3, epochs[-1].committed - epochs[1].committed)
    return max(60_000.0, round(_SHARE_OF_GREATEST * greatest, -4))


def bars(rows: Sequence[Row]) -> list[Bar]:
    """R+SM against the others at each rate, and by how much at the highest."""
    by = {(row["fragments_per_s"], row["way"]): row["recovery_s"] for row in rows}
    rates = sorted({rate for rate, _ in by})
    found = [
        at_least(f"{rate:,.0f}/s: {other} takes so many times as long as R+SM", _ratio(by, rate, other), 1.0)
        for rate in rates
        for other in ("UB", "SR")
    ]
    highest = rates[-1] if rates else 0.0
    found.append(
        at_least(
            f"{highest:,.0f}/s, the highest rate: UB takes so many times as long as R+SM",
            _ratio(by, highest, "UB"),
            _FASTER_THAN_UB,
        )
    )
    return [*found, at_most("rows lost or too many, all runs", sum(row["wrong_rows"] for row in rows), 0)]


def _ratio(by: dict[tuple[float, str], float], rate: float, other: str) -> float | None:
    mine, others = by.get((rate, "R+SM")), by.get((rate, other))
    return others / mine if mine and others else None


def _notes(kills: int) -> list[str]:
    return [
        "A host is lost by kill -9 of the word counter's process with all it started, and removal of its volatile"
        " directory, while the window of 30 s is full and the run keeps up. Where the pipeline is cut, the splitter is"
        " a process of its own and runs on, on the same cores, as in UB of the paper.",
        f"Recovery is from a warm session to the commit of the last epoch that was planned before the loss; the start"
        f" of Python and Java (start s) is apart. Mean of {kills} loss(es) in the middle of an interval or spread over"
        " it evenly, and the slowest.",
        "Windows of 30 s slide by 1 s, so that 30 s of input are needed at any moment. An epoch has 1 s of input, and"
        " is replayed as one job. The first 30 s of input are there at the start, so that the window is full soon;"
        " from then on rows arrive at the rate.",
        "Words are uniform over 10,000. The paper has one small VM per operator; its text has neither rates nor figures"
        " for Fig. 11, but says that R+SM is faster than UB and SR, SR slightly faster than UB, and that the distance"
        " grows with the rate.",
    ]


def _plot(figure: Figure, rows: Sequence[Row]) -> None:

    axes = figure.subplots()
    named = [{**row, "rate": f"{row['fragments_per_s']:,.0f}/s"} for row in rows]
    grouped_bars(axes, named, group="rate", series="way", value="recovery_s", ylabel="recovery, s", log=len(rows) > 4)
    axes.set_xlabel("fragments per second")


EXPERIMENT = Experiment(
    name="word-count-recovery",
    title="Recovery from checkpoints, from upstream's buffers and from the source",
    figure="SEEP, Fig. 11",
    needs="Java 17; a disk that syncs",
    run=run,
)
