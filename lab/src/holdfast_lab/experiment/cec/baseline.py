"""Experiment `cec-baseline`, Fig. 5 of CEC: what footprints of opening and closing windows cost, and nothing else.

The ways to run take turns and are compared within a round.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from pyspark.sql import SparkSession

from holdfast.graph.policies import NONE
from holdfast_lab.bench.query_runs import session
from holdfast_lab.experiment.cec.eventual_runs import OPEN_ONLY, EventualQuery, figures, in_memory, remove, run_query
from holdfast_lab.experiment.definition import Bar, Experiment, Figure, Result, Row, Settings, at_least
from holdfast_lab.experiment.plots import grouped_bars
from holdfast_lab.experiment.time_limit import TimeLimit

__all__ = ["CONFIGS", "EXPERIMENT", "bars", "run_one", "summed"]

CONFIGS = ("native", "open records, memory", "open records, disk")
_NATIVE, _MEMORY, _DISK = CONFIGS
_IN_MEMORY = "native, memory"
_JUDGED = "100,000 ids, windows of 10"
_LEAST = 0.95
_QUICK_SECONDS = 85.0
_SOURCE = "CEC, §IV.A, Fig. 5"
_PAPER = (
    {"config": _NATIVE, "results_per_s": None, "source": _SOURCE},
    {"config": _MEMORY, "against_native_at_least": 0.9, "source": f"{_SOURCE}: 'drops by less than 10%'"},
    {"config": _DISK, "against_native_at_least": 0.9, "source": f"{_SOURCE}: 'nearly identical to Gopen/Net'"},
    {"workload": "fast windows", "config": _DISK, "real_over_results": 2.0, "source": f"{_SOURCE}: 'twice'"},
    {"workload": "slow windows", "config": _DISK, "real_over_results": 2.0, "source": f"{_SOURCE}: 'twice'"},
)


def queries(seed: int) -> list[EventualQuery]:
    """The workloads; those of the bar come first."""

    return [
        EventualQuery(f"{_JUDGED}, epochs of 100,000", 100_000, size=10, epoch_rows=100_000, seed=seed),
        EventualQuery(f"{_JUDGED}, epochs of 1,000,000", 100_000, size=10, epoch_rows=1_000_000, seed=seed),
        EventualQuery("fast windows", 2, size=1, epoch_rows=500_000, seed=seed),
        EventualQuery("slow windows", 2, size=1_000, epoch_rows=500_000, seed=seed),
    ]


def run(settings: Settings) -> Result:

    configs = settings.pick(quick=CONFIGS, full=(*CONFIGS, _IN_MEMORY))
    rounds = settings.pick(quick=2, full=7)
    rows = settings.pick(quick=1_000_000, full=6_000_000)
    every = queries(settings.seed)
    told: list[dict[str, Any]] = []
    with session("holdfast") as spark:
        limit = TimeLimit(settings.pick(quick=_QUICK_SECONDS, full=3_600.0))
        run_one(spark, every[0], _DISK, settings.work / "rehearsal", warm=2, measured=4)
        for number in range(rounds):
            for query in every:
                if not limit.allows(f"round {number + 1} of {query.name}", needed=not told):
                    continue
                warm, measured = spans(query.epoch_rows, rows)
                for config in _turn(configs, number):
                    home = settings.work / f"{len(told)}"
                    found = run_one(spark, query, config, home, warm=warm, measured=measured)
                    settings.say(
                        f"round {number + 1}, {query.name}, {config}: {found['tuples_per_s'] / 1e6:.2f} M tuples/s"
                    )
                    told.append({"workload": query.name, "config": config, "round": number, **found})
    found_rows = summed(told)
    return Result(
        keys=("workload", "config"),
        rows=found_rows,
        paper=_PAPER,
        bars=bars(found_rows),
        notes=[
            "The average price of items by item id over windows of so many purchases. `native` keeps state in memory"
            " alone (policy `none`), `open records` adds a footprint of each window that opens and of each that closes,"
            " and no others: as a recovery needs them at least. In `memory` the whole store is on tmpfs, in place of"
            " the paper's Gopen/Net, so that commits are faster, too; `native, memory` is to compare with.",
            "Holdfast's time is the epoch: a footprint is of the state after an epoch, and a window that opens and"
            " closes within one leaves none. So `real` (results and footprints per second at the sink) is not twice"
            " the results as in the paper, but for windows that stay open from epoch to epoch; the paper's fast windows"
            " never do.",
            "The ways to run take turns, in another order each round; the first epochs of each run are left"
            " out. `against native` is the median over the rounds of the throughput divided by that of `native` in"
            " the same round; throughputs are medians, too. `cpu against native` is the same for tuples per second of"
            " CPU time of the tasks, which other load on the machine disturbs less, but without the syncs.",
            "The figures of Fig. 5 are in the plot alone; the text has what is shown. The paper's source limits its"
            " throughput, here it is the pipeline itself that is measured.",
            *limit.notes(),
        ],
        plot=lambda figure: _plot(figure, found_rows),
        shown=("rounds", "tuples_per_s", "results_per_s", "real_per_s", "records_per_epoch", "against_native",
               "against_native_least", "cpu_against_native"),
        also={"runs": told},
    )  # fmt: skip


def spans(epoch_rows: int, rows: int) -> tuple[int, int]:
    """How many epochs of this size are left out at the beginning, and how many are measured."""
    return max(1, min(4, rows // (4 * epoch_rows))), max(2, rows // epoch_rows)


def _turn(configs: Sequence[str], number: int) -> list[str]:
    """Beginning with another one in each round."""
    start = number % len(configs)
    return [*configs[start:], *configs[:start]]


def run_one(
    spark: SparkSession, query: EventualQuery, config: str, home: Path, *, warm: int, measured: int
) -> dict[str, float]:
    """The figures of one run; its files are removed."""

    policy = NONE if config in (_NATIVE, _IN_MEMORY) else OPEN_ONLY
    store = in_memory(f"store-{home.name}") if config in (_MEMORY, _IN_MEMORY) else None
    try:
        ran = run_query(spark, query, policy, home, warm + measured, store=store)
    finally:
        remove(home)
        if store is not None:
            remove(store)
    return figures(ran.reports, warm)


def summed(told: Sequence[Row]) -> list[dict[str, Any]]:
    """Medians over the rounds, and of the ratio to `native` within each."""
    rows = []
    for workload, config in dict.fromkeys((run["workload"], run["config"]) for run in told):
        own = [run for run in told if (run["workload"], run["config"]) == (workload, config)]
        plain = {
            run["round"]: run["tuples_per_s"]
            for run in told
            if run["workload"] == workload and run["config"] == _NATIVE
        }
        spent = {
            run["round"]: run["cpu_us_per_tuple"]
            for run in told
            if run["workload"] == workload and run["config"] == _NATIVE
        }
        by_cpu = [spent[run["round"]] / run["cpu_us_per_tuple"] for run in own if run["round"] in spent]
        ratios = [run["tuples_per_s"] / plain[run["round"]] for run in own if run["round"] in plain]
        rows.append(
            {
                "workload": workload,
                "config": config,
                "rounds": len(own),
                **{
                    name: median(run[name] for run in own)
                    for name in (
                        "tuples_per_s",
                        "results_per_s",
                        "real_per_s",
                        "records_per_epoch",
                        "epoch_p50_ms",
                        "cpu_us_per_tuple",
                    )
                },
                "real_over_results": median(run["real_per_s"] / run["results_per_s"] for run in own),
                "against_native": median(ratios) if ratios else None,
                "cpu_against_native": median(by_cpu) if by_cpu else None,
                "against_native_least": min(ratios, default=None),
            }
        )
    order = {config: place for place, config in enumerate((*CONFIGS, _IN_MEMORY))}
    return sorted(rows, key=lambda row: (row["workload"], order[row["config"]]))


def bars(rows: Sequence[Row]) -> list[Bar]:
    """Footprints on disk must not slow down the workload of the paper's recovery experiments."""
    return [
        at_least(f"{row['workload']}: {row['config']}, against native{how}", row[value], _LEAST)
        for row in rows
        if row["workload"].startswith(_JUDGED) and row["config"] == _DISK
        for how, value in (("", "against_native"), (", by CPU time", "cpu_against_native"))
    ]


def _plot(figure: Figure, rows: Sequence[Row]) -> None:

    left, right = figure.subplots(1, 2)
    short = [{**row, "short": row["workload"].replace(", ", ",\n")} for row in rows]
    grouped_bars(left, short, group="short", series="config", value="tuples_per_s", ylabel="tuples/s at the source")
    grouped_bars(right, short, group="short", series="config", value="against_native", ylabel="against native")
    right.axhline(_LEAST, color="black", linewidth=1, linestyle="--")
    for axes in (left, right):
        axes.tick_params(axis="x", labelsize=7)


EXPERIMENT = Experiment(
    name="cec-baseline",
    title="Footprints of opening and closing windows, against none",
    figure="CEC, Fig. 5",
    needs="Java 17; a disk that syncs; memory to write to (tmpfs)",
    run=run,
)
