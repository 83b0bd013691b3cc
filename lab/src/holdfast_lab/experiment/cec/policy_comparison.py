"""Experiment `cec-policies`: all checkpoint policies on the same windows, what they write and how they come back.

No figure of the paper: it compares with no other kind of checkpoint. Which policy writes least among those that recover
soon enough is said for each workload.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from pyspark.sql import SparkSession

from holdfast.graph.policies import CheckpointPolicy, as_policy
from holdfast_lab.bench.query_runs import session
from holdfast_lab.experiment.cec.eventual_runs import (
    EventualQuery,
    EventualRun,
    fault_free,
    figures,
    footprints,
    remove,
    run_query,
    wrong,
)
from holdfast_lab.experiment.definition import Experiment, Figure, Result, Row, Settings, at_most
from holdfast_lab.experiment.plots import COLOURS, MARKERS
from holdfast_lab.experiment.time_limit import TimeLimit

__all__ = ["EXPERIMENT", "best", "run_one", "summed", "where_eventual", "written"]

POLICIES = {
    "none": "none",
    "delta": "delta",
    "interval(1 s)": "interval(1s)",
    "interval(5 s)": "interval(5s)",
    "eventual(1 s)": "eventual(1s)",
    "eventual(5 s)": "eventual(5s)",
}
_QUICK = ("none", "eventual(1 s)", "delta", "interval(1 s)")
_TARGETS = (1.0, 2.0, 5.0, 10.0)
_WARM = 4
_QUICK_SECONDS = 85.0


def sizes(quick: bool) -> int:
    """The ids, the rows of an epoch, and those of a second of event time."""
    return 30_000 if quick else 100_000


def workloads(seed: int, quick: bool) -> dict[EventualQuery, tuple[list[int], int]]:
    """Queries, after which epochs their state is lost, and how many epochs they have."""

    losses, epochs = ([24], 28) if quick else ([40, 52, 65], 72)
    pane = 20 if quick else 60
    ids = sizes(quick)
    hot = ids // 100
    return {
        EventualQuery("windows of 10", ids, size=10, epoch_rows=ids, seed=seed): (losses, epochs),
        EventualQuery("windows of 1,000", ids, size=1_000, hot=hot, epoch_rows=ids, seed=seed): (losses, epochs),
        EventualQuery("panes of time", ids, window=f"{pane}s", epoch_rows=ids, rate=float(ids), seed=seed): (
            [pane // 2 + 4] if quick else [pane // 3, pane // 3 * 2, pane + pane // 2],
            pane + 4 if quick else 2 * pane + 4,
        ),
    }


def run(settings: Settings) -> Result:

    names = settings.pick(quick=_QUICK, full=tuple(POLICIES))
    rounds = settings.pick(quick=1, full=2)
    told: list[dict[str, Any]] = []
    with session("holdfast") as spark:
        limit = TimeLimit(settings.pick(quick=_QUICK_SECONDS, full=5_400.0))
        for query, (losses, epochs) in workloads(settings.seed, settings.quick).items():
            if not limit.allows(query.name, needed=not told):
                continue
            expected = fault_free(spark, query, settings.work / "fault-free", epochs)
            for number in range(rounds):
                for name in names if number % 2 == 0 else names[::-1]:
                    if not limit.allows(f"{query.name}, {name}", needed=len(told) < 2):
                        continue
                    home = settings.work / f"{len(told)}"
                    found = run_one(spark, query, POLICIES[name], home, losses, epochs, expected)
                    settings.say(
                        f"{query.name}, {name}: {found['tuples_per_s'] / 1e3:.0f} k tuples/s,"
                        f" {found['bytes_per_row']:.2f} bytes/row, recovery {found['recovery_s']:.2f} s"
                    )
                    told.append({"workload": query.name, "policy": name, "round": number, **found})
    rows = summed(told)
    verdicts = best(rows, _TARGETS)
    return Result(
        keys=("workload", "policy"),
        rows=rows,
        bars=[at_most("rows lost or too many, all runs", sum(row["wrong_rows"] for row in rows), 0)],
        notes=[
            *(verdict["text"] for verdict in verdicts),
            where_eventual(verdicts),
            f"{sizes(settings.quick):,} ids and epochs of as many rows: windows of 10 purchases; windows of 1,000,"
            " where every second purchase is of a hundredth of the ids, so that some windows close and the rest stays"
            f" open; and panes of {settings.pick(quick=20, full=60)} s, which are that many epochs.",
            "Bytes are what is written to the stable tier so that state outlives its host, until the first loss: state"
            " p-units (delta), copies (interval), footprints (eventual). Output, plans and commits are the same for"
            " all and are left out.",
            "`against none` is the throughput until the first loss divided by that of `none` in the same round."
            " `longest stall` is the longest time that tasks were kept with footprints; for `interval`, the longest"
            " copy, which runs beside the epochs; delta has its syncs in every epoch, see `epoch p95`.",
            "A loss takes the volatile tier; recovery is of the same process, without its start, until the rows since"
            " are replayed: medians over the losses. `none` replays everything where windows are counted. When in an"
            " interval its loss falls is left to chance.",
            *limit.notes(),
        ],
        plot=lambda figure: _plot(figure, rows),
        shown=("tuples_per_s", "against_none", "cpu_us_per_tuple", "bytes_per_row", "mb_per_s", "epoch_p95_ms",
               "longest_stall_ms", "recovery_s", "replay_rows", "wrong_rows"),
        also={"runs": told, "best": verdicts},
    )  # fmt: skip


def run_one(
    spark: SparkSession,
    query: EventualQuery,
    policy: str,
    home: Path,
    losses: Sequence[int],
    epochs: int,
    expected: Any,
) -> dict[str, Any]:
    """A run that loses its state after each epoch of `losses`; its files are removed."""

    asked = as_policy(policy)
    assert asked is not None
    ran = run_query(spark, query, asked, home, epochs, crashes=losses)
    mistakes = wrong(home / "out", expected)
    remove(home)
    before = ran.until(losses[0])
    copies = [copy for copy in ran.checkpoints if copy.epoch <= losses[0]]
    size, seconds = written(ran, asked, losses[0]), before[-1].committed - before[0].started
    stalls = [left.seconds for left in footprints(before)] + [copy.seconds for copy in copies]
    came_back = [report for report in ran.recoveries if report.epoch or report.replayed]
    return {
        **figures(before, min(_WARM, len(before) - 1)),
        "bytes": size,
        "bytes_per_row": size / sum(report.rows for report in before),
        "mb_per_s": size / seconds / 1e6,
        "checkpoints": len(copies),
        "longest_stall_ms": max(stalls, default=0.0) * 1e3,
        "extent": footprints(before)[-1].extent if asked.footprints is not None else None,
        "recoveries_s": [report.total for report in came_back],
        "recovery_s": median(report.total for report in came_back),
        "recovery_max_s": max(report.total for report in came_back),
        "replay_rows": median(report.replayed * query.epoch_rows for report in came_back),
        "wrong_rows": mistakes,
    }


def written(ran: EventualRun, policy: CheckpointPolicy, until: int) -> int:
    """Bytes to the stable tier for the sake of state, up to an epoch."""
    reports = ran.until(until)
    state = sum(report.written_bytes for report in reports) if policy.tier == "stable" else 0
    copied = sum(copy.bytes for copy in ran.checkpoints if copy.epoch <= until)
    return state + copied + sum(left.bytes for report in reports for left in report.footprints.values())


def summed(told: Sequence[Row]) -> list[dict[str, Any]]:
    """Medians over the rounds, and of the throughput against `none` within each."""
    rows = []
    for workload, policy in dict.fromkeys((run["workload"], run["policy"]) for run in told):
        own = [run for run in told if (run["workload"], run["policy"]) == (workload, policy)]
        plain = {
            run["round"]: run["tuples_per_s"] for run in told if (run["workload"], run["policy"]) == (workload, "none")
        }
        ratios = [run["tuples_per_s"] / plain[run["round"]] for run in own if run["round"] in plain]
        names = [name for name, value in own[0].items() if isinstance(value, int | float) and name != "round"]
        rows.append(
            {
                "workload": workload,
                "policy": policy,
                **{name: median(run[name] for run in own) for name in names},
                "wrong_rows": sum(run["wrong_rows"] for run in own),
                "against_none": median(ratios) if ratios else None,
            }
        )
    return rows


def best(rows: Sequence[Row], targets: Sequence[float]) -> list[dict[str, Any]]:
    """For each workload and target, the policy that writes least among those whose recovery was within it."""
    found: list[dict[str, Any]] = []
    for workload in dict.fromkeys(row["workload"] for row in rows):
        own = [row for row in rows if row["workload"] == workload]
        choices: list[tuple[float, Mapping[str, Any] | None]] = []
        for target in targets:
            soon = [row for row in own if row["recovery_s"] <= target]
            choices.append((target, min(soon, key=lambda row: row["bytes_per_row"]) if soon else None))
        said = [f"{target:g} s: {_said(row)}" for target, row in choices]
        found.append(
            {
                "workload": workload,
                "best": {f"{target:g}": row["policy"] if row else None for target, row in choices},
                "text": f"{workload}: least bytes written among those that recovered within {'; '.join(said)}.",
            }
        )
    return found


def where_eventual(verdicts: Sequence[Mapping[str, Any]]) -> str:
    """Where eventual checkpoints were the best choice, if anywhere."""
    found = [
        f"{verdict['workload']} within {target} s"
        for verdict in verdicts
        for target, policy in verdict["best"].items()
        if policy is not None and policy.startswith("eventual")
    ]
    return f"`eventual` was the best choice {'for ' + ', '.join(found) if found else 'nowhere'}."


def _said(row: Mapping[str, Any] | None) -> str:
    return "nobody did" if row is None else f"{row['policy']} ({row['bytes_per_row']:.2f} bytes/row)"


def _plot(figure: Figure, rows: Sequence[Row]) -> None:

    names = list(dict.fromkeys(row["workload"] for row in rows))
    policies = list(dict.fromkeys(row["policy"] for row in rows))
    for axes, workload in zip(figure.subplots(1, len(names), squeeze=False)[0], names, strict=True):
        for row in (row for row in rows if row["workload"] == workload):
            place = policies.index(row["policy"])
            axes.plot(row["bytes_per_row"], row["recovery_s"], MARKERS[place], color=COLOURS[place], markersize=9,
                      label=row["policy"])  # fmt: skip
        axes.set_title(workload, fontsize=10)
        axes.set_xlabel("bytes written per row")
        axes.set_ylabel("recovery, s")
        axes.set_ylim(bottom=0)
        axes.legend(fontsize=8)


EXPERIMENT = Experiment(
    name="cec-policies",
    title="Checkpoint policies on the same windows: overhead, bytes and recovery",
    figure="none; with the workloads of CEC, §IV",
    needs="Java 17; a disk that syncs; memory to write to (tmpfs)",
    run=run,
)
