"""What the soak makes of its samples, and how it knows that nothing was lost."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import polars as pl
import pytest

from holdfast_lab.experiment.definition import Bar
from holdfast_lab.soak.soak_pipeline import EPOCH_ROWS, SoakReader
from holdfast_lab.soak.soak_samples import Sample, sample
from holdfast_lab.soak.soak_trend import soak_bars, trends


def samples(*, leak: float = 0.0, slower: float = 0.0) -> list[Sample]:
    """A sample every 1,000 epochs of 4 ms. Files go up and down, and `leak` of them stay after each epoch; epochs take
    `slower` times longer each."""
    found, at = [], 0.0
    for number in range(1, 201):
        began = at + 4.0 * (1 + slower * number)
        holds = {"files store": 100 + number % 7 + leak * 1_000 * number, "memory driver": 5e8}
        found.append(Sample(1_000 * number, began, began + 0.5, 2 * began, holds))
        at = began + 0.5
    return found


def bar(found: list[Bar], name: str) -> Bar:
    [one] = [bar for bar in found if bar.name.startswith(name)]
    return one


def test_what_goes_up_and_down_is_no_growth() -> None:
    found = soak_bars(samples(), 0)
    assert all(one.ok for one in found), found
    assert bar(found, "time").value == pytest.approx(1.0)


def test_what_stays_after_each_epoch_is_found() -> None:
    found = soak_bars(samples(leak=0.01), 0)
    assert bar(found, "files on disk").value == pytest.approx(1_000, rel=0.01)
    assert not bar(found, "files on disk").ok
    assert bar(found, "bytes of memory, driver").ok
    [files, _] = trends(samples(leak=0.01))
    assert files.late > files.early


def test_epochs_that_become_slower_are_found() -> None:
    assert not bar(soak_bars(samples(slower=0.01), 0), "time").ok
    assert not bar(soak_bars(samples(slower=0.01), 0), "CPU").ok


def test_a_lost_row_is_found() -> None:
    assert not bar(soak_bars(samples(), 1), "rows lost").ok


def test_the_reader_takes_the_output_away_and_knows_what_is_missing(tmp_path: Path) -> None:
    rows = 3 * EPOCH_ROWS
    for epoch, windows in ((2, 30), (3, 20)):
        directory = tmp_path / "counts" / f"epoch={epoch:012d}"
        directory.mkdir(parents=True)
        pl.DataFrame({"key": range(windows), "n": [10] * windows}).write_parquet(directory / "part-00000.parquet")
    with closing(sqlite3.connect(tmp_path / "sums.db")) as connection, connection:
        connection.execute("CREATE TABLE sums (key, rows, total)")
        connection.executemany("INSERT INTO sums VALUES (?, ?, 0)", [(key, rows // 10) for key in range(10)])
    reader = SoakReader(tmp_path)
    reader.take()
    assert reader.wrong(rows) == 0
    assert not list((tmp_path / "counts").iterdir())
    reader.take()
    assert reader.wrong(rows) == 0, "what was taken is counted once"
    assert reader.wrong(rows + EPOCH_ROWS) > 0


def test_a_sample_has_files_tables_and_processes(tmp_path: Path) -> None:
    store = tmp_path / "store"
    (store / "soak.sums" / "state").mkdir(parents=True)
    for number in range(3):
        (store / "soak.sums" / "state" / f"{number}.arrow").write_bytes(b"x" * 10_000)
    with closing(sqlite3.connect(store / "meta.db")) as connection, connection:
        connection.execute("CREATE TABLE epochs (epoch)")
        connection.executemany("INSERT INTO epochs VALUES (?)", [(1,), (2,)])
    holds, cpu = sample(tmp_path, store)
    assert holds["files store/soak.sums/state"] == 3
    assert holds["bytes store/soak.sums/state"] >= 30_000
    assert holds["rows epochs"] == 2
    assert holds["open files driver"] > 2
    assert holds["memory driver"] > 10_000_000
    assert cpu > 0
