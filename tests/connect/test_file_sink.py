"""File sinks: whole epochs, exactly once, whatever is interrupted."""

from __future__ import annotations

import os
import resource
import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import polars as pl
import pyarrow.dataset as ds
import pytest
from file_sinks import OWN, SINKS, made, parts, prepared, rows, staged

from holdfast.connect.sinks import part_files
from holdfast.connect.sinks.file_sink import FileSink, published_epochs, read_output
from holdfast.errors import (
    CorruptFileError,
    DeclarationError,
    StoreFullError,
)
from holdfast.sink import Receipt, parquet
from holdfast.source import files
from power_loss import steps


@pytest.mark.parametrize("make", SINKS)
def test_prepared_rows_are_invisible_until_published(tmp_path: Path, make: Callable[[Path], FileSink]) -> None:
    sink = made(make, tmp_path / "out")
    receipts = prepared(sink, 3)
    lost = sink.prepare(rows(666), epoch=3, part="0", attempt="b")
    assert lost["file"] != receipts[0]["file"]
    assert [receipt["rows"] for receipt in receipts] == [2, 0, 1]
    assert published_epochs(tmp_path / "out") == []
    assert read_output(tmp_path / "out", sink.format, rows().schema).equals(rows())
    sink.publish(3, receipts)
    sink.publish(3, receipts)
    assert published_epochs(tmp_path / "out") == [3]
    assert read_output(tmp_path / "out").equals(rows(30, 31, 32))
    sink.forget(3, receipts, OWN)
    sink.sweep(4, OWN)
    assert staged(sink) == []
    assert read_output(tmp_path / "out", sink.format).equals(rows(30, 31, 32))


def test_what_a_sink_writes_a_source_reads_and_so_do_others(tmp_path: Path) -> None:
    out = tmp_path / "out"
    sink = made(parquet, out)
    for epoch in (1, 2, 10):
        sink.publish(epoch, prepared(sink, epoch))
    sink.prepare(rows(666), epoch=11, part="0", attempt="a")
    expected = [k for e in (1, 2, 10) for k in (e * 10, e * 10 + 1, e * 10 + 2)]
    assert read_output(out, "parquet")["k"].to_list() == expected
    assert ds.dataset(out, format="parquet", partitioning="hive").to_table()["k"].to_pylist() == expected
    source = files(f"{out}/epoch=*/*.parquet")
    take = source.take(source.start(), 100, 1)
    assert [k for c in source.read(take.slices[0]) for k in c.frame["k"].to_list()] == expected
    assert pl.read_parquet(f"{out}/*/*.parquet", hive_partitioning=False)["k"].to_list() == expected
    assert pl.read_parquet(out).drop("epoch")["k"].to_list() == expected


def test_an_epoch_without_rows_leaves_nothing(tmp_path: Path) -> None:
    sink = made(parquet, tmp_path / "out")
    sink.publish(1, [sink.prepare(rows(), epoch=1, part="0", attempt="a")])
    sink.publish(2, [])
    sink.sweep(5, OWN)
    assert os.listdir(tmp_path / "out") == []
    assert staged(sink) == []


@pytest.mark.parametrize("moves", [False, True], ids=["read in place", "moved away"])
def test_a_publication_interrupted_at_any_step_is_seen_whole_and_once(tmp_path: Path, moves: bool) -> None:
    """Also by a reader that moves each epoch elsewhere as soon as it sees it."""
    interruptions = 0
    for dies_at in range(200):
        place, taken = tmp_path / str(dies_at), tmp_path / f"taken-{dies_at}"
        taken.mkdir()
        sink = made(parquet, place)
        receipts = [*prepared(sink, 6), *prepared(sink, 7)]

        def look(place: Path = place, taken: Path = taken) -> None:
            found = read_output(place, "parquet", rows().schema)
            assert found.height in (0, 6), "a part of the epochs is visible"
            if moves and found.height:
                shutil.move(place / "epoch=000000000007", taken / f"{len(os.listdir(taken))}")

        with steps(dies_at) as counted:
            sink.publish(7, receipts)
        look()
        interruptions += counted.dead
        sink.publish(7, receipts)
        look()
        sink.publish(7, receipts)
        with steps(dies_at) as forgetting:
            sink.forget(7, receipts, OWN)
        sink.forget(7, receipts, OWN)
        sink.sweep(8, OWN)
        assert staged(sink) == []
        if moves:
            assert len(os.listdir(taken)) == 1
            os.rename(taken / "0", place / "epoch=000000000007")
        assert read_output(place, "parquet")["k"].to_list() == [60, 61, 62, 70, 71, 72]
        if not counted.dead and not forgetting.dead:
            break
    assert interruptions >= 10


@pytest.mark.parametrize("make", SINKS)
def test_epochs_that_are_published_together_are_few_files(tmp_path: Path, make: Callable[[Path], FileSink]) -> None:
    sink = made(make, tmp_path / "out")
    receipts = [receipt for epoch in range(1, 61) for receipt in prepared(sink, epoch)]
    sink.publish(60, receipts)
    assert published_epochs(tmp_path / "out") == [60]
    assert parts(tmp_path / "out") == 1
    expected = [epoch * 10 + n for epoch in range(1, 61) for n in range(3)]
    assert read_output(tmp_path / "out", sink.format)["k"].to_list() == expected


