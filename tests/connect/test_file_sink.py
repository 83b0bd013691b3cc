"""File sinks: whole epochs, exactly once, whatever is interrupted."""

from __future__ import annotations

import os
import resource
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from holdfast import store
from holdfast.connect import (
    FileSink,
    Receipt,
    arrow,
    file_sink,
    files,
    ndjson,
    parquet,
    published_epochs,
    read_output,
)
from holdfast.errors import CorruptFileError, DeclarationError, StoreFullError

SINKS: list[Callable[[Path], FileSink]] = [parquet, ndjson, arrow]


def rows(*keys: int) -> pl.DataFrame:
    return pl.DataFrame({"k": keys, "s": [f"text {k}" for k in keys]}, schema={"k": pl.Int64, "s": pl.String})


def prepared(sink: FileSink, epoch: int) -> list[Receipt]:
    return [
        sink.prepare(rows(epoch * 10, epoch * 10 + 1), epoch=epoch, part="0", attempt="a"),
        sink.prepare(rows(), epoch=epoch, part="1", attempt="a"),
        sink.prepare(rows(epoch * 10 + 2), epoch=epoch, part="2", attempt="a"),
    ]


@pytest.mark.parametrize("make", SINKS)
def test_prepared_rows_are_invisible_until_published(tmp_path: Path, make: Callable[[Path], FileSink]) -> None:
    sink = make(tmp_path / "out")
    receipts = prepared(sink, 3)
    lost = sink.prepare(rows(666), epoch=3, part="0", attempt="b")
    assert lost["file"] != receipts[0]["file"]
    assert [receipt["rows"] for receipt in receipts] == [2, 0, 1]
    assert published_epochs(tmp_path / "out") == []
    assert read_output(tmp_path / "out", sink.format, rows().schema).equals(rows())
    sink.publish(3, receipts)
    sink.publish(3, receipts)
    assert published_epochs(tmp_path / "out") == [3]
    assert read_output(tmp_path / "out", sink.format).equals(rows(30, 31, 32))
    sink.sweep(4)
    assert os.listdir(sink.staging) == []
    sink.publish(3, receipts)
    assert read_output(tmp_path / "out", sink.format).equals(rows(30, 31, 32))


def test_what_a_sink_writes_a_source_reads_and_so_do_others(tmp_path: Path) -> None:
    import pyarrow.dataset as ds

    sink = parquet(tmp_path)
    for epoch in (1, 2, 10):
        sink.publish(epoch, prepared(sink, epoch))
    sink.prepare(rows(666), epoch=11, part="0", attempt="a")
    expected = [k for e in (1, 2, 10) for k in (e * 10, e * 10 + 1, e * 10 + 2)]
    assert read_output(tmp_path, "parquet")["k"].to_list() == expected
    assert ds.dataset(tmp_path, format="parquet", partitioning="hive").to_table()["k"].to_pylist() == expected
    source = files(f"{tmp_path}/epoch=*/*.parquet")
    take = source.take(source.start(), 100, 1)
    assert [k for c in source.read(take.slices[0]) for k in c.frame["k"].to_list()] == expected
    assert pl.read_parquet(f"{tmp_path}/*/*.parquet", hive_partitioning=False)["k"].to_list() == expected


def test_an_epoch_without_rows_leaves_nothing(tmp_path: Path) -> None:
    sink = parquet(tmp_path / "out")
    sink.publish(1, [sink.prepare(rows(), epoch=1, part="0", attempt="a")])
    sink.publish(2, [])
    sink.sweep(5)
    assert not (tmp_path / "out").exists()
    assert published_epochs(tmp_path / "out") == []


class PowerLossError(Exception):
    """Stands for the death of the process at one step."""


