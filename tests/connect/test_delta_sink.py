"""A Delta table as a sink: whole epochs, each once, whatever is interrupted and however many hosts publish."""

from __future__ import annotations

import json
import os
import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import date, datetime
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from deltalake import DeltaTable, write_deltalake
from polars.testing import assert_frame_equal

import holdfast as hf
from harness import Cut, run_in
from holdfast.connect.sinks import lake_sink, table_files
from holdfast.connect.sinks.delta_sink import DeltaSink
from holdfast.errors import CorruptFileError, DeclarationError, OutputConflictError, OutputUnwritableError
from holdfast.sink import Owner, Receipt, delta
from holdfast.store import Private
from power_loss import steps
from strategies import long_cases

OWNER = Owner("store", "pipeline", "out")
OWN = Private("a directory of the test")
LONG = os.environ.get("HOLDFAST_FUZZ")
SCHEMA = pl.Schema({"k": pl.Int64, "day": pl.String})


def rows(*keys: int) -> pl.DataFrame:
    return pl.DataFrame({"k": keys, "day": [f"day {k % 2}/ü%" for k in keys]}, schema=SCHEMA)


def opened(path: Path, owner: Owner = OWNER, schema: pl.Schema = SCHEMA, committed: int = 0, **given: Any) -> DeltaSink:
    """A sink whose run has begun."""
    sink = delta(path, **given)
    sink.accept(schema)
    sink.attach(owner)
    sink.bind(schema)
    sink.check(committed, {})
    return sink


def prepared(sink: DeltaSink, epoch: int) -> list[Receipt]:
    task: DeltaSink = pickle.loads(pickle.dumps(sink))
    parts = [rows(epoch * 10, epoch * 10 + 1), rows(epoch * 10 + 2)]
    made = [task.prepare(part, epoch=epoch, part=f"0-{n}", attempt="a/1") for n, part in enumerate(parts)]
    task.prepare(rows(666), epoch=epoch, part="0-0", attempt="a/2")  # an attempt that loses
    return [json.loads(json.dumps(receipt)) for receipt in made]


def keys(path: Path) -> list[int]:
    return sorted(pl.read_delta(str(path))["k"].to_list())


def of(*epochs: int) -> list[int]:
    return [epoch * 10 + n for epoch in epochs for n in range(3)]


def staged(sink: DeltaSink) -> list[Path]:
    return [file for file in sink.staging.root.rglob("*") if file.is_file()]


@pytest.mark.parametrize("partition_by", [None, "day"])
def test_epochs_are_published_together_as_one_version_and_once(tmp_path: Path, partition_by: str | None) -> None:
    table = tmp_path / "table"
    sink = opened(table, partition_by=partition_by)
    receipts = [*prepared(sink, 1), *prepared(sink, 2)]
    for receipt in receipts:
        assert all(path.stat().st_size == size for path, size in sink.files(receipt).items())
    assert keys(table) == []
    for _ in range(2):
        sink.publish(2, receipts)
        assert keys(table) == of(1, 2)
        assert DeltaTable(table).version() == 1
    files = len(DeltaTable(table).file_uris())
    assert files == (1 if partition_by is None else 2), "small files of several epochs become one"
    assert_frame_equal(pl.read_delta(str(table)), rows(*of(1, 2)), check_row_order=False)
    assert DeltaTable(table).to_pyarrow_table().num_rows == 6
    sink.forget(2, receipts, OWN)
    sink.sweep(3, OWN)
    assert staged(sink) == []
    assert keys(table) == of(1, 2)