def test_large_files_are_not_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(part_files, "_SMALL", 2_000)
    monkeypatch.setattr(part_files, "_LARGE", 3_000)
    sink = made(parquet, tmp_path / "out")
    heights = [1, 1, 5_000, 1, 1, 1, 1, 1]
    receipts = [
        sink.prepare(rows(*range(epoch * 10_000, epoch * 10_000 + height)), epoch=epoch, part="0", attempt="a")
        for epoch, height in enumerate(heights)
    ]
    sizes = [receipt["bytes"] for receipt in receipts]
    assert sizes[2] > 2_000 > sizes[0] > 3_000 / 4, "what the limits are chosen for"
    sink.publish(7, receipts)
    assert parts(tmp_path / "out") == 4, "two, the large one, three, two"
    large = sink.staging.path(receipts[2]["file"])
    assert any(file.samefile(large) for file in (tmp_path / "out").rglob("part-*"))
    expected = [epoch * 10_000 + n for epoch, height in enumerate(heights) for n in range(height)]
    assert read_output(tmp_path / "out", "parquet")["k"].to_list() == expected


def test_epochs_with_other_columns_are_published_beside_each_other(tmp_path: Path) -> None:
    """The pipeline was changed while they were gathered."""
    sink = made(parquet, tmp_path / "out")
    before = sink.prepare(rows(1), epoch=1, part="0", attempt="a")
    after = sink.prepare(rows(2).with_columns(more=pl.lit(1)), epoch=2, part="0", attempt="a")
    sink.publish(2, [before, after])
    found = [pl.read_parquet(file) for file in sorted((tmp_path / "out" / "epoch=000000000002").iterdir())]
    assert [frame.columns for frame in found] == [["k", "s"], ["k", "s", "more"]]


def test_plain_polars_reads_what_is_published_and_nothing_else(tmp_path: Path) -> None:
    sink = made(parquet, tmp_path / "out")
    sink.publish(1, prepared(sink, 1))
    prepared(sink, 2)
    found = pl.read_parquet(tmp_path / "out")
    assert found.drop("epoch").sort(found.columns[0]).equals(rows(10, 11, 12).sort(rows().columns[0]))


def test_a_second_host_that_publishes_at_the_same_time_does_no_harm(tmp_path: Path) -> None:
    """At every step of the one the other comes between; a reader moves away what it sees."""
    for between in range(200):
        place, taken = tmp_path / str(between), tmp_path / f"taken-{between}"
        taken.mkdir()
        sink, other = (made(parquet, place) for _ in range(2))
        receipts = prepared(sink, 1)
        count = 0

        def meanwhile(
            between: int = between, other: FileSink = other, receipts: list[Receipt] = receipts, taken: Path = taken
        ) -> None:
            nonlocal count
            count += 1
            if count == between + 1:
                other.publish(1, receipts)
                os.rename(other.path / "epoch=000000000001", taken / "first")
                if between % 2:
                    other.forget(1, receipts, OWN)

        with steps(None, meanwhile):
            try:
                sink.publish(1, receipts)
            except CorruptFileError:
                assert between % 2, "the other one has told the store, and forgotten"
        found = [*taken.iterdir(), *place.glob("epoch=*")]
        assert len(found) == 1
        assert pl.read_parquet(found[0], hive_partitioning=False)["k"].to_list() == [10, 11, 12]
        if count <= between:
            break
    assert between > 8


def test_a_prepared_file_that_is_gone_is_named(tmp_path: Path) -> None:
    sink = made(parquet, tmp_path / "out")
    receipts = prepared(sink, 1)
    sink.staging.path(receipts[0]["file"]).unlink()
    with pytest.raises(CorruptFileError, match="epoch 1: a file prepared for"):
        sink.publish(1, receipts)


@pytest.mark.parametrize("make", SINKS)
def test_a_full_disk_is_named_and_leaves_nothing(tmp_path: Path, make: Callable[[Path], FileSink]) -> None:
    sink = made(make, tmp_path / "out")
    # A limit on the size of files stands for the end of the disk: the kernel refuses the write, not a mock.
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, before[1]))
    try:
        with pytest.raises(StoreFullError, match="no space left") as caught:
            sink.prepare(rows(1), epoch=5, part="0", attempt="a")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)
    assert caught.value.cure
    assert staged(sink) == []


def test_sweep_leaves_later_epochs_and_strangers_alone(tmp_path: Path) -> None:
    sink = made(parquet, tmp_path / "out")
    prepared(sink, 1)
    prepared(sink, 2)
    (sink.staging.root / "notes").mkdir()
    sink.sweep(2, OWN)
    assert sorted(os.listdir(sink.staging.root)) == ["2", "notes"]


def test_parts_with_odd_names_stay_inside_the_epoch(tmp_path: Path) -> None:
    sink = made(parquet, tmp_path / "out")
    receipts = [sink.prepare(rows(1), epoch=1, part="../op/0", attempt="x/y")]
    sink.publish(1, receipts)
    assert read_output(tmp_path / "out", "parquet").equals(rows(1))
    assert os.listdir(tmp_path / "out") == ["epoch=000000000001"]


def test_an_unknown_format_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DeclarationError):
        read_output(tmp_path, "xml")  # type: ignore[arg-type]
