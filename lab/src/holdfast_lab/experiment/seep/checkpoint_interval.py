"""Experiment `checkpoint-interval`, Fig. 12 of SEEP: recovery of the word count by checkpoint interval and rate."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from holdfast_lab.bench.query_runs import session
from holdfast_lab.experiment.definition import Bar, Experiment, Figure, Result, Row, Settings, at_least, at_most
from holdfast_lab.experiment.plots import lines
from holdfast_lab.experiment.seep.word_count_host import WordCountSettings
from holdfast_lab.experiment.seep.word_count_losses import WordCountRun, loss_row, shares, wrong_rows
from holdfast_lab.experiment.time_limit import TimeLimit

__all__ = ["EXPERIMENT", "INTERVALS", "bars"]

INTERVALS = (1, 2, 5, 10, 15, 20, 25, 30)
_PAPER = tuple({"interval_s": interval, "recovery_s": None, "source": "SEEP, §6.2, Fig. 12"} for interval in INTERVALS)
_QUICK_SECONDS = 95.0
_GROWS_FROM = 5.0
"""Intervals are compared where the longer is so many times the shorter: below that the noise of a job decides."""


def run(settings: Settings) -> Result:

    intervals: Sequence[int] = settings.pick(quick=(1, 10, 5), full=INTERVALS)
    rates = settings.pick(quick=(5_000.0,), full=(1_000.0, 10_000.0, 30_000.0))
    kills = settings.pick(quick=1, full=2)
    limit = TimeLimit(settings.pick(quick=_QUICK_SECONDS, full=3_600.0))
    chance = random.Random(settings.seed)
    moments = shares(chance, kills) if kills > 1 else [0.8]
    rows: list[dict[str, Any]] = []
    runs: list[WordCountSettings] = []
    for rate in rates:
        for interval in intervals:
            if not limit.allows(f"c = {interval} s at {rate:g}/s", needed=interval in intervals[:2]):
                continue
            settings.say(f"a checkpoint every {interval} s at {rate:,.0f} fragments/s, {kills} host(s) lost")
            home = settings.work / f"{rate:g}-{interval}"
            asked = WordCountSettings.of(home, rate, f"interval({interval}s)", seed=settings.seed)
            with WordCountRun(asked, settings.work / "t", cut=True) as hosts:
                losses = [hosts.lose(moment) for moment in moments]
                hosts.go_on()
            rows.append({"fragments_per_s": rate, "interval_s": interval, **loss_row(losses)})
            runs.append(hosts.settings)
    settings.say("the same without a fault, to compare with")
    with session("holdfast") as spark:
        wrong = wrong_rows(spark, runs, settings.work)
    for row, run in zip(rows, runs, strict=True):
        row |= {"wrong_rows": wrong[run.home], "equal": wrong[run.home] == 0}
    rows.sort(key=lambda row: (row["fragments_per_s"], row["interval_s"]))
    return Result(
        keys=("fragments_per_s", "interval_s"),
        rows=rows,
        paper=_PAPER,
        bars=bars(rows),
        notes=[
            f"{kills} loss(es) of the word counter's host per interval and rate,"
            + (" spread over the interval evenly" if kills > 1 else " at four fifths of the interval")
            + "; `since checkpoint s` is how long ago the last checkpoint was made.",
            "The rest is as in word-count-recovery. The paper's text has no figures for Fig. 12, but says that recovery"
            " time increases with the interval, and with the rate.",
            *limit.notes(),
        ],
        plot=lambda figure: _plot(figure, rows),
        shown=("losses", "since_checkpoint_s", "recovery_s", "recovery_max_s", "replayed", "replay_s", "data_s",
               "loaded_mb", "kept_up", "equal"),
    )  # fmt: skip


def bars(rows: Sequence[Row]) -> list[Bar]:
    """Recovery takes longer with the longest interval than with the shortest, at each rate."""
    found = []
    for rate in dict.fromkeys(row["fragments_per_s"] for row in rows):
        own = sorted((row for row in rows if row["fragments_per_s"] == rate), key=lambda row: row["interval_s"])
        if own[-1]["interval_s"] >= _GROWS_FROM * own[0]["interval_s"]:
            ratio = own[-1]["recovery_s"] / own[0]["recovery_s"]
            name = f"{rate:,.0f}/s: recovery at c = {own[-1]['interval_s']} s against {own[0]['interval_s']} s"
            found.append(at_least(name, ratio, 1.0))
    return [*found, at_most("rows lost or too many, all runs", sum(row["wrong_rows"] for row in rows), 0)]


def _plot(figure: Figure, rows: Sequence[Row]) -> None:

    axes = figure.subplots()
    series = {
        f"{rate:,.0f} fragments/s": (
            [row["interval_s"] for row in rows if row["fragments_per_s"] == rate],
            [row["recovery_s"] for row in rows if row["fragments_per_s"] == rate],
        )
        for rate in dict.fromkeys(row["fragments_per_s"] for row in rows)
    }
    lines(axes, series, xlabel="checkpoint interval, s", ylabel="recovery, s")
    axes.set_ylim(bottom=0)


EXPERIMENT = Experiment(
    name="checkpoint-interval",
    title="Recovery time by checkpoint interval and rate",
    figure="SEEP, Fig. 12",
    needs="Java 17; a disk that syncs",
    run=run,
)