@pytest.mark.parametrize("partition_by", [None, "day"])
def test_a_publication_that_dies_at_any_step_is_finished_and_never_doubled(
    tmp_path: Path, partition_by: str | None
) -> None:
    for dies_at in range(0, 300, 1 if LONG else 4):
        table = tmp_path / str(dies_at)
        sink = opened(table, partition_by=partition_by)
        receipts = [*prepared(sink, 1), *prepared(sink, 2)]
        with steps(dies_at, seen=lambda table=table: _whole(table)) as died:  # type: ignore[misc]
            sink.publish(2, receipts)
        again = opened(table, committed=2)
        again.publish(2, receipts)
        assert keys(table) == of(1, 2)
        with steps(dies_at) as forgetting:
            again.forget(2, receipts, OWN)
        again.publish(2, receipts)
        again.forget(2, receipts, OWN)
        again.sweep(3, OWN)
        assert keys(table) == of(1, 2)
        assert staged(again) == []
        if not died.dead and not forgetting.dead:
            assert dies_at > 10
            return
    raise AssertionError("there are more steps than were tried")


def _whole(table: Path) -> None:
    assert len(keys(table)) in (0, 6), "a part of the epochs is visible"


class Dead(BaseException):
    """As far as the disk is concerned."""


def dying(where: str) -> Callable[..., Any]:
    def die(*_: object) -> None:
        raise Dead(where)

    return die


