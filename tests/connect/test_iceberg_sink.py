"""An Iceberg table as a sink: whole epochs, each once, whatever is interrupted and however many hosts publish."""

from __future__ import annotations

import json
import os
import pickle
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from datetime import date, datetime
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from polars.testing import assert_frame_equal
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.transforms import BucketTransform, DayTransform

import holdfast as hf
from harness import Cut, run_in
from holdfast.connect.sinks.iceberg_sink import IcebergSink
from holdfast.connect.sinks.table_files import TableFile
from holdfast.errors import CorruptFileError, DeclarationError, OutputConflictError, OutputUnwritableError
from holdfast.sink import Owner, Receipt, iceberg
from holdfast.store import Private
from power_loss import steps

OWNER = Owner("store", "pipeline", "out")
OWN = Private("a directory of the test")
LONG = os.environ.get("HOLDFAST_FUZZ")
SCHEMA = pl.Schema({"k": pl.Int64, "day": pl.String})


def properties(home: Path) -> dict[str, str]:
    home.mkdir(exist_ok=True)
    return {"type": "sql", "uri": f"sqlite:///{home / 'catalog.db'}", "warehouse": f"file://{home / 'warehouse'}"}


def catalog(home: Path) -> Catalog:
    return load_catalog("default", **properties(home))


def rows(*keys: int) -> pl.DataFrame:
    return pl.DataFrame({"k": keys, "day": [f"day {k % 2}/ü%" for k in keys]}, schema=SCHEMA)


def opened(
    home: Path, owner: Owner = OWNER, schema: pl.Schema = SCHEMA, committed: int = 0, **given: Any
) -> IcebergSink:
    """A sink whose run has begun."""
    sink = iceberg("db.t", properties(home), **given)
    sink.accept(schema)
    sink.attach(owner)
    sink.bind(schema)
    sink.check(committed, {})
    return sink


def prepared(sink: IcebergSink, epoch: int) -> list[Receipt]:
    task: IcebergSink = pickle.loads(pickle.dumps(sink))
    parts = [rows(epoch * 10, epoch * 10 + 1), rows(epoch * 10 + 2)]
    made = [task.prepare(part, epoch=epoch, part=f"0-{n}", attempt="a/1") for n, part in enumerate(parts)]
    task.prepare(rows(666), epoch=epoch, part="0-0", attempt="a/2")  # an attempt that loses
    return [json.loads(json.dumps(receipt)) for receipt in made]


def read(home: Path) -> pl.DataFrame:
    return pl.DataFrame(catalog(home).load_table("db.t").scan().to_arrow())


def keys(home: Path) -> list[int]:
    return sorted(read(home)["k"].to_list())


def of(*epochs: int) -> list[int]:
    return [epoch * 10 + n for epoch in epochs for n in range(3)]


def staged(sink: IcebergSink) -> list[Path]:
    return [file for file in sink.staging.root.rglob("*") if file.is_file()]


@pytest.mark.parametrize("partition_by", [None, "day"])
def test_epochs_are_published_together_as_one_snapshot_and_once(tmp_path: Path, partition_by: str | None) -> None:
    sink = opened(tmp_path, partition_by=partition_by)
    receipts = [*prepared(sink, 1), *prepared(sink, 2)]
    assert keys(tmp_path) == []
    for _ in range(2):
        sink.publish(2, receipts)
        assert_frame_equal(read(tmp_path), rows(*of(1, 2)), check_row_order=False)
    table = catalog(tmp_path).load_table("db.t")
    [snapshot] = table.snapshots()
    assert snapshot.summary is not None
    assert snapshot.summary["holdfast.epoch"] == "2"
    assert len(list(table.scan().plan_files())) == (1 if partition_by is None else 2)
    assert table.scan("day = 'day 1/ü%'").to_arrow().num_rows == 2
    sink.forget(2, receipts, OWN)
    sink.sweep(3, OWN)
    assert staged(sink) == []
    assert keys(tmp_path) == of(1, 2)


def test_a_publication_that_dies_at_any_step_is_finished_and_never_doubled(tmp_path: Path) -> None:
    for dies_at in range(0, 300, 1 if LONG else 9):
        home = tmp_path / str(dies_at)
        sink = opened(home, partition_by="day")
        receipts = [*prepared(sink, 1), *prepared(sink, 2)]
        with steps(dies_at) as died:
            sink.publish(2, receipts)
        assert len(keys(home)) in (0, 6)
        again = opened(home, committed=2)
        again.publish(2, receipts)
        assert keys(home) == of(1, 2)
        with steps(dies_at) as forgetting:
            again.forget(2, receipts, OWN)
        again.publish(2, receipts)
        again.forget(2, receipts, OWN)
        again.sweep(3, OWN)
        assert keys(home) == of(1, 2)
        assert staged(again) == []
        if not died.dead and not forgetting.dead:
            assert dies_at > 10
            return
    raise AssertionError("there are more steps than were tried")


