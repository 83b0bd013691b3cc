"""Where the time of an epoch goes: measured in tasks and driver, kept in its record, and shown."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import polars as pl
import pytest
from click.testing import CliRunner

import holdfast as hf
from holdfast.cli import main
from holdfast.engine.fragment_run import FragmentRun
from holdfast.engine.in_process_platform import InProcessPlatform
from holdfast.engine.options import RunOptions
from holdfast.epoch.epoch_times import EpochStopwatch, EpochTimes, mean_times
from holdfast.epoch.execution import Execution
from holdfast.epoch.messages import Message
from holdfast.epoch.plan import EpochPlan
from holdfast.epoch.task_commit import TaskCommit
from holdfast.store import sync_clock
from observers import watching


def executed(**given: float | None) -> Execution:
    plan = EpochPlan({}, {}, {}, (2, 2), {}, now=10.0)
    commits = [
        TaskCommit(host="h", stage=0, task=0, seconds=0.30),
        TaskCommit(host="h", stage=0, task=1, seconds=0.50, syncing=0.10),
        TaskCommit(host="h", stage=1, task=0, seconds=0.90, syncing=0.20),
        TaskCommit(host="h", stage=1, task=1, seconds=0.75),
    ]
    messages = [Message(0, commit) for commit in commits]
    return Execution(plan, messages=messages, **{"started": 10.25, "ended": 12.25, "read_at": 10.75, **given})  # type: ignore[arg-type]


def test_the_parts_add_up_to_the_time_from_the_plan_until_readers_see_it() -> None:
    watch = EpochStopwatch()
    watch.ended(executed())
    watch.committed(12.5)
    watch.published(12.75)
    found = watch.last
    assert found.parts() == pytest.approx(
        {"wait": 0.25, "read": 0.4, "exchange": 0.55, "assemble": 0.75, "sync": 0.3, "commit": 0.25, "publish": 0.25}
    )
    assert found.total == pytest.approx(12.75 - 10.0)


def test_waiting_for_the_epoch_before_is_no_exchange() -> None:
    watch = EpochStopwatch()
    found = watch.ended(executed(handed_over=11.0))
    assert (found.wait, found.exchange) == (pytest.approx(0.5), pytest.approx(0.3))


def test_before_its_commit_an_epoch_knows_how_long_that_of_the_one_before_took() -> None:
    watch = EpochStopwatch()
    watch.ended(executed())
    watch.committed(12.5)
    watch.published(12.6)
    assert watch.ended(executed()).commit == pytest.approx(0.25)


def test_the_mean_is_taken_part_by_part() -> None:
    assert mean_times([]) is None
    assert mean_times([EpochTimes(read=1.0), EpochTimes(read=3.0, sync=1.0)]) == EpochTimes(read=2.0, sync=0.5)


class Slow(hf.source.Source):
    """Each epoch takes a moment to read."""

    schema = pl.Schema({"k": pl.Int64})

    def start(self) -> dict[str, int]:
        return {"at": 0}

    def take(self, position: hf.source.Position, rows: int, pieces: int) -> hf.source.Take:
        at = position["at"]
        return hf.source.Take((hf.source.Slice(at, 1, {"at": at}),), {"at": at + 1}, at == 2)

    def read(self, piece: hf.source.Slice) -> Iterator[hf.source.Chunk]:
        time.sleep(0.05)
        yield hf.source.Chunk(pl.DataFrame({"k": [piece.where["at"]]}))


def test_a_run_reports_where_its_time_went_and_status_shows_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def slow_disk(handle: int) -> None:
        time.sleep(0.02)
        fsync(handle)

    fsync = os.fsync
    monkeypatch.setattr(sync_clock.os, "fsync", slow_disk)
    pipeline = hf.Pipeline("timed")
    pipeline.source("rows", Slow()).sink("out", hf.sink.parquet(tmp_path / "out", every=0))
    reports: list[hf.EpochReport] = []
    FragmentRun(
        pipeline,
        InProcessPlatform(),
        RunOptions(store=tmp_path / "store"),
        observer=watching(epoch_committed=reports.append),
    ).run()
    assert len(reports) == 3
    for report in reports:
        assert report.times is not None
        assert report.times.read >= 0.05
        assert report.times.sync >= 0.02
        assert report.times.publish > 0
    shown = CliRunner().invoke(main, ["status", "timed", "--store", str(tmp_path / "store")]).output
    assert "an epoch takes" in shown
    assert all(f"{name} " in shown for name in EpochTimes().parts())
    told = CliRunner().invoke(main, ["status", "timed", "--store", str(tmp_path / "store"), "--json"]).output
    assert '"times":{"wait":' in told.replace(" ", "")
