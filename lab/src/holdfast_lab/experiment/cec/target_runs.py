"""What `cec-q` and `cec-u` share: runs under different targets, each with a loss in the middle, and their bars."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from holdfast.engine.options import RunOptions
from holdfast.epoch.report import EpochReport
from holdfast.graph.policies import CheckpointPolicy
from holdfast_lab.experiment.cec.eventual_runs import (
    OPEN_ONLY,
    EventualQuery,
    fault_free,
    footprints,
    load_times,
    lost_once,
    remove,
    run_query,
    wrong,
)
from holdfast_lab.experiment.definition import Bar, Figure, Row, Settings, at_most
from holdfast_lab.experiment.plots import COLOURS
from holdfast_lab.experiment.time_limit import TimeLimit

__all__ = ["IDS", "LOADS", "SHOWN", "SPENDS", "case", "load_bars", "loads", "plot", "sized", "stall_bar", "wrong_bar"]

SHOWN = ("g_checks", "extent", "extent_over_open", "open_windows", "ec_load_s", "replay_rows", "replay_per_id",
         "replay_s", "recovery_s", "stall_p50_ms", "longest_stall_ms",
         "longest_stall_cpu_ms", "wrong_rows")  # fmt: skip
IDS = (30_000, 100_000)
"""Of a quick run and of a full one, and the rows of an epoch."""
SPENDS = ((10, 200), (10, 200))
"""CI and CP of a quick run and of a full one, in milliseconds."""
LOADS = {180_000: 0.5, 500_000: 1.5}
"""Extents, and how long it may take to load them. The paper has 5 s and 27 s."""


def case(
    spark: SparkSession,
    query: EventualQuery,
    policy: CheckpointPolicy,
    home: Path,
    crash: int,
    epochs: int,
    expected: Any,
) -> dict[str, Any]:
    """A run that loses its state after epoch `crash`; its files are removed."""
    ran = run_query(spark, query, policy, home, epochs, crashes=(crash,))
    found = {**lost_once(query, ran, crash), "wrong_rows": wrong(home / "out", expected)}
    remove(home)
    return found


def sized(
    settings: Settings,
    spark: SparkSession,
    query: EventualQuery,
    policies: Mapping[Any, CheckpointPolicy],
    key: str,
    crash: int,
    epochs: int,
    limit: TimeLimit,
) -> list[dict[str, Any]]:
    """A row per policy, in the order of their keys; the first policy is run whatever the limit says."""
    expected = fault_free(spark, query, settings.work / "fault-free", epochs)
    rows: list[dict[str, Any]] = []
    for name, policy in policies.items():
        if not limit.allows(f"{key} = {name:g}", needed=not rows):
            continue
        found = case(spark, query, policy, settings.work / f"{key}-{name}", crash, epochs, expected)
        settings.say(
            f"{key} = {name:g}: {found['g_checks']:,} checks, extent {found['extent']:,},"
            f" load {found['ec_load_s']:.2f} s, replay of {found['replay_rows']:,} rows {found['replay_s']:.2f} s"
        )
        rows.append({key: name, **found})
    return sorted(rows, key=lambda row: row[key])


def loads(
    spark: SparkSession, query: EventualQuery, home: Path, extents: Sequence[int], times: int
) -> list[dict[str, Any]]:
    """Let the log grow to extents of so many records, with footprints of opening and closing windows alone, and load
    each as a recovery would, several times."""
    found: list[dict[str, Any]] = []

    def load(options: RunOptions) -> None:
        found.append(load_times(query, home / "out", options, times))

    reached = [lambda report, extent=extent: _extent(report) >= extent for extent in sorted(extents)]
    enough = -(-60 * query.ids // query.epoch_rows)
    run_query(spark, query, OPEN_ONLY, home, enough, crashes=reached, lose=False, before_recovery=load, go_on=False)
    remove(home)
    return [{"asked": extent, **figures} for extent, figures in zip(sorted(extents), found, strict=False)]


def _extent(report: EpochReport) -> int:
    return max((left.extent for left in footprints([report])), default=0)


def load_bars(found: Sequence[Row], most: Mapping[int, float] = LOADS) -> list[Bar]:
    """A bar per extent; None where the log did not get that large."""
    by_extent = {row["asked"]: row for row in found}
    return [
        at_most(f"loading an extent of {by_extent.get(extent, {}).get('extent', extent):,} records, s",
                by_extent.get(extent, {}).get("ec_load_s"), seconds)
        for extent, seconds in most.items()
    ]  # fmt: skip


def stall_bar(rows: Sequence[Row], spend_ms: float) -> Bar:
    return at_most("longest stall for footprints (CI), ms", max(row["longest_stall_ms"] for row in rows), spend_ms)


def wrong_bar(rows: Sequence[Row]) -> Bar:
    return at_most("rows lost or too many, all runs", sum(row["wrong_rows"] for row in rows), 0)


def plot(figure: Figure, rows: Sequence[Row], key: str, xlabel: str, paper: Sequence[Row]) -> None:
    """Four panels as in the paper."""

    panels = figure.subplots(2, 2).ravel()
    names = {"g_checks": "Gchecks emitted", "extent_over_open": "extent / open windows", "ec_load_s": "EC-load, s",
             "replay_per_id": "rows to replay per id"}  # fmt: skip
    for axes, (name, label) in zip(panels, names.items(), strict=True):
        axes.plot([row[key] for row in rows], [row[name] for row in rows], "o-", color=COLOURS[0], label="here")
        said = [(row[key], row[name]) for row in paper if row.get(key) is not None and row.get(name) is not None]
        if said:
            axes.plot(*zip(*said, strict=True), "s--", color="black", label="the paper")
            axes.legend()
        axes.set_xlabel(xlabel)
        axes.set_ylabel(label)
        axes.set_ylim(bottom=0)
