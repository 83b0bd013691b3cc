"""What the experiments on continuous eventual checkpoints (CEC) share: the query, runs of it, and losses of its state.

A loss is of everything but the store: the run ends by an exception after a commit, the volatile directory is removed,
and another run of the same process goes on. So recovery is measured without the start of a process.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from holdfast.connect.sinks.file_sink import parquet, read_output
from holdfast.durability.checkpoints import CheckpointReport
from holdfast.engine.fragment_run import FragmentRun
from holdfast.engine.observer import Observer, Observers
from holdfast.engine.options import RunOptions
from holdfast.engine.recovery import Recovery, RecoveryReport
from holdfast.engine.restart import Restart
from holdfast.engine.spark_platform import SparkPlatform
from holdfast.engine.stream_links import bind_streams
from holdfast.epoch.report import EpochReport, FootprintWork
from holdfast.graph.pipeline import Pipeline
from holdfast.graph.policies import NONE, OPEN_ONLY, CheckpointPolicy
from holdfast.meta import MetaStore
from holdfast.plan.program import compile_program
from holdfast.store import default_volatile
from holdfast_lab.chaos.output_difference import check_expected, compare
from holdfast_lab.workloads.items import ROW_BYTES, Items, average_price, average_price_by_time, items

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["OPEN_ONLY", "Death", "EventualQuery", "EventualRun", "between", "fault_free", "figures", "footprints",
           "in_memory", "load_times", "lost_once", "percentile", "remove", "response_times", "run_query", "volatile_of",
           "wrong"]  # fmt: skip

_PATIENCE = 20.0


Death = int | Callable[[EpochReport], bool]
"""After which epoch a run dies: its number, or what is so of its report."""


@dataclass(frozen=True, slots=True)
class EventualQuery:
    """The average price over windows of `size` purchases, or of `window`, by one of `ids`; epochs of `epoch_rows`."""

    name: str
    ids: int
    size: int = 0
    window: str = ""
    epoch_rows: int = 100_000
    rate: float = 100_000.0
    seed: int = 0
    hot: int = 0

    @property
    def made(self) -> Items:
        return Items(self.ids, self.rate, self.seed, self.hot)

    def pipeline(self, out: Path) -> Pipeline:
        source, sink = items(self.made), parquet(out)
        if self.window:
            return average_price_by_time(source, sink, window=self.window)
        return average_price(source, sink, size=self.size)

    def options(self, home: Path, policy: CheckpointPolicy, epochs: int, store: Path | None = None) -> RunOptions:
        return RunOptions(
            store=store or home / "store",
            checkpoint=policy,
            volatile=volatile_of(home),
            least_rows=self.epoch_rows,
            most_rows=self.epoch_rows,
            max_epochs=epochs,
        )


@dataclass(slots=True)
class EventualRun(Observer):
    """What runs told: reports of epochs in their order, also of those before a loss, copies to the stable tier and
    recoveries."""

    reports: list[EpochReport] = field(default_factory=list)
    checkpoints: list[CheckpointReport] = field(default_factory=list)
    recoveries: list[RecoveryReport] = field(default_factory=list)

    def epoch_committed(self, report: EpochReport) -> None:
        self.reports.append(report)

    def checkpoint_copied(self, report: CheckpointReport) -> None:
        self.checkpoints.append(report)

    def recovered(self, report: RecoveryReport) -> None:
        self.recoveries.append(report)

    def until(self, epoch: int) -> list[EpochReport]:
        return [report for report in self.reports if report.epoch <= epoch]


class _LostError(Exception):
    """The host of the run is gone."""


def volatile_of(home: Path) -> Path:
    """A volatile directory in memory that belongs to one run."""
    return in_memory(f"volatile-{home.name}")


def in_memory(name: str) -> Path:
    """A place in memory, where there is memory to write to, of this process alone. Whoever asks for it removes it."""
    base = default_volatile()
    return base.with_name(f"{base.name}-cec-{os.getpid()}-{name}")


def run_query(
    spark: SparkSession,
    query: EventualQuery,
    policy: CheckpointPolicy,
    home: Path,
    epochs: int,
    *,
    crashes: Sequence[Death] = (),
    store: Path | None = None,
    lose: bool = True,
    go_on: bool = True,
    before_recovery: Callable[[RunOptions], None] = lambda options: None,
) -> EventualRun:
    """Run so many epochs. At each of `crashes` the run dies, its volatile tier is removed (if it is to `lose` it), and
    another run goes on, after the last only if it is to `go_on`. The output is in `home`/out; the volatile tier is
    removed at the end."""
    ran = EventualRun()
    options = query.options(home, policy, epochs, store)
    assert options.volatile is not None
    try:
        for death in [*crashes, *([None] if go_on else [])]:
            # No epoch is planned beyond the one it dies after: its tasks would disturb what comes next.
            alive = replace(options, max_epochs=death) if isinstance(death, int) else options
            watched = Observers(ran, _Dying(death))
            run = FragmentRun(query.pipeline(home / "out"), SparkPlatform(spark), alive, observer=watched)
            try:
                run.run()
            except _LostError:
                _quiet(spark)
                if lose:
                    remove(options.volatile)
                before_recovery(options)
    finally:
        remove(options.volatile)
    return ran


def _quiet(spark: SparkSession) -> None:
    """End the tasks that a dead run has left behind."""
    context = spark.sparkContext
    context.cancelAllJobs()
    until = time.monotonic() + _PATIENCE
    while context.statusTracker().getActiveJobsIds() and time.monotonic() < until:
        time.sleep(0.02)


@dataclass(frozen=True, slots=True)
class _Dying(Observer):
    death: Death | None

    def epoch_committed(self, report: EpochReport) -> None:
        if self.death(report) if callable(self.death) else report.epoch == self.death:
            raise _LostError


def remove(place: Path) -> None:
    """Also while somebody who is about to end still writes to it."""
    while place.exists():
        shutil.rmtree(place, ignore_errors=True)


def fault_free(spark: SparkSession, query: EventualQuery, home: Path, epochs: int) -> pl.DataFrame:
    """The output of a run without a loss. It does not depend on how input is cut into epochs: there are few."""
    few = next(few for few in (4, 3, 2, 1) if epochs % few == 0)
    run_query(spark, replace(query, epoch_rows=query.epoch_rows * epochs // few), NONE, home, few)
    found = read_output(home / "out", "parquet")
    remove(home)
    check_expected(found)
    return found


def wrong(out: Path, expected: pl.DataFrame) -> int:
    """Rows that are lost or too many."""
    difference = compare(read_output(out, "parquet"), expected)
    return difference.lost + difference.duplicated


# what is made of reports


def between(reports: Sequence[EpochReport], warm: int) -> tuple[list[EpochReport], float]:
    """The epochs after the first `warm`, and the seconds they took: from commit to commit."""
    last = reports[warm - 1]
    own = list(reports[warm:])
    return own, own[-1].committed - last.committed


def percentile(values: Sequence[float], share: float) -> float:
    return float(np.quantile(np.asarray(values), share)) if values else 0.0


def footprints(reports: Sequence[EpochReport]) -> list[FootprintWork]:
    """What the operators left, epoch by epoch."""
    return [left for report in reports for left in report.footprints.values()]


def figures(reports: Sequence[EpochReport], warm: int) -> dict[str, float]:
    """Throughput at the source and at the sink, and how long epochs took, from their launch to their commit.

    `real_per_s` counts all that is emitted: results and footprints.
    """
    own, seconds = between(reports, warm)
    results = sum(report.output_rows for report in own)
    left = footprints(own)
    took = [report.committed - report.started for report in own]
    return {
        "tuples_per_s": sum(report.rows for report in own) / seconds,
        "results_per_s": results / seconds,
        "real_per_s": (results + sum(footprint.records for footprint in left)) / seconds,
        "records_per_epoch": sum(footprint.records for footprint in left) / len(own),
        "footprint_bytes": sum(footprint.bytes for footprint in left),
        "cpu_us_per_tuple": sum(sum(report.cpu.values()) for report in own) / sum(report.rows for report in own) * 1e6,
        "epoch_p50_ms": median(took) * 1e3,
        "epoch_p95_ms": percentile(took, 0.95) * 1e3,
        "epoch_max_ms": max(took) * 1e3,
        "seconds": seconds,
    }


def lost_once(query: EventualQuery, ran: EventualRun, crash: int) -> dict[str, Any]:
    """What a loss after epoch `crash` found and what it took, under `eventual`: the last recovery of the run.

    `ec_load_s` is the whole phase of recovery that gathers the state: footprints are read and searched, state is
    written to the volatile tier and checked. `gather_s` is the reading and searching alone.
    """
    report = ran.recoveries[-1]
    before = ran.until(crash)
    last = footprints(before)[-1]
    [gathered] = report.gathered
    rows = report.replayed * query.epoch_rows
    return {
        "g_checks": sum(left.checked for left in footprints(before)),
        "records_written": sum(left.records for left in footprints(before)),
        "extent": gathered.records,
        "extent_over_open": gathered.records / last.open_windows,
        "windows": gathered.windows,
        "open_windows": last.open_windows,
        "ec_load_s": report.seconds["data"],
        "gather_s": gathered.seconds,
        "replay_rows": rows,
        "replay_per_id": rows / query.ids,
        "replay_mb": rows * ROW_BYTES / 1e6,
        "replay_s": report.seconds["replay"],
        "recovery_s": report.total,
        "stall_p50_ms": percentile([left.seconds for left in footprints(before) if left.checked], 0.5) * 1e3,
        "longest_stall_ms": max(left.seconds for left in footprints(before)) * 1e3,
        "longest_stall_cpu_ms": max(left.busy for left in footprints(before)) * 1e3,
    }


def load_times(query: EventualQuery, out: Path, options: RunOptions, times: int) -> dict[str, Any]:
    """Gather the state of a run that ended, as a recovery does after the loss of the volatile tier, several times.

    Nothing is replayed, and the run can go on afterwards as if nothing had been.
    """
    assert options.volatile is not None
    seconds: list[float] = []
    meta = MetaStore(options.store, sync=options.durable)
    aside = options.volatile.with_name(f"{options.volatile.name}-aside")
    options.volatile.rename(aside)
    try:
        for _ in range(times):
            program = bind_streams(compile_program(query.pipeline(out)), meta, options.store.resolve(), options.durable)
            started = time.perf_counter()
            restart = Restart(program, meta, options)
            restart.load(Recovery(time.time), options.tiers(program.name, meta.identity()))
            seconds.append(time.perf_counter() - started)
            remove(options.volatile)
    finally:
        remove(options.volatile)
        aside.rename(options.volatile)
        meta.close()
    [gathered] = restart.gathered
    return {
        "extent": gathered.records, "windows": gathered.windows, "mb": gathered.bytes / 1e6, "times": times,
        "ec_load_s": median(seconds), "ec_load_max_s": max(seconds), "gather_s": gathered.seconds,
    }  # fmt: skip


def response_times(query: EventualQuery, reports: Sequence[EpochReport], first: int, last: int) -> list[float]:
    """From the opening to the closing of the windows that opened in the epochs `first` to `last` and have closed: from
    the commit of the epoch that opened a window to that of the epoch that closed it."""
    commits = np.full(max(report.epoch for report in reports) + 1, np.nan)
    for report in reports:
        commits[report.epoch] = report.committed
    rows = (len(commits) - 1) * query.epoch_rows
    made = query.made
    ids = pl.concat([made(low, min(low + 1_000_000, rows)).select("item_id") for low in range(0, rows, 1_000_000)])
    epoch = pl.int_range(pl.len(), dtype=pl.Int64) // query.epoch_rows + 1
    number = pl.int_range(pl.len(), dtype=pl.Int64).over("item_id") // query.size
    windows = (
        ids.with_columns(epoch=epoch, window=number)
        .group_by("item_id", "window")
        .agg(opened=pl.col("epoch").min(), closed=pl.col("epoch").max(), n=pl.len())
        .filter((pl.col("n") == query.size) & pl.col("opened").is_between(first, last))
    )
    took = commits[windows["closed"].to_numpy()] - commits[windows["opened"].to_numpy()]
    return [float(seconds) for seconds in took]
