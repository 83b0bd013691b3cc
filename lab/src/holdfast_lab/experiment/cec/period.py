"""Experiment `cec-period`, Figs. 8 and 9 of CEC: what the share of the time for footprints costs, and what it gains.

CI stays, CP changes. Q is the number of open windows, out of reach, so there is always something to do.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, median
from typing import Any

from pyspark.sql import SparkSession

from holdfast.graph.policies import NONE, CheckpointPolicy, EventualPolicy
from holdfast.state.goals import FootprintRules
from holdfast_lab.bench.query_runs import session
from holdfast_lab.experiment.cec.eventual_runs import (
    EventualQuery,
    between,
    figures,
    footprints,
    load_times,
    percentile,
    remove,
    response_times,
    run_query,
)
from holdfast_lab.experiment.definition import Bar, Experiment, Figure, Result, Row, Settings, at_most
from holdfast_lab.experiment.plots import COLOURS
from holdfast_lab.experiment.time_limit import TimeLimit

__all__ = ["EXPERIMENT", "bars", "policy_of", "run_one", "summed"]

_OPEN = 0.9
"""The share of the ids that have an open window."""
_RATIOS = (40, 20, 10, 4, 0)
_OF_AN_EPOCH = 0.4
_QUICK_SECONDS = 85.0
_LONGEST = 26
"""Hardly any window stays open for more than so many rows per id."""
_SOURCE = "CEC, §IV.C, Figs. 8 and 9"
_PAPER = (
    {"ci_over_cp_percent": 0, "response_s": 16.5, "against_none": 1.0, "source": _SOURCE},
    {"ci_over_cp_percent": 4, "source": f"{_SOURCE}: response 'approximates that of native', EC-load 5 s (estimated)",
     "ec_load_s": 5.0},
    {"ci_over_cp_percent": 10, "response_s": 18.5, "against_none": 18.5 / 16.5, "source": _SOURCE},
    {"ci_over_cp_percent": 20, "response_s": 21.5, "against_none": 21.5 / 16.5, "source": _SOURCE},
    {"ci_over_cp_percent": 40, "response_s": 32.5, "against_none": 32.5 / 16.5, "ec_load_s": 2.0,
     "source": f"{_SOURCE}: EC-load 2 s (estimated)"},
)  # fmt: skip


def run(settings: Settings) -> Result:

    ids = settings.pick(quick=30_000, full=100_000)
    query = EventualQuery("windows of 10", ids, size=10, epoch_rows=ids, seed=settings.seed)
    rounds = settings.pick(quick=1, full=3)
    warm = 4
    epochs = warm + _LONGEST + settings.pick(quick=6, full=16)
    told: list[dict[str, Any]] = []
    with session("holdfast") as spark:
        limit = TimeLimit(settings.pick(quick=_QUICK_SECONDS, full=3_600.0))
        rehearsal = run_one(spark, query, None, settings.work / "rehearsal", warm, warm + 8)
        spend = _OF_AN_EPOCH * rehearsal["epoch_p50_ms"] / 1e3
        for number in range(rounds):
            for percent in _turn(number):
                if not limit.allows(f"CI/CP = {percent} %, round {number + 1}", needed=percent in (0, 40)):
                    continue
                home = settings.work / f"{number}-{percent}"
                found = run_one(spark, query, policy_of(percent, spend, round(_OPEN * ids)), home, warm, epochs)
                settings.say(f"CI/CP = {percent} %: response {found['response_s']:.2f} s, extent {found['extent']}")
                told.append({"ci_over_cp_percent": percent, "round": number, **found})
    rows = summed(told)
    return Result(
        keys=("ci_over_cp_percent",),
        rows=rows,
        paper=_PAPER,
        bars=bars(rows, spend * 1e3),
        notes=[
            f"{ids:,} ids, windows of 10 purchases, epochs of as many rows as fast as they go,"
            f" Q = {round(_OPEN * ids):,}: a target out of reach. 0 % is the policy `none`.",
            f"The paper has CI = 10 ms and CP from 25 to 250 ms. Here windows are seen to once per epoch at most, so"
            f" that a CP below an epoch is one epoch: CI is {_OF_AN_EPOCH:.0%} of an epoch without footprints,"
            f" {spend * 1e3:.0f} ms, and CP as the ratio asks for. `spent percent` is what was spent in fact, of the"
            " busiest partition.",
            "`response` is the mean time from the opening to the closing of a window: from the commit of the epoch that"
            f" read its first purchase to that of the epoch that read its last one, of all windows that opened"
            f" in the epochs {warm} to {epochs - _LONGEST} and have closed at the end. It goes by throughput alone,"
            " for rows are not due at any time; the paper's does, too.",
            "`against none` is the response divided by that of 0 % in the same round, `cpu against none` the same for"
            " the CPU time of the tasks per row, which other load on the machine disturbs less.",
            "`extent` is what a recovery would read after the last epoch; `ec load` is how long the code of recovery"
            " takes to load it, without a replay.",
            *limit.notes(),
        ],
        plot=lambda figure: _plot(figure, rows),
        shown=("rounds", "response_s", "against_none", "cpu_against_none", "tuples_per_s", "epoch_p50_ms",
               "epoch_p95_ms", "spent_percent", "longest_stall_ms", "checks_per_epoch", "extent", "replay_rows",
               "ec_load_s"),
        also={"runs": told, "ci_ms": spend * 1e3},
    )  # fmt: skip


def policy_of(percent: int, spend: float, records: int) -> CheckpointPolicy | None:
    """Footprints towards so many `records`, for `spend` seconds out of as many as make it this share; None for none."""

    if not percent:
        return None
    return EventualPolicy(FootprintRules(most_records=records, spend=spend, period=spend * 100 / percent))


def run_one(
    spark: SparkSession, query: EventualQuery, policy: CheckpointPolicy | None, home: Path, warm: int, epochs: int
) -> dict[str, Any]:
    """The figures of one run, from epoch `warm` on; its files are removed."""

    loaded: list[dict[str, Any]] = []
    ran = run_query(
        spark, query, policy or NONE, home, epochs, crashes=(epochs,) if policy else (), lose=False, go_on=not policy,
        before_recovery=lambda options: loaded.append(load_times(query, home / "out", options, 3)),
    )  # fmt: skip
    remove(home)
    own, seconds = between(ran.reports, warm)
    took = response_times(query, ran.reports, warm, max(warm, epochs - _LONGEST))
    left = footprints(own)
    return {
        **figures(ran.reports, warm),
        "response_s": fmean(took) if took else None,
        "response_p95_s": percentile(took, 0.95) if took else None,
        "windows_measured": len(took),
        "spent_percent": 100 * sum(footprint.seconds for footprint in left) / seconds,
        "longest_stall_ms": max((footprint.seconds for footprint in left), default=0.0) * 1e3,
        "checks_per_epoch": sum(footprint.checked for footprint in left) / len(own),
        "open_windows": left[-1].open_windows if left else None,
        "extent": left[-1].extent if left else None,
        "replay_rows": left[-1].replay if left else None,
        "ec_load_s": loaded[0]["ec_load_s"] if loaded else None,
    }


def _turn(number: int) -> list[int]:
    """Beginning with both ends; the other way around every second time."""
    order = [0, 40, 4, 10, 20]
    assert sorted(order) == sorted(_RATIOS)
    return order if number % 2 == 0 else order[::-1]


def summed(told: Sequence[Row]) -> list[dict[str, Any]]:
    """Medians over the rounds, and of the ratio to the run without footprints within each."""
    plain = {run["round"]: run["response_s"] for run in told if not run["ci_over_cp_percent"]}
    spent = {run["round"]: run["cpu_us_per_tuple"] for run in told if not run["ci_over_cp_percent"]}
    rows = []
    for percent in sorted({run["ci_over_cp_percent"] for run in told}):
        own = [run for run in told if run["ci_over_cp_percent"] == percent]
        ratios = [run["response_s"] / plain[run["round"]] for run in own if run["round"] in plain]
        by_cpu = [run["cpu_us_per_tuple"] / spent[run["round"]] for run in own if run["round"] in spent]
        numbers = [name for name, value in own[0].items() if isinstance(value, int | float)]
        rows.append(
            {
                **{name: median(run[name] for run in own) for name in numbers if name != "round"},
                "ci_over_cp_percent": percent,
                "rounds": len(own),
                "against_none": median(ratios) if ratios else None,
                "cpu_against_none": median(by_cpu) if by_cpu else None,
            }
        )
    return rows


def bars(rows: Sequence[Row], spend_ms: float) -> list[Bar]:
    """What the paper says of both ends, and that nobody waits longer than was allowed."""
    by_percent = {row["ci_over_cp_percent"]: row for row in rows}
    least, most = by_percent.get(4), by_percent.get(40)
    found = [at_most("CI/CP = 4 %: response against none", least["against_none"] if least else None, 1.10)]
    if least is not None and most is not None:
        found.append(at_most("extent at 40 % against that at 4 %", most["extent"] / least["extent"], 1.0))
    stalls = [row["longest_stall_ms"] for row in rows if row["ci_over_cp_percent"]]
    return [*found, at_most("longest stall for footprints (CI), ms", max(stalls, default=None), spend_ms)]


def _plot(figure: Figure, rows: Sequence[Row]) -> None:

    left, right = figure.subplots(1, 2)
    said = [row for row in _PAPER if row.get("against_none") is not None]
    left.plot([row["ci_over_cp_percent"] for row in rows], [row["against_none"] for row in rows], "o-",
              color=COLOURS[0], label="here")  # fmt: skip
    left.plot([row["ci_over_cp_percent"] for row in said], [row["against_none"] for row in said], "s--", color="black",
              label="the paper")  # fmt: skip
    left.set_ylabel("response time against none")
    left.legend()
    own = [row for row in rows if row["ci_over_cp_percent"]]
    right.plot([row["ci_over_cp_percent"] for row in own], [row["extent"] for row in own], "o-", color=COLOURS[0])
    right.set_ylabel("extent, records")
    for axes in (left, right):
        axes.set_xlabel("CI / CP, %")
        axes.set_ylim(bottom=0)


EXPERIMENT = Experiment(
    name="cec-period",
    title="Response time and extent by the share of the time for footprints",
    figure="CEC, Figs. 8 and 9",
    needs="Java 17; a disk that syncs; memory to write to (tmpfs)",
    run=run,
)
