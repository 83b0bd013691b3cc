"""Experiment `remote-storage`, Fig. 14 of Scabbard: the store on a disk behind a network.

The queries run with their store on the local disk, on one that is as slow as the paper's remote block storage
(`slow_disk.py`), and without a disk, in long epochs and in short ones: what a sync costs is by the epoch.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Any

from holdfast.errors import HoldfastError
from holdfast_lab.experiment.definition import Bar, Experiment, Figure, Result, Row, Settings, at_least, at_most
from holdfast_lab.experiment.plots import grouped_bars
from holdfast_lab.experiment.scabbard.slow_disk import SlowDisk

__all__ = ["EXPERIMENT", "LOCAL", "NO_DISK", "REMOTE", "compared"]

NO_DISK, LOCAL, REMOTE = "no disk", "local", "remote"
_QUERIES = ("CM1", "CM2", "SG1", "SG2", "SG3", "LRB1", "LRB2", "LRB3", "YSB", "NQ", "SM")
_QUICK_QUERIES = ("YSB", "SG1")
_EPOCHS = (1.0, 0.05)
_QUICK_SECONDS, _FULL_SECONDS = 70.0, 1_800.0
_VOLUME = SlowDisk(latency=0.001, bandwidth=700e6, operations=16_000)
"""The paper's volume: its bandwidth and operations per second; the latency is what such volumes are sold with."""
_SOURCE = "Scabbard, §6.7 and Fig. 14"
_LEAST = 0.9
"""Of the throughput without a disk that must remain with a remote one, in long epochs."""
_MOST = 2.0
"""Times the latency of the local disk."""


def run(settings: Settings) -> Result:
    remote, local = settings.work / REMOTE, settings.work / LOCAL
    remote.mkdir()
    local.mkdir()
    asked = {
        "queries": settings.pick(quick=_QUICK_QUERIES, full=_QUERIES),
        "places": {NO_DISK: None, LOCAL: str(local), REMOTE: str(remote)},
        "latencies": _EPOCHS,
        "seconds": settings.pick(quick=1.5, full=5.0),
        "seed": settings.seed,
        "until": time.time() + settings.pick(quick=_QUICK_SECONDS, full=_FULL_SECONDS),
    }
    child = subprocess.Popen(
        [sys.executable, "-m", "holdfast_lab.experiment.scabbard.storage_runs"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        env={**os.environ, **_VOLUME.environment(remote, settings.work)},
    )  # fmt: skip
    found: list[dict[str, Any]] = []
    try:
        assert child.stdin is not None
        assert child.stdout is not None
        child.stdin.write(json.dumps(asked))
        child.stdin.close()
        for line in child.stdout:
            found.append(json.loads(line))
            settings.say(", ".join(f"{name} {value}" for name, value in found[-1].items()))
        child.wait()
    finally:
        if child.poll() is None:
            child.terminate()
            child.wait()
    if child.returncode != 0 or not found:
        raise HoldfastError("the runs ended early", cure="see what they said above")
    rows = compared([row for row in found if not row.get("left_out")])
    left = [f"{row['query']} on {row['disk']} at {row['epoch_s']:g} s" for row in found if row.get("left_out")]
    return Result(
        keys=("query", "epoch_s", "disk"),
        rows=rows,
        paper=_paper(),
        bars=_bars(rows),
        notes=[*_notes(), *([f"No time was left for: {', '.join(left)}."] if left else [])],
        plot=lambda figure: _plot(figure, rows),
        shown=("tuples_per_s", "of_no_disk", "latency_p50_ms", "latency_p75_ms", "latency_p95_ms", "times_local_p75",
               "commit_ms"),
    )  # fmt: skip


def compared(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Each row with its throughput beside that without a disk, and its latency beside that of the local disk."""
    by = {(row["query"], row["epoch_s"], row["disk"]): row for row in rows}

    def over(row: Row, disk: str, column: str) -> float | None:
        other = by.get((row["query"], row["epoch_s"], disk), {}).get(column)
        return round(row[column] / other, 3) if other and row.get(column) else None

    return [
        {
            **row,
            "of_no_disk": over(row, NO_DISK, "tuples_per_s"),
            "times_local_p75": over(row, LOCAL, "latency_p75_ms"),
        }
        for row in rows
    ]


def _paper() -> list[dict[str, Any]]:
    slower = f"{_SOURCE}: up to 12 times the 75th percentile, with larger batches"
    rest = f"{_SOURCE}: less than twice the latency"
    return [
        {"query": name, "disk": REMOTE, "times_local_p75": 12 if name in ("CM1", "CM2", "SG1", "YSB") else 2,
         "source": slower if name in ("CM1", "CM2", "SG1", "YSB") else rest}
        for name in _QUERIES
    ]  # fmt: skip


def _bars(rows: Sequence[Row]) -> list[Bar]:
    found = []
    for row in rows:
        if row["disk"] == REMOTE and row["epoch_s"] == max(_EPOCHS):
            found.append(at_least(f"{row['query']}: throughput of that without a disk", row["of_no_disk"], _LEAST))
            found.append(at_most(f"{row['query']}: times the latency of the local disk", row["times_local_p75"], _MOST))
    return found


def _notes() -> list[str]:
    return [
        f"The remote disk answers a sync after {1e3 * _VOLUME.latency:g} ms and takes {_VOLUME.bandwidth / 1e6:.0f}"
        f" MB/s and {_VOLUME.operations:,.0f} operations of 256 kB per second from all processes together, on top of"
        " what the local disk takes. All syncs of the store wait for it, those of SQLite among them; reads do not.",
        "Epochs of a second are the paper's large batches, those of 50 ms its small ones. Latency is that of an epoch,"
        " from its plan to its commit.",
        "'no disk' has its store in memory where there is a tmpfs, unsynced.",
    ]


def _plot(figure: Figure, rows: Sequence[Row]) -> None:

    for epoch, axes in zip(_EPOCHS, figure.subplots(2, 2), strict=True):
        own = [row for row in rows if row["epoch_s"] == epoch]
        grouped_bars(axes[0], own, group="query", series="disk", value="tuples_per_s", ylabel="tuples/s", log=True)
        label = f"latency, ms (75 %), epochs of {epoch:g} s"
        grouped_bars(axes[1], own, group="query", series="disk", value="latency_p75_ms", ylabel=label)


EXPERIMENT = Experiment(
    name="remote-storage",
    title="Throughput and latency with the store on a remote disk, a local one and none",
    figure="Scabbard, Fig. 14",
    needs="Java 17; Linux with a C compiler; a disk that syncs",
    run=run,
)
