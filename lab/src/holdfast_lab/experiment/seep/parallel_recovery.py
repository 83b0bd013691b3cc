"""Experiment `parallel-recovery`, Fig. 13 of SEEP: lost state replayed by one partition against two.

A word counter of one partition is lost once per interval. What its host leaves behind is kept, and recovery begins
from it several times, in turns: serially, and with the operator partitioned in two.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from typing import Any

from holdfast_lab.bench.query_runs import session
from holdfast_lab.experiment.definition import Bar, Experiment, Figure, Result, Row, Settings, at_least, at_most
from holdfast_lab.experiment.plots import grouped_bars
from holdfast_lab.experiment.seep.word_count_host import WordCountSettings
from holdfast_lab.experiment.seep.word_count_losses import HostLoss, WordCountRun, loss_row, wrong_rows
from holdfast_lab.experiment.time_limit import TimeLimit

__all__ = ["EXPERIMENT", "bars"]

_QUICK_SECONDS = 95.0
_MOMENT = 0.9
_WAYS = {"serial": None, "parallel": 2}


def run(settings: Settings) -> Result:

    intervals: Sequence[int] = settings.pick(quick=(10, 2), full=(1, 2, 5, 10, 15, 20, 25, 30))
    rate = settings.pick(quick=10_000.0, full=20_000.0)
    times = settings.pick(quick=1, full=3)
    limit = TimeLimit(settings.pick(quick=_QUICK_SECONDS, full=3_600.0))
    rows: list[dict[str, Any]] = []
    with session("holdfast") as spark:
        for interval in intervals:
            if not limit.allows(f"c = {interval} s", needed=interval == intervals[0]):
                continue
            home = settings.work / f"{interval}"
            asked = WordCountSettings.of(home, rate, f"interval({interval}s)", seed=settings.seed, partitions=1)
            losses: dict[str, list[HostLoss]] = {way: [] for way in _WAYS}
            wrong = dict.fromkeys(_WAYS, 0)
            with WordCountRun(asked, settings.work / "t", cut=True) as hosts:
                settings.say(f"a checkpoint every {interval} s, one partition, and the loss of its host")
                hosts.fill()
                since = hosts.wait_for(_MOMENT)
                hosts.freeze(settings.work / "frozen")
                for number in range(times):
                    for way, partitions in _WAYS.items():
                        losses[way].append(hosts.thaw(settings.work / "frozen", since, partitions))
                        settings.say(f"  {way}: {losses[way][-1].recovery:.2f} s")
                        if number == 0:
                            wrong[way] = sum(wrong_rows(spark, [hosts.settings], settings.work).values())
            shutil.rmtree(settings.work / "frozen")
            rows += [
                {"interval_s": interval, "way": way, **loss_row(losses[way]), "wrong_rows": wrong[way],
                 "equal": wrong[way] == 0}
                for way in _WAYS
            ]  # fmt: skip
    rows.sort(key=lambda row: (row["interval_s"], row["way"] != "serial"))
    return Result(
        keys=("interval_s", "way"),
        rows=rows,
        paper=[
            {"way": way, "recovery_s": None, "source": "SEEP, §6.2, Fig. 13"} for way in _WAYS
        ],
        bars=bars(rows),
        notes=[
            f"{rate:,.0f} fragments/s; the host is lost when nine tenths of the interval have passed since a"
            f" checkpoint. The recoveries, {times} of each kind in turns, begin from copies of the same files; the"
            " splitter stands still meanwhile, so both cores belong to the recovery.",
            "Serial: one task counts the words of all keys. Parallel: the checkpoint is seen through two key intervals,"
            " which costs no copying, and each task replays the words of its own. Reading and decoding the words is"
            " done by two tasks in both.",
            "The paper has 500 tuples/s and no figures in the text: no benefit for short intervals, and a benefit that"
            " grows with the interval.",
            *limit.notes(),
        ],
        plot=lambda figure: _plot(figure, rows),
        shown=("losses", "since_checkpoint_s", "recovery_s", "recovery_max_s", "replayed", "replay_s", "equal"),
    )  # fmt: skip


def bars(rows: Sequence[Row]) -> list[Bar]:
    """The benefit at the longest interval."""
    by = {(row["interval_s"], row["way"]): row["recovery_s"] for row in rows}
    longest = max((interval for interval, _ in by), default=0)
    parallel = by.get((longest, "parallel"))
    ratio = by[longest, "serial"] / parallel if parallel else None
    return [
        at_least(f"c = {longest} s: serial recovery takes so many times as long as parallel", ratio, 1.0),
        at_most("rows lost or too many, all recoveries", sum(row["wrong_rows"] for row in rows), 0),
    ]


def _plot(figure: Figure, rows: Sequence[Row]) -> None:

    axes = figure.subplots()
    grouped_bars(axes, rows, group="interval_s", series="way", value="recovery_s", ylabel="recovery, s")
    axes.set_xlabel("checkpoint interval, s")


EXPERIMENT = Experiment(
    name="parallel-recovery",
    title="Recovery by one partition and by two",
    figure="SEEP, Fig. 13",
    needs="Java 17; a disk that syncs",
    run=run,
)
