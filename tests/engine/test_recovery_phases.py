"""How a fragment comes back: four phases in their order, only what is needed is loaded, what was planned runs so."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from polars.testing import assert_frame_equal
from pyspark.sql import SparkSession

import holdfast as hf
from commits import around_commits
from holdfast.engine import recovery as module
from holdfast.engine.recovery import PHASES, Needed, Recovery, RecoveryReport
from holdfast.epoch.plan import EpochPlan
from holdfast.epoch.record_change import record_of
from holdfast.errors import CorruptPUnitError
from holdfast.meta import Lease, MetaStore
from holdfast.pstream import PUnit, write_punit
from holdfast.pstream.link import StreamPart
from holdfast.pstream.pstream import PStream
from holdfast.store import DirectoryStore, segment_of, start_in
from observers import watching

EVENTS = pl.DataFrame(
    {"ts": range(0, 32_000, 20), "k": [i % 5 for i in range(1600)], "v": [(i * 7919) % 101 for i in range(1600)]}
)
LOST = 2


def declare(home: Path) -> hf.Pipeline:
    pipeline = hf.Pipeline("p")
    source = hf.source.memory([EVENTS[start : start + 200] for start in range(0, 1600, 200)], epochs=True)
    rows = pipeline.source("in", source, event_time="ts", time_unit="ms").persist("kept", push_up=False)
    windows = rows.key_by("k").window(hf.window.tumbling("5s"), name="window").agg(n=hf.count(), total=hf.sum("v"))
    windows.sink("out", hf.sink.parquet(home / "out"))
    return pipeline


def expected() -> pl.DataFrame:
    return (
        EVENTS.group_by("k", (pl.col("ts") // 5000 * 5000).alias("window_start"))
        .agg(n=pl.len().cast(pl.Int64), total=pl.col("v").sum())
        .with_columns(window_end=pl.col("window_start") + 5000)
        .select("k", "window_start", "window_end", "n", "total")
    )


def stored(home: Path) -> tuple[dict[int, Any], dict[int, Any]]:
    """Commits and planned epochs of the reader."""
    meta = MetaStore(home / "store")
    try:
        return {c.epoch: c for c in meta.commits("p.out")}, {p.epoch: p.plan for p in meta.planned("p.out")}
    finally:
        meta.close()


def reading(home: Path, spark: SparkSession, rows: int, **options: Any) -> None:
    hf.run(
        declare(home), spark=spark, fragments=["out"], store=home / "store", least_rows=rows, most_rows=rows, **options
    )


def units_of(plan: str) -> list[PUnit]:
    pieces = EpochPlan.decode(plan).slices_of("kept")
    return [unit for piece in pieces for unit in StreamPart.of(piece).units]


@pytest.mark.spark
def test_a_reader_that_was_lost_loads_what_it_needs_and_runs_what_was_planned(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hf.run(declare(tmp_path), spark=spark, fragments=["kept"], store=tmp_path / "store")

    def lost(meta: MetaStore, lease: Lease, epoch: int) -> None:
        if lease.pipeline == "p.out" and epoch == LOST:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        around_commits(before=lost, patch=patch.setattr)
        with pytest.raises(KeyboardInterrupt):
            reading(tmp_path, spark, 400)
    commits, planned = stored(tmp_path)
    assert max(commits) == LOST - 1
    assert min(planned) == LOST
    needed = [unit for plan in planned.values() for unit in units_of(plan)]
    assert sum(unit.rows for unit in needed) == 400 * len(planned)

    damage_stops_it_by_name(tmp_path, spark, needed[-1], max(planned))
    assert stored(tmp_path) == (commits, planned), "nothing was committed, nothing planned anew"

    opened: list[str] = []
    open_table = module.open_table

    def seen(store: DirectoryStore, unit: PUnit) -> Any:
        opened.append(unit.name)
        return open_table(store, unit)

    monkeypatch.setattr(module, "open_table", seen)
    reports: list[RecoveryReport] = []
    reading(tmp_path, spark, 200, observer=watching(recovered=reports.append))
    [report] = reports
    state = {name.name for part in record_of(commits[LOST - 1]).state["window"] for name in pieces(part)}
    assert state
    assert sorted(opened) == sorted({unit.name for unit in needed} | state), "each once, and no others"
    assert (report.fragment, report.epoch, report.replayed) == ("p.out", LOST - 1, len(planned))
    assert report.units == len(opened)
    assert report.bytes >= sum(unit.bytes for unit in needed)
    assert tuple(report.seconds) == PHASES
    assert all(seconds >= 0 for seconds in report.seconds.values())
    assert report.seconds["replay"] > 0
    assert report.positions == {"kept": EpochPlan.decode(planned[max(planned)]).positions["kept"]}
    after, left = stored(tmp_path)
    assert not left
    for epoch, plan in planned.items():
        assert after[epoch].plan == plan, "exactly as planned, though it would now be planned otherwise"
    assert_frame_equal(hf.read_output(tmp_path / "out", "parquet"), expected(), check_row_order=False)


def pieces(manifest: Any) -> list[PUnit]:
    return [piece.punit for piece in manifest.pieces]


def damage_stops_it_by_name(home: Path, spark: SparkSession, unit: PUnit, epoch: int) -> None:
    meta = MetaStore(home / "store")
    path = PStream(meta, home / "store", "p.kept").store.path(segment_of(unit.name) or unit.name)
    meta.close()
    data = path.read_bytes()
    at = (start_in(path, unit.name) or 0) + unit.bytes - 20
    path.write_bytes(data[:at] + bytes([data[at] ^ 2]) + data[at + 1 :])
    with pytest.raises(
        CorruptPUnitError, match=rf"operator 'kept', epoch {epoch}: .*{segment_of(unit.name)} .*checksum"
    ):
        reading(home, spark, 200)
    path.write_bytes(data)


# without Spark


def test_the_phases_are_timed_one_after_the_other() -> None:
    now = iter([0.0, 1.0, 1.0, 3.0, 3.0, 7.0, 7.0, 15.0])
    recovery = Recovery(lambda: next(now))
    for phase in PHASES:
        recovery.enter(phase)
    report = recovery.done("f", 4, 2, {})
    assert dict(report.seconds) == {"progress": 1.0, "upstream request": 2.0, "data": 4.0, "replay": 8.0}
    assert list(report.seconds) == list(PHASES)
    assert report.total == 15.0


def test_p_units_are_loaded_in_parallel_and_all_are_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = DirectoryStore(tmp_path, False)
    units = [write_punit(store, f"{number}.arrow", pl.DataFrame({"v": [number]})) for number in range(12)]
    at_once: list[int] = []
    inside = [0]
    lock = threading.Lock()
    open_table: Callable[..., Any] = module.open_table

    def slow(*given: Any) -> Any:
        with lock:
            inside[0] += 1
            at_once.append(inside[0])
        time.sleep(0.01)
        with lock:
            inside[0] -= 1
        return open_table(*given)

    monkeypatch.setattr(module, "open_table", slow)
    recovery = Recovery(time.monotonic)
    recovery.load([Needed(store, unit, "op", 3) for unit in units])
    assert max(at_once) > 1
    assert len(at_once) == recovery.units == 12
    assert recovery.bytes == sum(unit.bytes for unit in units)
    (tmp_path / "11.arrow").unlink()
    with pytest.raises(CorruptPUnitError, match=r"operator 'op', epoch 3: .*11\.arrow is missing"):
        recovery.load([Needed(store, unit, "op", 3) for unit in units])
