"""Experiment `interval-tradeoff`, Fig. 15 of SEEP: latency of rows and time to recover, by checkpoint interval."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Any

from holdfast.connect.sinks.file_sink import parquet
from holdfast_lab.bench.query_runs import session
from holdfast_lab.experiment.definition import Bar, Experiment, Figure, Result, Row, Settings, at_most
from holdfast_lab.experiment.plots import COLOURS
from holdfast_lab.experiment.seep.row_latency import LatencyFigures, measure
from holdfast_lab.experiment.seep.word_count_host import WordCountSettings
from holdfast_lab.experiment.seep.word_count_losses import HostLoss, WordCountRun, wrong_rows
from holdfast_lab.experiment.time_limit import TimeLimit
from holdfast_lab.workloads.words import Fragments, fragments, word_count

__all__ = ["EXPERIMENT", "merged"]

_QUICK_SECONDS = 100.0
_RATE = 1_000.0
_WORDS = 10_000
_WINDOW_SECONDS = 30
_MOMENT = 0.8
_PAPER = tuple(
    {"interval_s": interval, "latency_p95_ms": None, "recovery_s": None, "source": "SEEP, §6.3, Fig. 15"}
    for interval in (1, 2, 5, 10, 15, 20, 25, 30)
)


def run(settings: Settings) -> Result:

    intervals: Sequence[int] = settings.pick(quick=(10, 1, 5), full=(30, 25, 20, 15, 10, 5, 2, 1))
    rounds = settings.pick(quick=1, full=3)
    warm, seconds = settings.pick(quick=(1.0, 11.0), full=(2.0, 33.0))
    limit = TimeLimit(settings.pick(quick=_QUICK_SECONDS, full=3_600.0))
    latencies: dict[int, list[LatencyFigures]] = {}
    losses: dict[int, HostLoss] = {}
    runs: dict[int, WordCountSettings] = {}
    with session("holdfast") as spark:
        for interval in intervals:
            if not limit.allows(f"c = {interval} s", needed=interval in intervals[:2]):
                continue
            for number in range(rounds):
                measured = _latency(settings, spark, interval, number, warm, seconds)
                settings.say(f"c = {interval} s: p95 {measured.p95 * 1e3:.0f} ms")
                latencies.setdefault(interval, []).append(measured)
            asked = WordCountSettings.of(
                settings.work / f"lost-{interval}", _RATE, f"interval({interval}s)", words=_WORDS, seed=settings.seed
            )
            with WordCountRun(asked, settings.work / "t", cut=True) as hosts:
                losses[interval] = hosts.lose(_MOMENT)
                hosts.go_on()
            settings.say(f"c = {interval} s: recovery {losses[interval].recovery:.2f} s")
            runs[interval] = hosts.settings
        wrong = wrong_rows(spark, list(runs.values()), settings.work)
    rows = merged(latencies, losses, {interval: wrong[run.home] for interval, run in runs.items()})
    return Result(
        keys=("interval_s",),
        rows=rows,
        paper=_PAPER,
        bars=bars(rows),
        notes=[
            f"{_RATE:,.0f} fragments/s, a window of 30 s that slides by 1 s over {_WORDS:,} words, and a checkpoint"
            " every c seconds.",
            "Latency is from when a row was due at the source to the commit of the epoch that has it, in one piece and"
            f" without a loss, over {seconds:.0f} s (median of {rounds} run(s)). Recovery is of a host that is lost"
            f" when {_MOMENT:.0%} of the interval have passed since a checkpoint, as in word-count-recovery.",
            "The paper's text has no figures for Fig. 15: its p95 decreases and its recovery time increases with the"
            " interval. Here checkpoints copy what is new, by a thread beside the epochs, so the interval matters less"
            " for latency.",
            *limit.notes(),
        ],
        plot=lambda figure: _plot(figure, rows),
    )


def _latency(settings: Settings, spark: Any, interval: int, number: int, warm: float, seconds: float) -> LatencyFigures:

    home = settings.work / f"latency-{interval}-{number}"
    return measure(
        spark,
        lambda source: word_count(source, parquet(home / "out"), cut=False),
        fragments(Fragments(_WORDS, _RATE, settings.seed)),
        rate=_RATE,
        ahead=round(_RATE * _WINDOW_SECONDS),
        policy=f"interval({interval}s)",
        seconds=seconds,
        warm=warm,
        home=home,
    )


def merged(
    latencies: dict[int, list[LatencyFigures]], losses: dict[int, HostLoss], wrong: dict[int, int]
) -> list[dict[str, Any]]:
    """A row per interval."""
    return [
        {
            "interval_s": interval,
            "latency_p50_ms": median(latency.p50 for latency in latencies[interval]) * 1e3,
            "latency_p95_ms": median(latency.p95 for latency in latencies[interval]) * 1e3,
            "recovery_s": losses[interval].recovery,
            "replayed": losses[interval].replayed,
            "checkpoints": sum(latency.checkpoints for latency in latencies[interval]),
            "copied_mb": sum(latency.checkpoint_bytes for latency in latencies[interval]) / 1e6,
            "wrong_rows": wrong[interval],
        }
        for interval in sorted(latencies)
    ]


def bars(rows: Sequence[Row]) -> list[Bar]:
    """The end of the trade that shows at once: the shortest interval has the faster recovery."""
    first, last = rows[0], rows[-1]
    shortest = f"c = {first['interval_s']} s against {last['interval_s']} s"
    return [
        at_most(f"recovery at {shortest}", first["recovery_s"] / last["recovery_s"], 1.0),
        at_most("rows lost or too many, all runs", sum(row["wrong_rows"] for row in rows), 0),
    ]


def _plot(figure: Figure, rows: Sequence[Row]) -> None:

    left = figure.subplots()
    right = left.twinx()
    intervals = [row["interval_s"] for row in rows]
    left.plot(intervals, [row["latency_p95_ms"] for row in rows], "o-", color=COLOURS[0], label="p95 latency")
    right.plot(intervals, [row["recovery_s"] for row in rows], "s--", color=COLOURS[3], label="recovery")
    left.set_xlabel("checkpoint interval, s")
    left.set_ylabel("p95 latency, ms")
    right.set_ylabel("recovery, s")
    left.set_ylim(bottom=0)
    right.set_ylim(bottom=0)
    figure.legend(loc="outside lower center", ncols=2)


EXPERIMENT = Experiment(
    name="interval-tradeoff",
    title="Latency and recovery time by checkpoint interval",
    figure="SEEP, Fig. 15",
    needs="Java 17; a disk that syncs",
    run=run,
)
