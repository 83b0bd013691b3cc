"""What checkpoints hold, how long they take and what they cost, on Holdfast and on Flink, query by query.

Holdfast commits every epoch: the checkpoint is the state of the epoch, of which only what is new is written. Flink
takes a checkpoint every second. The cost is the throughput that is lost against a run of the same engine without.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Sequence
from statistics import mean
from typing import Any

from holdfast_lab.bench.query_runs import session
from holdfast_lab.experiment.definition import Bar, Experiment, Figure, Result, Row, Settings, at_most
from holdfast_lab.experiment.plots import grouped_bars
from holdfast_lab.experiment.scabbard.query_comparison import QueryTable
from holdfast_lab.experiment.scabbard.query_engines import EngineRounds, flink_lines, holdfast_rounds, load_of
from holdfast_lab.experiment.scabbard.query_report import NAMES
from holdfast_lab.workloads.flink_run import FlinkRun, run_flink

__all__ = ["EXPERIMENT", "bars", "paper", "run"]

HOLDFAST, FLINK = "holdfast", "flink"
MOST_OVERHEAD = 10.0
QUICK_NAMES = ("YSB", "CM1")
_QUICK_SECONDS = 90.0

_PAPER = {
    "CM1": ((18, 25.7, 4), (0.08, 292, 5)),
    "CM2": ((10, 44.3, 9), (0.08, 275, 3)),
    "SG1": ((2, 89.6, 1), (0.03, 291, 1)),
    "SG2": ((41, 68.6, 7), (0.08, 290, 11)),
    "SG3": ((115, 103.6, 2), (3.3, 60_000, 17)),
    "LRB1": ((114, 122.7, 5), (4.2, 9_000, 15)),
    "LRB2": ((105, 168.6, 14), (5.9, 1_000, 20)),
    "LRB3": ((143, 361, 1), (6, 2_000, 10)),
    "YSB": ((23, 23.1, 6), (0.13, 311, 1)),
    "NQ": ((27, 49.1, 4), (2.68, 932, 10)),
}
"""Table 4: state in MB, average checkpoint time in ms and overhead in per cent, of Scabbard and of Flink."""


def run(settings: Settings) -> Result:

    names = settings.pick(quick=QUICK_NAMES, full=NAMES)
    table = QueryTable(settings.say, time.monotonic() + _QUICK_SECONDS if settings.quick else None)
    for group in [[name] for name in names] if settings.quick else [list(names)]:
        _on_holdfast(settings, group, table)
        _on_flink(settings, group, table)
    rows = sorted(table.rows.values(), key=lambda row: (NAMES.index(row["query"]), row["engine"] == FLINK))
    return Result(
        keys=("query", "engine"),
        rows=rows,
        paper=paper(),
        bars=bars(rows),
        notes=[*_notes(settings.quick), *table.notes],
        plot=lambda figure: draw(figure, rows),
    )


def _on_holdfast(settings: Settings, names: Sequence[str], table: QueryTable) -> None:

    if table.over():
        table.notes.append(f"{', '.join(names)}: no time was left.")
        return
    rounds, seconds = settings.pick(quick=1, full=3), settings.pick(quick=3.0, full=5.0)
    with session("holdfast") as spark:
        for name in names:
            place = settings.work / f"holdfast-{name}"
            load = load_of(name, settings.seed)
            found = table.tried(
                name, HOLDFAST, "its rounds", holdfast_rounds, spark, load, place, seconds=seconds, rounds=rounds
            )
            if found is not None:
                table.put(name, HOLDFAST, **holdfast_columns(found))
                table.say(f"{name} on {HOLDFAST}: {table.rows[name, HOLDFAST]}")


def holdfast_columns(found: EngineRounds) -> dict[str, Any]:
    """Means over the runs with fault tolerance."""
    runs = [run for run in found.kept if run.epochs]
    if not runs:
        return {"state_mb": None, "checkpoint_ms": None, "overhead_percent": None}
    return {
        "state_mb": round(mean(run.notes["state_bytes"] for run in runs) / 1e6, 3),
        "written_mb": round(mean(run.notes["written_bytes_per_epoch"] for run in runs) / 1e6, 3),
        "checkpoint_ms": round(mean(run.notes["commit_ms"] for run in runs), 2),
        "overhead_percent": None if found.ratio is None else round(100 * (1 - found.ratio), 1),
        "checkpoints": sum(run.epochs for run in runs),
        "tuples_per_s": round(mean(run.tuples_per_s for run in runs)),
    }


def _on_flink(settings: Settings, names: Sequence[str], table: QueryTable) -> None:

    seconds, warm_up = settings.pick(quick=5.0, full=12.0), settings.pick(quick=3.0, full=8.0)
    for name in names:
        if table.over():
            table.notes.append(f"{name} on {FLINK}: no time was left.")
            continue
        place = settings.work / f"flink-{name}"
        given = flink_lines(
            load_of(name, settings.seed), place / "input", settings.pick(quick=300_000_000, full=800_000_000)
        )
        try:
            kept, bare = (
                table.tried(
                    name, FLINK, f"the run {'with' if checkpoints else 'without'} checkpoints",
                    run_flink, place / str(checkpoints), name, given, seconds,
                    checkpoints=checkpoints, heap=False, warm_up=warm_up,
                )
                for checkpoints in (True, False)
            )  # fmt: skip
        finally:
            shutil.rmtree(place, ignore_errors=True)
        if kept is not None:
            table.put(name, FLINK, **flink_columns(kept, bare))
            table.say(f"{name} on {FLINK}: {table.rows[name, FLINK]}")
            if not kept.checkpoints:
                table.notes.append(f"{name} on {FLINK}: no checkpoint was completed within {kept.seconds:.0f} s.")


def flink_columns(kept: FlinkRun, bare: FlinkRun | None) -> dict[str, Any]:
    """Means over the checkpoints; null where none was completed."""
    done = kept.checkpoints
    lost = 1 - kept.tuples_per_s / bare.tuples_per_s if bare is not None and bare.tuples_per_s else None
    return {
        "state_mb": round(mean(checkpoint.state_bytes for checkpoint in done) / 1e6, 3) if done else None,
        "written_mb": round(mean(checkpoint.written_bytes for checkpoint in done) / 1e6, 3) if done else None,
        "checkpoint_ms": round(1_000 * mean(checkpoint.seconds for checkpoint in done), 1) if done else None,
        "overhead_percent": None if lost is None else round(100 * lost, 1),
        "checkpoints": len(done),
        "tuples_per_s": round(kept.tuples_per_s),
    }


def bars(rows: Sequence[Row]) -> list[Bar]:
    """Fault tolerance may cost a tenth of the throughput, on every query."""
    return [
        at_most(f"{row['query']}: overhead of fault tolerance, per cent", row.get("overhead_percent"), MOST_OVERHEAD)
        for row in rows
        if row["engine"] == HOLDFAST
    ]


def paper() -> list[dict[str, Any]]:
    columns = ("state_mb", "checkpoint_ms", "overhead_percent")
    return [
        {"query": name, "engine": engine, **dict(zip(columns, figures, strict=True)), "source": "Table 4"}
        for name, both in _PAPER.items()
        for engine, figures in zip((HOLDFAST, FLINK), both, strict=True)
    ]


def _notes(quick: bool) -> list[str]:
    notes = [
        "Holdfast's checkpoint is the commit of an epoch: `checkpoint_ms` is from the end of the epoch's job to the "
        "end of its commit. The tasks write and sync their p-units before that, inside the job; what this costs is in "
        "the overhead, the median of rounds with syncing and without that take turns.",
        "Flink's `checkpoint_ms` is from a checkpoint's trigger to its completion, state in RocksDB with checkpoints "
        "and without; `written_mb` is what an incremental checkpoint had to write.",
        "The paper's figures for Holdfast are Scabbard's without persistent streams. Its text has the columns of the "
        "table one after the other: the first three are taken as Scabbard's, the last three as Flink's. Flink's "
        "checkpoint time for SG3 is given as more than 60,000 ms; SM is not in the table.",
        "For SG3 and LRB1-3 the paper had to make Flink's checkpoint interval longer; here it is a second.",
    ]
    if quick:
        notes.append(f"Quick: only {' and '.join(QUICK_NAMES)}, as far as the time allows, with one round of Holdfast.")
    return notes


def draw(figure: Figure, rows: Sequence[Row]) -> None:

    known = {(row["query"], row["engine"]): row for row in paper()}
    columns = (("state_mb", "state, MB"), ("checkpoint_ms", "checkpoint, ms"), ("overhead_percent", "overhead, %"))
    for axes, (value, label) in zip(figure.subplots(3, 1, sharex=True), columns, strict=True):
        log = value != "overhead_percent"
        shown = [row for row in rows if row.get(value) is not None and (not log or row[value] > 0)]
        if not shown:
            continue

        def said(row: Row, value: str = value) -> Any:
            return known.get((row["query"], row["engine"]), {}).get(value)

        grouped_bars(axes, shown, group="query", series="engine", value=value, ylabel=label, paper=said, log=log)


EXPERIMENT = Experiment(
    name="checkpoint-overhead",
    title="What checkpoints hold, take and cost",
    figure="Scabbard, Table 4",
    needs="Java; a package registry for Flink, a download of some hundred megabytes on the first run; 6 GB of memory",
    run=run,
)
