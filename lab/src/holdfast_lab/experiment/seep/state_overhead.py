"""Experiment `state-overhead`, Fig. 14 of SEEP: what checkpoints cost in latency, by state size and rate.

A dictionary of words with their counters has 10² to 10⁶ entries from its first epoch on, all of which go on being
counted. The policies take turns, and are compared within a round.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any

from pyspark.sql import SparkSession

from holdfast.connect.sinks.file_sink import parquet
from holdfast_lab.bench.query_runs import session
from holdfast_lab.experiment.definition import Bar, Experiment, Figure, Result, Row, Settings, at_most
from holdfast_lab.experiment.plots import grouped_bars
from holdfast_lab.experiment.seep.row_latency import LatencyFigures, measure
from holdfast_lab.experiment.time_limit import TimeLimit
from holdfast_lab.workloads.words import Fragments, fragments, word_totals

__all__ = ["EXPERIMENT", "POLICIES", "bars", "run_one", "summed"]

POLICIES = {"none": "none", "interval": "interval(5s)", "delta": "delta"}
_LIMIT = 1.10
_LARGE = 1_000_000
_QUICK_SECONDS = 95.0
_PAPER = tuple(
    {"entries": entries, "latency_p95_ms": None, "source": "SEEP, §6.3, Fig. 14"} for entries in (100, 10_000, 100_000)
)


def run(settings: Settings) -> Result:

    sizes = settings.pick(quick=(_LARGE, 10_000), full=(_LARGE, 100_000, 10_000, 100))
    rates = settings.pick(quick=(500.0,), full=(500.0, 5_000.0))
    rounds = {_LARGE: settings.pick(quick=2, full=6)}
    fewer = settings.pick(quick=1, full=2)
    warm, seconds = settings.pick(quick=(2.0, 8.0), full=(2.0, 17.0))
    limit = TimeLimit(settings.pick(quick=_QUICK_SECONDS, full=3_600.0))
    told: list[dict[str, Any]] = []
    with session("holdfast") as spark:
        run_one(spark, settings.work / "rehearsal", "none", 10_000, max(rates), settings.seed, 1.0, 2.0)
        for entries in sizes:
            for rate in rates:
                for number in range(rounds.get(entries, fewer)):
                    case_name = f"round {number + 1} of {entries:,} entries at {rate:g}/s"
                    if not limit.allows(case_name, needed=entries == _LARGE and number == 0):
                        continue
                    for policy in _turn(number):
                        home = settings.work / f"{entries}-{rate:g}-{number}-{policy}"
                        found = run_one(spark, home, POLICIES[policy], entries, rate, settings.seed, warm, seconds)
                        settings.say(
                            f"{entries:,} entries, {rate:,.0f}/s, round {number + 1}, {policy}:"
                            f" p95 {found.p95 * 1e3:.0f} ms"
                        )
                        case = {"entries": entries, "fragments_per_s": rate, "policy": policy, "round": number}
                        told.append({**case, **asdict(found)})
    rows = summed(told)
    return Result(
        keys=("entries", "fragments_per_s", "policy"),
        rows=rows,
        paper=_PAPER,
        bars=bars(rows),
        notes=[
            "Latency is from when a row was due at the source to the commit of the epoch that has its result, over all"
            f" rows of {seconds:.0f} s per run; the first {warm:.0f} s are left out. Rows are due at the rate, whether"
            " or not the run keeps up; an epoch takes what is due when it is planned.",
            "The policies take turns, in another order each round. `against none` is the median over"
            " the rounds of p95 divided by that of `none` in the same round; the p95 is the median, too.",
            "`none` keeps state of an epoch in the volatile tier and makes nothing durable; the epochs' plans, commits"
            " and output are synced under all policies. `interval` copies new p-units every 5 s by a thread beside the"
            " epochs; the first checkpoint, which copies everything, is part of what is measured. `delta` syncs the"
            " p-units of each epoch.",
            "The dictionary is of totals since the beginning and not of a window of 30 s, so that it has exactly the"
            " entries asked for whatever the rate: all words come once in the first epoch, and then at random.",
            "The paper has sizes of 10² to 10⁵ entries and 100, 500 and 1,000 tuples/s; its text has no figures for"
            " Fig. 14, but says that the p95 grows with state size, and at 1,000 tuples/s, when its VM is overloaded.",
            *limit.notes(),
        ],
        plot=lambda figure: _plot(figure, rows),
        shown=("rounds", "latency_p50_ms", "latency_p95_ms", "against_none", "state_mb", "checkpoints", "copied_mb",
               "kept_up"),
        also={"runs": told},
    )  # fmt: skip


def run_one(
    spark: SparkSession, home: Path, policy: str, entries: int, rate: float, seed: int, warm: float, seconds: float
) -> LatencyFigures:
    """The dictionary under one policy; its files are removed."""

    made = Fragments(entries, rate, seed, listed=True)
    found = measure(
        spark,
        lambda source: word_totals(source, parquet(home / "out")),
        fragments(made),
        rate=rate,
        ahead=made.listing,
        policy=policy,
        seconds=seconds,
        warm=warm,
        home=home,
    )
    shutil.rmtree(home)
    return found


def _turn(number: int) -> list[str]:
    """The policies, beginning with another one in each round."""
    names = list(POLICIES)
    start = number % len(names)
    return [*names[start:], *names[:start]]


def summed(told: Sequence[Row]) -> list[dict[str, Any]]:
    """Medians over the rounds, and of the ratio to `none` within each."""
    rows = []
    for entries, rate in dict.fromkeys((run["entries"], run["fragments_per_s"]) for run in told):
        own = [run for run in told if (run["entries"], run["fragments_per_s"]) == (entries, rate)]
        plain = {run["round"]: run["p95"] for run in own if run["policy"] == "none"}
        for policy in POLICIES:
            runs = [run for run in own if run["policy"] == policy]
            if not runs:
                continue
            ratios = [run["p95"] / plain[run["round"]] for run in runs if run["round"] in plain]
            rows.append(
                {
                    "entries": entries,
                    "fragments_per_s": rate,
                    "policy": policy,
                    "rounds": len(runs),
                    "latency_p50_ms": median(run["p50"] for run in runs) * 1e3,
                    "latency_p95_ms": median(run["p95"] for run in runs) * 1e3,
                    "against_none": median(ratios) if ratios else None,
                    "state_mb": runs[-1]["state_bytes"] / 1e6,
                    "checkpoints": sum(run["checkpoints"] for run in runs),
                    "copied_mb": sum(run["checkpoint_bytes"] for run in runs) / 1e6,
                    "kept_up": all(run["kept_up"] for run in runs),
                }
            )
    return sorted(rows, key=lambda row: (row["entries"], row["fragments_per_s"]))


def bars(rows: Sequence[Row]) -> list[Bar]:
    """At the largest state, for each rate that the run without checkpoints keeps up with."""
    largest = [row for row in rows if row["entries"] == _LARGE]
    keeping = {row["fragments_per_s"] for row in largest if row["policy"] == "none" and row["kept_up"]}
    return [
        at_most(
            f"{_LARGE:,} entries, {row['fragments_per_s']:,.0f}/s: p95 of {row['policy']} against none",
            row["against_none"],
            _LIMIT,
        )
        for row in largest
        if row["policy"] == "interval" and row["fragments_per_s"] in keeping
    ]


def _plot(figure: Figure, rows: Sequence[Row]) -> None:

    rates = list(dict.fromkeys(row["fragments_per_s"] for row in rows))
    every = figure.subplots(1, len(rates), squeeze=False, sharey=True)[0]
    for axes, rate in zip(every, rates, strict=True):
        own = [{**row, "size": f"{row['entries']:,}"} for row in rows if row["fragments_per_s"] == rate]
        grouped_bars(axes, own, group="size", series="policy", value="latency_p95_ms", ylabel="p95 latency, ms")
        axes.set_title(f"{rate:,.0f} fragments/s", fontsize=10)
        axes.set_xlabel("entries of the dictionary")


EXPERIMENT = Experiment(
    name="state-overhead",
    title="Latency with checkpoints and without, by state size and rate",
    figure="SEEP, Fig. 14",
    needs="Java 17; a disk that syncs",
    run=run,
)