@pytest.mark.parametrize("where", ["_commit", "_sync_log"])
def test_a_driver_that_dies_around_the_tables_commit_is_followed_by_one_that_sees_how_far_it_was(
    tmp_path: Path, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = tmp_path / "table"
    sink = opened(table)
    receipts = prepared(sink, 1)
    with monkeypatch.context() as patch:
        patch.setattr(DeltaSink, where, dying(where))
        with pytest.raises(Dead):
            sink.publish(1, receipts)
    next_one = opened(table, committed=1)
    next_one.publish(1, receipts)
    next_one.publish(2, prepared(next_one, 2))
    assert keys(table) == of(1, 2)
    assert DeltaTable(table).version() == 2


def test_of_hosts_that_publish_the_same_epochs_at_a_time_one_does(tmp_path: Path) -> None:
    table = tmp_path / "table"
    hosts = [opened(table) for _ in range(4)]
    for epoch in range(1, 6):
        receipts = prepared(hosts[0], epoch)
        with ThreadPoolExecutor(len(hosts)) as pool:
            list(pool.map(lambda host, e=epoch, r=receipts: host.publish(e, r), hosts))  # type: ignore[misc]
    assert keys(table) == of(1, 2, 3, 4, 5)
    assert DeltaTable(table).version() == 5


def test_a_host_that_wakes_up_late_adds_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has looked at the table, has not committed, and goes on when another host is epochs further."""
    table = tmp_path / "table"
    zombie, leader = opened(table), opened(table)
    receipts = prepared(leader, 1)
    commit = DeltaSink._commit

    def paused(self: DeltaSink, epoch: int, files: Any) -> None:
        monkeypatch.setattr(DeltaSink, "_commit", commit)
        leader.publish(1, receipts)
        leader.forget(1, receipts, OWN)
        leader.publish(2, prepared(leader, 2))
        commit(self, epoch, files)

    monkeypatch.setattr(DeltaSink, "_commit", paused)
    zombie.publish(1, receipts)
    zombie.publish(1, receipts)
    assert keys(table) == of(1, 2)


def test_the_log_itself_refuses_a_host_that_has_not_seen_the_others_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = tmp_path / "table"
    zombie, leader = opened(table), opened(table)
    receipts = prepared(leader, 1)
    zombie._fresh()
    stale = zombie._table
    leader.publish(1, receipts)
    looks = iter([stale, stale])  # what a host sees that looks, is stopped, and then commits
    monkeypatch.setattr(zombie, "_fresh", lambda: next(looks, None) or DeltaSink._fresh(zombie))
    zombie.publish(1, receipts)
    assert keys(table) == of(1)


def test_other_writers_do_no_harm(tmp_path: Path) -> None:
    table = tmp_path / "table"
    one, other = opened(table), opened(table, Owner("store", "pipeline", "other"))
    one.publish(1, prepared(one, 1))
    other.publish(1, prepared(other, 2))
    write_deltalake(table, rows(7), mode="append")
    one.publish(2, prepared(one, 3))
    assert keys(table) == [7, *of(1, 2, 3)]


def test_compaction_and_vacuum_leave_rows_and_what_is_staged(tmp_path: Path) -> None:
    table = tmp_path / "table"
    sink = opened(table)
    for epoch in (1, 2, 3):
        sink.publish(epoch, prepared(sink, epoch))
    receipts = prepared(sink, 4)
    others = DeltaTable(table)
    others.optimize.compact()
    others.vacuum(0, dry_run=False, enforce_retention_duration=False, full=True)
    sink.publish(4, receipts)
    assert keys(table) == of(1, 2, 3, 4)


def test_small_files_are_compacted_when_that_is_asked_for(tmp_path: Path) -> None:
    table = tmp_path / "table"
    sink = opened(table, optimize=0)
    deadline = time.monotonic() + 60
    for epoch in range(1, 200):
        sink.publish(epoch, prepared(sink, epoch))
        if len(DeltaTable(table).file_uris()) < epoch:
            break
        assert time.monotonic() < deadline
    if sink._compaction is not None:
        sink._compaction.join(60)
    assert len(DeltaTable(table).file_uris()) < epoch
    assert keys(table) == of(*range(1, epoch + 1))


def test_a_store_that_is_not_the_one_before_is_refused(tmp_path: Path) -> None:
    table = tmp_path / "table"
    sink = opened(table)
    for epoch in (1, 2):
        sink.publish(epoch, prepared(sink, epoch))
    with pytest.raises(OutputConflictError, match="from another store"):
        opened(table, Owner("another", "pipeline", "out"), committed=2)
    with pytest.raises(OutputConflictError, match=r"has epoch 2 .* knows of 1 committed"):
        opened(table, committed=1)
    opened(table, Owner("another", "pipeline", "out"), writer="second")


def test_columns_are_added_on_request_alone(tmp_path: Path) -> None:
    table = tmp_path / "table"
    sink = opened(table)
    sink.publish(1, prepared(sink, 1))
    wider = pl.Schema({**SCHEMA, "more": pl.UInt8})
    with pytest.raises(DeclarationError, match=r"no column 'more'(.|\n)*evolve=True"):
        opened(table, schema=wider, committed=1)
    for _ in range(2):
        sink = opened(table, schema=wider, committed=1, evolve=True)
    frame = rows(50).with_columns(more=pl.lit(3, pl.UInt8))
    sink.publish(2, [sink.prepare(frame, epoch=2, part="0", attempt="a")])
    found = pl.read_delta(str(table)).sort("k")
    assert found["more"].to_list() == [None, None, None, 3]
    assert found.schema["more"] == pl.Int16, "Delta has no unsigned numbers"
    narrower = opened(table, schema=pl.Schema({"k": pl.Int32}), committed=2)
    frame = pl.DataFrame({"k": [60]}, schema={"k": pl.Int32})
    narrower.publish(3, [narrower.prepare(frame, epoch=3, part="0", attempt="a")])
    assert pl.read_delta(str(table)).filter(k=60).rows() == [(60, None, None)]


def test_what_a_table_cannot_hold_is_refused_at_declaration(tmp_path: Path) -> None:
    pipeline = hf.Pipeline("p")
    source = pipeline.source("rows", hf.source.memory(pl.DataFrame({"k": [1], "K": [2], "x": [1.0]})))
    with pytest.raises(DeclarationError, match=r"operator 'out'.*'k' and 'K' have the same name"):
        source.sink("out", delta(tmp_path / "t"))
    one = source.select("k", "x")
    with pytest.raises(DeclarationError, match=r"operator 'out'.*no column 'day' to partition by"):
        one.sink("out", delta(tmp_path / "t", partition_by="day"))
    with pytest.raises(DeclarationError, match=r"operator 'out'.*'x' to partition by is Float64"):
        one.sink("out", delta(tmp_path / "t", partition_by="x"))
    with pytest.raises(DeclarationError, match=r"operator 'out'.*all columns are partition columns"):
        source.select("k").sink("out", delta(tmp_path / "t", partition_by="k"))
    with pytest.raises(DeclarationError, match=r"operator 'out'.*'d' is Duration"):
        one.select(d=pl.duration(seconds="k")).sink("out", delta(tmp_path / "t"))
    with pytest.raises(DeclarationError, match="is a URL"):
        delta("s3://bucket/table")
    assert not (tmp_path / "t").exists()


def test_a_table_that_does_not_fit_is_refused_at_the_start(tmp_path: Path) -> None:
    opened(tmp_path / "t", partition_by="day")
    with pytest.raises(DeclarationError, match=r"partitioned by \['day'\], not \['k'\]"):
        opened(tmp_path / "t", partition_by="k")
    with pytest.raises(DeclarationError, match="'k' is String, but Int64 in the table"):
        opened(tmp_path / "t", schema=pl.Schema({"k": pl.String, "day": pl.String}))
    (tmp_path / "t" / "_delta_log" / f"{0:020d}.json").write_text("{")
    with pytest.raises(OutputUnwritableError, match="cannot write to the Delta table"):
        opened(tmp_path / "t")


def test_a_file_that_is_gone_is_told(tmp_path: Path) -> None:
    sink = opened(tmp_path / "t")
    receipts = prepared(sink, 1)
    next(iter(sink.files(receipts[0]))).unlink()
    with pytest.raises(CorruptFileError, match="is missing"):
        sink.publish(1, receipts)


def test_values_of_all_types_come_back_and_files_are_left_out_by_their_statistics(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table_files, "SMALL", 1)
    frame = pl.DataFrame(
        {
            "i": [1, None], "u": pl.Series([1, 2], dtype=pl.UInt32), "f": [0.5, float("inf")], "t": ["a", "ü" * 300],
            "b": [True, False], "d": [date(2026, 1, 2), None], "n": [datetime(2026, 1, 2, 3, 4, 5, 678901), None],
            "z": pl.Series([datetime(2026, 1, 2), datetime(2026, 7, 2)]).dt.replace_time_zone("Europe/Berlin"),
            "l": [[1], []], "s": [{"a": 1}, {"a": None}], "c": pl.Series(["x", "y"], dtype=pl.Categorical),
            "m": pl.Series(["1.10", "2.25"]).cast(pl.Decimal(10, 2)), "y": [b"\x00", b"\xff"],
        }
    )  # fmt: skip
    for by in (["i"], ["d", "b"], ["n"], ["z", "c"], ["m"], []):
        table = tmp_path / "-".join(["t", *by])
        sink = opened(table, schema=frame.schema, partition_by=by)
        sink.publish(1, [sink.prepare(frame, epoch=1, part="0", attempt="a")])
        found = DeltaTable(table)
        read = pl.DataFrame(found.to_pyarrow_table()).select(frame.columns)
        wanted = frame.with_columns(pl.col("z").dt.convert_time_zone("UTC")).cast(read.schema)
        assert_frame_equal(read, wanted, check_row_order=False)
        assert_frame_equal(
            pl.read_delta(str(table)).select(frame.columns).cast(read.schema), wanted, check_row_order=False
        )
    stats = pl.DataFrame(found.get_add_actions(flatten=True)).row(0, named=True)
    assert (stats["num_records"], stats["min.i"], stats["max.u"], stats["null_count.d"]) == (2, 1, 2, 1)
    assert stats["min.n"] == datetime(2026, 1, 2, 3, 4, 5, 678901)
    assert stats["max.t"] is None or stats["max.t"] >= "ü" * 300, "no bound is better than a wrong one"
    assert float(stats["min.m"]) == pytest.approx(1.10)
    scan = pl.scan_delta(str(table)).filter(pl.col("n") > datetime(2026, 1, 2, 3, 4, 5, 678900)).collect()
    assert scan.height == 1


def test_what_tasks_have_cut_by_partition_stays_in_its_partition(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    frame = pl.DataFrame({"day": [1, 2, 1, 2], "v": [1, 2, 3, 4]})
    sink = opened(tmp_path / "t", schema=frame.schema, partition_by=["day"])
    few = sink.prepare(frame.head(1), epoch=1, part="0", attempt="a")
    monkeypatch.setattr(lake_sink, "SMALL", 1)
    many = [sink.prepare(frame, epoch=1, part=part, attempt="a") for part in ("1", "2")]
    assert len(many[0]["files"]) == 2, "one for each day"
    sink.publish(1, [few, *many])
    read = pl.DataFrame(DeltaTable(tmp_path / "t").to_pyarrow_table()).select(frame.columns)
    assert_frame_equal(read, pl.concat([frame.head(1), frame, frame]), check_row_order=False)


def test_a_bound_that_a_float_cannot_hold_is_no_statistic(tmp_path: Path) -> None:
    frame = pl.DataFrame({"m": pl.Series(["12345678901234567891", "1.5"]).cast(pl.Decimal(38, 1))})
    sink = opened(tmp_path / "t", schema=frame.schema)
    sink.publish(1, [sink.prepare(frame, epoch=1, part="0", attempt="a")])
    log = (tmp_path / "t" / "_delta_log" / "00000000000000000001.json").read_text().splitlines()
    [stats] = [json.loads(action["add"]["stats"]) for action in map(json.loads, log) if "add" in action]
    assert stats["maxValues"].get("m") is None


def declare(home: Path) -> hf.Pipeline:
    pipeline = hf.Pipeline("visits")
    items = [{"at": n, "shop": n % 3, "v": n * n % 97} for n in range(300)]
    source = pipeline.source("rows", hf.source.memory(pl.DataFrame(items)), event_time="at", time_unit="s")
    sums = source.key_by("shop").window(hf.window.tumbling("20s")).agg(n=hf.count(), total=hf.sum("v"))
    sums.sink("out", delta(home / "table", partition_by="shop", every=0))
    return pipeline


VICTIM = """
import os, signal, sys
from pathlib import Path
import test_delta_sink as it
from holdfast.connect.sinks.delta_sink import DeltaSink
home, where, count = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
real = getattr(DeltaSink, where)
def counted(self, *args):
    global count
    count -= 1
    if count == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    return real(self, *args)
setattr(DeltaSink, where, counted)
it.run_in(home / "store", it.declare(home), it.Cut(rows=60))
"""


@pytest.mark.parametrize(
    ("where", "count"),
    [("_commit", 2), *long_cases(("_sync_log", 3), ("forget", 1))],
)
def test_a_pipeline_that_is_killed_ends_with_the_rows_of_one_that_was_not(
    tmp_path: Path, where: str, count: int
) -> None:
    here = Path(__file__).parent
    path = os.pathsep.join([str(here), str(here.parent), *filter(None, [os.environ.get("PYTHONPATH")])])
    run = [sys.executable, "-c", VICTIM, str(tmp_path), where, str(count)]
    died = subprocess.run(run, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True)
    assert died.returncode == -signal.SIGKILL, died.stderr
    run_in(tmp_path / "store", declare(tmp_path), Cut(rows=60))
    found = pl.read_delta(str(tmp_path / "table")).select("shop", "window_start", "n", "total")
    assert found.height == 45
    rows = pl.DataFrame({"at": range(300)}).with_columns(shop=pl.col("at") % 3, v=pl.col("at") ** 2 % 97)
    expected = rows.group_by("shop", window_start=pl.col("at") // 20 * 20).agg(
        n=pl.len().cast(pl.Int64), total=pl.sum("v")
    )
    assert_frame_equal(found, expected.cast(found.schema), check_row_order=False)
    assert list((tmp_path / "table" / "_holdfast").rglob("*.parquet")) == []