def test_of_hosts_that_publish_the_same_epochs_at_a_time_one_does(tmp_path: Path) -> None:
    hosts = [opened(tmp_path) for _ in range(3)]
    for epoch in range(1, 4):
        receipts = prepared(hosts[0], epoch)
        with ThreadPoolExecutor(len(hosts)) as pool:
            list(pool.map(lambda host, e=epoch, r=receipts: host.publish(e, r), hosts))  # type: ignore[misc]
    assert keys(tmp_path) == of(1, 2, 3)
    assert len(catalog(tmp_path).load_table("db.t").snapshots()) == 3


def test_a_host_that_has_looked_before_the_other_commits_adds_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It holds the table as it was, and is stopped right before its commit. `pyiceberg` would try it again."""
    zombie, leader = opened(tmp_path), opened(tmp_path)
    receipts = prepared(leader, 1)
    stale = zombie.named.loaded()
    leader.publish(1, receipts)
    leader.forget(1, receipts, OWN)
    real, looks = type(zombie.named).loaded, iter([stale])
    monkeypatch.setattr(type(zombie.named), "loaded", lambda self: next(looks, None) or real(self))
    files = [TableFile("00000.parquet", {}, 2)]
    zombie._commit(1, files)
    monkeypatch.undo()
    assert keys(tmp_path) == of(1)
    leader.publish(2, prepared(leader, 2))
    zombie.publish(1, receipts)
    assert keys(tmp_path) == of(1, 2)


def test_other_writers_do_no_harm(tmp_path: Path) -> None:
    one, other = opened(tmp_path), opened(tmp_path, Owner("store", "pipeline", "other"))
    one.publish(1, prepared(one, 1))
    other.publish(1, prepared(other, 2))
    table = catalog(tmp_path).load_table("db.t")
    table.append(rows(7).to_arrow(compat_level=pl.CompatLevel.oldest()))
    one.publish(2, prepared(one, 3))
    assert keys(tmp_path) == [7, *of(1, 2, 3)]


def test_a_table_whose_snapshots_were_expired_still_knows(tmp_path: Path) -> None:
    sink = opened(tmp_path)
    for epoch in (1, 2):
        sink.publish(epoch, prepared(sink, epoch))
    table = catalog(tmp_path).load_table("db.t")
    table.append(rows(7).to_arrow(compat_level=pl.CompatLevel.oldest()))
    mine = [snapshot.snapshot_id for snapshot in table.snapshots()[:2]]
    table.maintenance.expire_snapshots().by_ids(mine).commit()
    sink.publish(2, [])
    assert opened(tmp_path, committed=2)._published() == (2, "store")


def test_a_store_that_is_not_the_one_before_is_refused(tmp_path: Path) -> None:
    sink = opened(tmp_path)
    for epoch in (1, 2):
        sink.publish(epoch, prepared(sink, epoch))
    with pytest.raises(OutputConflictError, match="from another store"):
        opened(tmp_path, Owner("another", "pipeline", "out"), committed=2)
    with pytest.raises(OutputConflictError, match=r"has epoch 2 .* knows of 1 committed"):
        opened(tmp_path, committed=1)
    opened(tmp_path, Owner("another", "pipeline", "out"), writer="second")


def test_columns_are_added_on_request_alone(tmp_path: Path) -> None:
    sink = opened(tmp_path)
    sink.publish(1, prepared(sink, 1))
    wider = pl.Schema({**SCHEMA, "more": pl.UInt8})
    with pytest.raises(DeclarationError, match=r"no column 'more'(.|\n)*evolve=True"):
        opened(tmp_path, schema=wider, committed=1)
    for _ in range(2):
        sink = opened(tmp_path, schema=wider, committed=1, evolve=True)
    frame = rows(50).with_columns(more=pl.lit(3, pl.UInt8))
    sink.publish(2, [sink.prepare(frame, epoch=2, part="0", attempt="a")])
    assert read(tmp_path).sort("k")["more"].to_list() == [None, None, None, 3]


def test_rows_of_all_types_and_of_partitions_by_day_come_back(tmp_path: Path) -> None:
    frame = pl.DataFrame(
        {
            "i": [1, None], "u": pl.Series([1, 2], dtype=pl.UInt32), "s": pl.Series([1, 2], dtype=pl.Int8),
            "f": [0.5, float("inf")], "t": ["a", "ü" * 300], "b": [True, False], "d": [date(2026, 1, 2), None],
            "n": [datetime(2026, 1, 2, 3, 4, 5, 678901), datetime(2026, 1, 3)],
            "z": pl.Series([datetime(2026, 1, 2), datetime(2026, 7, 2)]).dt.replace_time_zone("Europe/Berlin"),
            "l": [[1], []], "r": [{"a": 1}, {"a": None}], "y": [b"\x00", b"\xff"],
            "m": pl.Series(["1.10", "2.25"]).cast(pl.Decimal(10, 2)),
        }
    )  # fmt: skip
    opened(tmp_path, schema=frame.schema)
    with catalog(tmp_path).load_table("db.t").update_spec() as spec:
        spec.add_field("n", DayTransform(), "n_day")
        spec.add_identity("b")
    sink = opened(tmp_path, schema=frame.schema)
    sink.publish(1, [sink.prepare(frame, epoch=1, part="0", attempt="a")])
    found = read(tmp_path)
    wanted = frame.with_columns(pl.col("z").dt.convert_time_zone("UTC")).cast(found.schema)
    assert_frame_equal(found.select(frame.columns), wanted, check_row_order=False)
    table = catalog(tmp_path).load_table("db.t")
    assert sorted(str(task.file.partition) for task in table.scan().plan_files()) == [
        "Record[20455, True]",
        "Record[20456, False]",
    ]
    assert table.scan("n >= '2026-01-03T00:00:00'").to_arrow().num_rows == 1


def test_what_cannot_be_written_is_refused(tmp_path: Path) -> None:
    for table, named in (("t", properties(tmp_path)), ("db.t", {"uri": 7})):
        with pytest.raises(DeclarationError, match=r"names? a table|neither a name"):
            iceberg(table, named)  # type: ignore[arg-type]
    opened(tmp_path, partition_by="day")
    with pytest.raises(DeclarationError, match=r"partitioned by \['day'\], not \['k'\]"):
        opened(tmp_path, partition_by="k")
    with pytest.raises(DeclarationError, match="'k' is String, but Int64 in the table"):
        opened(tmp_path, schema=pl.Schema({"k": pl.String, "day": pl.String}))
    with catalog(tmp_path).load_table("db.t").update_spec() as spec:
        spec.add_field("k", BucketTransform(4), "k_bucket")
    with pytest.raises(DeclarationError, match=r"partitioned by bucket\[4\]"):
        opened(tmp_path)
    secret = iceberg("db.t", {"type": "sql", "uri": "sqlite:////nowhere/at/all.db", "password": "hidden"})
    secret.attach(OWNER)
    with pytest.raises(OutputUnwritableError, match="unable to open") as told:
        secret.bind(SCHEMA)
    assert "hidden" not in f"{told.value} {secret.describe()} {secret.place} {secret.named!r}"


def test_a_sink_is_asked_for_its_directory_before_it_is_opened(tmp_path: Path) -> None:
    assert list(iceberg("db.t", properties(tmp_path)).writes()) == []
    assert [place.name for place in opened(tmp_path).writes()] == ["_holdfast"]


def test_a_file_that_is_gone_is_told(tmp_path: Path) -> None:
    sink = opened(tmp_path)
    receipts = prepared(sink, 1)
    next(iter(sink.files(receipts[0]))).unlink()
    with pytest.raises(CorruptFileError, match="is missing"):
        sink.publish(1, receipts)


def declare(home: Path) -> hf.Pipeline:
    pipeline = hf.Pipeline("visits")
    items = pl.DataFrame([{"at": n, "shop": n % 3, "v": n * n % 97} for n in range(600)])
    source = pipeline.source("rows", hf.source.memory(items), event_time="at", time_unit="s")
    sums = source.key_by("shop").window(hf.window.tumbling("20s")).agg(n=hf.count(), total=hf.sum("v"))
    sums.sink("out", iceberg("db.t", properties(home), partition_by="shop", every=0))
    return pipeline


VICTIM = """
import os, signal, sys
from pathlib import Path
import test_iceberg_sink as it
from holdfast.connect.sinks.iceberg_sink import IcebergSink
home, where, count = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
real = getattr(IcebergSink, where)
def counted(self, *args):
    global count
    count -= 1
    if count == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    return real(self, *args)
setattr(IcebergSink, where, counted)
it.run_in(home / "store", it.declare(home), it.Cut(rows=60))
"""


@pytest.mark.long  # the same as with Delta tables
@pytest.mark.parametrize(("where", "count"), [("_commit", 2), ("forget", 1)])
def test_a_killed_pipeline_ends_with_the_rows_of_one_that_was_not(tmp_path: Path, where: str, count: int) -> None:
    here = Path(__file__).parent
    path = os.pathsep.join([str(here), str(here.parent), *filter(None, [os.environ.get("PYTHONPATH")])])
    run = [sys.executable, "-c", VICTIM, str(tmp_path), where, str(count)]
    died = subprocess.run(run, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True)
    assert died.returncode == -signal.SIGKILL, died.stderr
    run_in(tmp_path / "store", declare(tmp_path), Cut(rows=60))
    found = read(tmp_path)
    assert (found.height, found["n"].sum()) == (90, 600)
    assert found.select("shop", "window_start").is_unique().all()
