"""Stores of every version there was can still be read: a format change that breaks them is seen here."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

import polars as pl
import pytest
from make import EVENTS, cut_pipeline, pipeline, traced_pipeline
from polars.testing import assert_frame_equal
from pyspark.sql import SparkSession

import holdfast as hf
from harness import Cut
from holdfast.engine.lease import is_dead
from holdfast.errors import OldStoreError
from holdfast.formats import EXPORT_VERSION, STORE_VERSION
from holdfast.meta import MetaStore, upgrade
from holdfast.pstream.pstream import PStream
from holdfast.replica.schemes.active_standby import ACTIVE_STANDBY
from holdfast.replica.seat_store import Agreement
from stored import run_stored

HERE = Path(__file__).parent
SEEN = EVENTS[:200]
STORES = sorted(path.name for path in HERE.glob("store-*"))


@pytest.fixture(params=STORES)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return Path(shutil.copytree(HERE / request.param, tmp_path / "store"))


def test_keyed_state_of_an_old_store_is_read(store: Path) -> None:
    expected = SEEN.group_by("who").agg(total=pl.col("v").sum())
    assert_frame_equal(hf.state(store, "kept", "totals"), expected, check_row_order=False)


def test_window_state_of_an_old_store_is_read(store: Path) -> None:
    state = hf.state(store, "kept", "windows")
    counts = state.group_by("who", "pane").agg(n=pl.col("n.n").sum())
    expected = SEEN.group_by("who", (pl.col("ts") // 10_000).alias("pane")).agg(n=pl.len().cast(pl.Int64))
    assert_frame_equal(counts, expected, check_row_order=False)


@pytest.mark.parametrize("version", range(1, EXPORT_VERSION + 1))
def test_exported_state_of_every_version_is_imported(version: int, tmp_path: Path) -> None:
    run_stored(pipeline(), tmp_path, Cut(rows=200), epochs=2)
    hf.import_state(tmp_path, "kept", "totals", HERE / f"state-{version}.parquet")
    expected = SEEN.group_by("who").agg(total=pl.col("v").sum())
    assert_frame_equal(hf.state(tmp_path, "kept", "totals"), expected, check_row_order=False)


def test_records_that_were_written_as_changes_are_read(tmp_path: Path) -> None:
    place = Path(shutil.copytree(HERE / "store-7", tmp_path / "store"))
    for epoch in range(9, 13):
        expected = EVENTS[: 20 * epoch].group_by("who").agg(total=pl.col("v").sum())
        assert_frame_equal(hf.state(place, "short", "totals", epoch=epoch), expected, check_row_order=False)
    with MetaStore(place, reads_only=True).reading() as connection:
        stored = connection.exec_driver_sql("SELECT record FROM epochs WHERE pipeline = 'short' AND epoch = 12")
        assert not stored.scalar_one()[17:].startswith("{"), "the sample has a change"


def test_there_is_a_store_of_every_version() -> None:
    assert [f"store-{version}" for version in range(1, STORE_VERSION + 1)] == STORES


def test_the_seats_of_an_old_store_are_read(tmp_path: Path) -> None:
    place = Path(shutil.copytree(HERE / "store-5", tmp_path / "store"))
    meta = MetaStore(place, reads_only=True)
    agreed = Agreement(meta, "host:2:0.00", lambda: 2_000.0).look(["kept"])["kept"]
    seats = agreed.seats
    assert (seats.scheme, seats.turns, agreed.ended) == (ACTIVE_STANDBY, 0, False)
    assert seats.primary is not None
    assert seats.secondary is not None
    assert (seats.primary.host, seats.secondary.host) == ("a", "b")
    assert seats.secondary.token == seats.primary.token + 1
    assert seats.members["b"].ready is ACTIVE_STANDBY
    assert agreed.notes.decisions[0].reason == "why"
    meta.close()


def test_a_p_stream_of_an_old_store_is_read(tmp_path: Path) -> None:
    place = Path(shutil.copytree(HERE / "store-2", tmp_path / "store"))
    meta = MetaStore(place, reads_only=True)
    stream = PStream(meta, place, "cut.stream")
    entries = stream.read(0, 1_000)
    assert [(entry.number, entry.offset, entry.rows) for entry in entries] == [(2, 100, 100), (3, 200, 100)]
    assert [entry.lineage.epoch for entry in entries] == [2, 3]
    assert_frame_equal(pl.concat(stream.load(entries)).select(EVENTS.columns), EVENTS[100:300])
    assert {(m.kind, m.by, m.number) for m in stream.markers()} == {
        ("retain", "cut.out", 0), ("checkpoint", "cut.out", 1), ("release", "cut.out", 1),
    }  # fmt: skip
    meta.close()


@pytest.mark.spark
@pytest.mark.parametrize("name", STORES)
def test_an_old_store_goes_on(spark: SparkSession, tmp_path: Path, name: str) -> None:
    place = Path(shutil.copytree(HERE / name, tmp_path / "store"))
    if name != f"store-{STORE_VERSION}":
        with pytest.raises(OldStoreError, match="version"):
            hf.run(pipeline(), spark=spark, store=place)
        upgrade(place, place, now=time.time(), is_dead=is_dead)
    hf.run(pipeline(), spark=spark, store=place)
    expected = EVENTS.group_by("who").agg(total=pl.col("v").sum())
    assert_frame_equal(hf.state(place, "kept", "totals"), expected, check_row_order=False)
    if name == "store-1":
        return
    rest = cut_pipeline()
    hf.run(rest, spark=spark, store=place)
    sink = rest.nodes["out"].sink  # type: ignore[attr-defined]
    counted = sink.frame().select(pl.col("n").sum()).item()
    assert counted == EVENTS.height, "the windows were open when the store was kept"
    if name in ("store-2", "store-3"):
        return
    traced, plain = traced_pipeline(), traced_pipeline()
    hf.run(traced, spark=spark, store=place)
    hf.run(plain, spark=spark, store=tmp_path / "plain", checkpoint="delta")
    made, expected = (pipeline.nodes["out"].sink.frame() for pipeline in (traced, plain))  # type: ignore[attr-defined]
    names = ["who", "window_index"]
    same = expected.join(made, on=names, how="semi", nulls_equal=True)
    assert_frame_equal(made, same, check_row_order=False)
    assert made.height > 0, "the windows that were open when the store was kept"