def test_a_publication_interrupted_at_any_step_is_never_seen_in_part_and_can_be_done_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = 0
    dies_at = -1
    place = tmp_path

    def step(real: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*args: Any, **kwargs: Any) -> Any:
            nonlocal steps
            assert read_output(place, "parquet", rows().schema).height in (0, 3), "a part of an epoch is visible"
            if steps == dies_at:
                steps += 1
                raise PowerLossError
            steps += 1
            result = real(*args, **kwargs)
            assert read_output(place, "parquet", rows().schema).height in (0, 3), "a part of an epoch is visible"
            return result

        return counted

    monkeypatch.setattr(file_sink.os, "rename", step(os.rename))
    monkeypatch.setattr(file_sink.Path, "mkdir", step(Path.mkdir))
    monkeypatch.setattr(file_sink, "sync_directory", step(store.sync_directory))
    interruptions = 0
    for dies_at in range(100):
        place = tmp_path / str(dies_at)
        sink = parquet(place)
        steps = -1000
        receipts = prepared(sink, 7)
        steps = 0
        try:
            sink.publish(7, receipts)
        except PowerLossError:
            interruptions += 1
            sink.sweep(8)  # must not take what a committed epoch needs, once its publication has begun
            if not (sink.staging / "7").exists():
                receipts = prepared(sink, 7)
            steps = 1000
            sink.publish(7, receipts)
        assert read_output(place, "parquet").equals(rows(70, 71, 72))
        sink.sweep(8)
        assert os.listdir(sink.staging) == []
        if steps < 1000:
            break
    assert interruptions >= 6


def test_plain_polars_reads_what_is_published_and_nothing_else(tmp_path: Path) -> None:
    sink = parquet(tmp_path / "out")
    sink.publish(1, prepared(sink, 1))
    prepared(sink, 2)
    found = pl.read_parquet(tmp_path / "out")
    assert found.drop("epoch").sort(found.columns[0]).equals(rows(10, 11, 12).sort(rows().columns[0]))


def test_what_an_earlier_version_staged_is_still_published(tmp_path: Path) -> None:
    sink = parquet(tmp_path / "out")
    receipts = prepared(sink, 1)
    (tmp_path / "out").mkdir()
    sink.staging.rename(tmp_path / "out" / "_staging")
    sink.check(1)
    sink.publish(1, receipts)
    assert read_output(tmp_path / "out", "parquet").equals(rows(10, 11, 12))


def test_a_second_host_that_publishes_at_the_same_time_does_no_harm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink, other = parquet(tmp_path), parquet(tmp_path)
    receipts = prepared(sink, 1)
    real = os.rename
    calls = []

    def rename(source: Any, target: Any) -> None:
        calls.append(target)
        if len(calls) == 2:
            other.publish(1, receipts)
        real(source, target)

    monkeypatch.setattr(file_sink.os, "rename", rename)
    sink.publish(1, receipts)
    assert read_output(tmp_path, "parquet").equals(rows(10, 11, 12))


def test_a_prepared_file_that_is_gone_is_named(tmp_path: Path) -> None:
    sink = parquet(tmp_path)
    receipts = prepared(sink, 1)
    (sink.staging / "1" / receipts[0]["file"]).unlink()
    with pytest.raises(CorruptFileError, match="epoch 1: a file prepared for"):
        sink.publish(1, receipts)


@pytest.mark.parametrize("make", SINKS)
def test_a_full_disk_is_named_and_leaves_nothing(tmp_path: Path, make: Callable[[Path], FileSink]) -> None:
    sink = make(tmp_path)
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
    assert not list((sink.staging / "5").iterdir())


def test_sweep_leaves_later_epochs_and_strangers_alone(tmp_path: Path) -> None:
    sink = parquet(tmp_path)
    prepared(sink, 1)
    prepared(sink, 2)
    (sink.staging / "notes").mkdir()
    sink.sweep(2)
    assert sorted(os.listdir(sink.staging)) == ["2", "notes"]


def test_parts_with_odd_names_stay_inside_the_epoch(tmp_path: Path) -> None:
    sink = parquet(tmp_path)
    receipts = [sink.prepare(rows(1), epoch=1, part="../op/0", attempt="x/y")]
    sink.publish(1, receipts)
    assert read_output(tmp_path, "parquet").equals(rows(1))
    assert os.listdir(tmp_path) == ["epoch=000000000001"]


def test_an_unknown_format_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DeclarationError):
        read_output(tmp_path, "xml")  # type: ignore[arg-type]
