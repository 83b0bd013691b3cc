"""A source and a sink that Holdfast does not have, written as `docs/extending.md` says: by what is public alone."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import polars as pl
import pytest
from csv_sink import CsvSink, csv
from drain import drain
from polars.testing import assert_frame_equal
from pyspark.sql import SparkSession
from table_source import TableSource, table

import holdfast as hf
from harness import Commits, Cut, Ran, run_in
from holdfast.engine.loop import Loop

SCHEMA = pl.Schema({"ts": pl.Int64, "k": pl.Int64, "v": pl.Int64})
ROWS = pl.DataFrame({"ts": range(600), "k": [n % 3 for n in range(600)], "v": [n * n % 97 for n in range(600)]})


class Anyone:
    """The right to remove what tests have made."""

    def check(self) -> None:
        pass


def filled(path: Path, rows: pl.DataFrame = ROWS) -> Path:
    with closing(sqlite3.connect(path)) as database:
        database.execute("create table if not exists visits (ts integer, k integer, v integer)")
        database.executemany("insert into visits values (?, ?, ?)", rows.rows())
        database.commit()
    return path


def declare(home: Path) -> hf.Pipeline:
    pipeline = hf.Pipeline("visits")
    rows = pipeline.source("rows", table(home / "db", "visits", SCHEMA, ends=True), event_time="ts", time_unit="s")
    sums = rows.key_by("k").window(hf.window.tumbling("50s")).agg(n=hf.count(), total=hf.sum("v"))
    sums.sink("out", csv(home / "out"))
    return pipeline


def expected() -> pl.DataFrame:
    grouped = ROWS.group_by("k", window_start=pl.col("ts") // 50 * 50).agg(n=pl.len().cast(pl.Int64), total=pl.sum("v"))
    return grouped.with_columns(window_end=pl.col("window_start") + 50).select(
        "k", "window_start", "window_end", "n", "total"
    )


@pytest.mark.parametrize(("rows", "pieces"), [(1000, 1), (7, 1), (64, 3), (1, 4)])
def test_the_source_keeps_the_contract_however_it_is_cut(tmp_path: Path, rows: int, pieces: int) -> None:
    source = table(filled(tmp_path / "db"), "visits", SCHEMA)
    seen, position = drain(source, rows=rows, pieces=pieces)
    assert_frame_equal(seen, ROWS)
    assert source.lag(position) == 0
    filled(tmp_path / "db", ROWS.head(5))
    more, _ = drain(source, rows=rows, pieces=pieces, position=position)
    assert_frame_equal(more, ROWS.head(5))


def test_the_sink_shows_what_was_published_once_and_nothing_of_lost_attempts(tmp_path: Path) -> None:
    sink = csv(tmp_path / "out")
    sink.check(0, {})
    won = [sink.prepare(ROWS.head(2), epoch=epoch, part="0.1", attempt="a/1") for epoch in (1, 2)]
    sink.prepare(ROWS.head(2), epoch=2, part="0.1", attempt="a/2")
    assert all(path.stat().st_size == size for receipt in won for path, size in sink.files(receipt).items())
    for _ in range(2):
        sink.publish(2, won)
    sink.sweep(3, Anyone())
    assert pl.read_csv(tmp_path / "out" / "*" / "*.csv").height == 4
    assert list((tmp_path / ".out.staging").iterdir()) == []


def test_both_are_explained(tmp_path: Path) -> None:
    told = hf.explain(declare(tmp_path))
    assert f"table visits in {tmp_path / 'db'}" in told
    assert f"CSV files in {tmp_path / 'out'}" in told
    assert CsvSink.guarantee in told


def test_a_declaration_needs_no_more_than_the_classes() -> None:
    assert issubclass(TableSource, hf.source.Source)
    assert issubclass(CsvSink, hf.sink.TaskSink)


def dying(loop: Loop, ran: Ran) -> None:
    """Dies by SIGKILL when some epochs are committed."""
    if ran.epoch == 4:
        os.kill(os.getpid(), signal.SIGKILL)


def victim(home: Path) -> None:
    """Without Spark, which starts slowly; the run that goes on has it."""
    run_in(home / "store", declare(home), Cut(rows=60), follow=Commits(after=dying))


@pytest.mark.spark
def test_after_a_kill_the_output_is_that_of_a_run_without_one(spark: SparkSession, tmp_path: Path) -> None:
    filled(tmp_path / "db")
    here = Path(__file__).parent
    path = os.pathsep.join([str(here), str(here.parent), *filter(None, [os.environ.get("PYTHONPATH")])])
    code = f"import pathlib, test_new_connectors as it; it.victim(pathlib.Path({str(tmp_path)!r}))"
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": path}, stdout=log, stderr=log,
            start_new_session=True,
        )  # fmt: skip
        assert process.wait(200) == -signal.SIGKILL, (tmp_path / "log").read_text()
    summary = hf.run(declare(tmp_path), spark=spark, store=tmp_path / "store", least_rows=60, most_rows=60)
    assert summary.epochs < 10, "it went on where it was"
    assert_frame_equal(pl.read_csv(tmp_path / "out" / "*" / "*.csv"), expected(), check_row_order=False)
