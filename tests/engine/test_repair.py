"""A pipeline that its input has stopped is got going by hand, on the same store; nothing is lost or counted twice."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from click.testing import CliRunner
from pyspark.sql import SparkSession

import holdfast as hf
from holdfast.cli import main
from holdfast.connect.sinks.database import DatabaseSink
from holdfast.errors import BadRowError, CorruptFileError, OperatorError
from holdfast.meta import MetaStore, Repairs

pytestmark = pytest.mark.spark

SCHEMA = {"ts": pl.Int64, "k": pl.Int64}


def lines(*keys: int) -> str:
    return "".join(json.dumps({"ts": key, "k": key}) + "\n" for key in keys)


class Dying(DatabaseSink):
    """Its process dies when the database has the rows, before the commit."""

    def deliver(self, epoch: int, rows: pl.DataFrame, vector: Mapping[str, Any]) -> None:
        DatabaseSink.deliver(self, epoch, rows, vector)
        raise RuntimeError("the process dies")


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "in").mkdir()
    return tmp_path


def put(home: Path, name: str, text: str) -> Path:
    """Renamed into place."""
    (home / "in" / ".draft").write_text(text)
    return (home / "in" / ".draft").rename(home / "in" / name)


def start(home: Path, spark: SparkSession, sink: hf.sink.Sink | None = None, settle: float = 0, **options: Any) -> None:
    pipeline = hf.Pipeline("keys")
    source = hf.source.files(home / "in", format="ndjson", schema=SCHEMA, grow=True, settle=settle)
    rows = pipeline.source("in", source, event_time="ts", time_unit="s")
    rows.key_by("k").window(hf.window.tumbling("1000s")).agg(n=hf.count()).sink("counts", hf.sink.collect())
    rows.sink("out", sink or hf.sink.parquet(home / "out"))
    hf.run(pipeline, spark=spark, store=home / "store", until_idle=True, **options)


def output(home: Path) -> list[int]:
    return sorted(hf.read_output(home / "out", "parquet")["k"].to_list())


def said(home: Path, *command: str, code: int = 0) -> str:
    told = CliRunner().invoke(main, [*command, "--store", str(home / "store")])
    assert told.exit_code == code, told.output
    return told.output


def test_a_bad_line_that_was_corrected_is_read_after_a_replan(home: Path, spark: SparkSession) -> None:
    put(home, "a", lines(1, 2))
    start(home, spark)
    bad = put(home, "b", lines(3) + "{broken\n" + lines(4))
    with pytest.raises(BadRowError) as stopped:
        start(home, spark)
    assert "holdfast replan keys" in stopped.value.cure
    assert f"holdfast skip keys {bad}" in stopped.value.cure
    assert "holdfast skip keys 2 " in stopped.value.cure
    bad.write_text(lines(3, 4))
    with pytest.raises(CorruptFileError, match="changed after it was planned"):
        start(home, spark)
    assert "epoch 2" in said(home, "replan", "keys", "--reason", "line 2 was broken")
    start(home, spark)
    assert output(home) == [1, 2, 3, 4]
    shown = said(home, "status", "keys")
    assert "line 2 was broken" in shown


def test_the_rest_of_a_file_whose_bad_line_was_corrected_is_read_from_where_it_was(
    home: Path, spark: SparkSession
) -> None:
    good, rest = list(range(40)), list(range(100, 120))
    bad = put(home, "a", lines(*good) + "{broken\n" + lines(*rest))
    with pytest.raises(BadRowError):
        start(home, spark, most_rows=10, least_rows=10)
    before = output(home)
    assert 0 < len(before) <= 40
    bad.write_text(lines(*good, 99, *rest))
    said(home, "replan", "keys", "--reason", "mended")
    start(home, spark, most_rows=10, least_rows=10)
    assert output(home) == [*good, 99, *rest]


def test_a_replan_does_not_go_on_in_a_file_of_which_the_part_that_was_read_has_changed(
    home: Path, spark: SparkSession
) -> None:
    bad = put(home, "a", lines(*range(40)) + "{broken\n")
    with pytest.raises(BadRowError):
        start(home, spark, most_rows=10, least_rows=10)
    read = output(home)
    bad.write_text(lines(*range(200, 260)))
    said(home, "replan", "keys", "--reason", "another file")
    with pytest.raises(CorruptFileError) as stopped:
        start(home, spark, most_rows=10, least_rows=10)
    assert f"holdfast skip keys {bad}" in stopped.value.cure
    said(home, "skip", "keys", str(bad), "--reason", "lost")
    put(home, "b", lines(7000))
    start(home, spark, most_rows=10, least_rows=10)
    assert output(home) == [*read, 7000]


def test_a_skipped_file_is_not_read_and_the_others_are(home: Path, spark: SparkSession) -> None:
    put(home, "a", lines(1))
    bad = put(home, "b", "{broken\n")
    put(home, "c", lines(3))
    with pytest.raises(BadRowError):
        start(home, spark)
    said(home, "skip", "keys", str(bad), "--reason", "the sender will send it again")
    start(home, spark)
    assert output(home) == [1, 3]
    shown = said(home, "status", "keys")
    assert "the sender will send it again" in shown
    assert str(bad) in shown.replace("\n", "")
    start(home, spark)
    assert output(home) == [1, 3]


def test_a_skipped_epoch_is_passed_over_and_what_it_had_is_kept_as_a_fact(home: Path, spark: SparkSession) -> None:
    put(home, "a", lines(1))
    start(home, spark)
    put(home, "b", lines(2) + "{broken\n")
    with pytest.raises(BadRowError):
        start(home, spark)
    assert "no epoch 7" in said(home, "skip", "keys", "7", code=1)
    assert "is committed" in said(home, "skip", "keys", "1", code=1)
    said(home, "skip", "keys", "2", "--reason", "test data")
    put(home, "c", lines(3))
    start(home, spark)
    assert output(home) == [1, 3]
    [status] = [json.loads(said(home, "status", "keys", "--json"))]
    [repair] = status["repairs"]
    assert repair["reason"] == "test data"
    assert repair["outcome"]["rows"]["in"] > 0
    assert [part["file"] for part in repair["outcome"]["files"]] == ["b"]


def test_a_mistyped_directory_is_reported_at_the_start_and_in_status(
    home: Path, spark: SparkSession, caplog: pytest.LogCaptureFixture
) -> None:
    (home / "in").rmdir()
    start(home, spark)
    [told] = [line.getMessage() for line in caplog.records if "does not exist" in line.getMessage()]
    assert str(home / "in") in told
    assert "does not exist" in said(home, "status", "keys")
    (home / "in").mkdir()
    put(home, "a", lines(1))
    start(home, spark)
    assert "does not exist" not in said(home, "status", "keys")


def test_a_run_until_idle_waits_for_a_file_that_is_not_complete(home: Path, spark: SparkSession) -> None:
    (home / "in" / "a").write_text(lines(1))
    start(home, spark, settle=0.2)
    assert output(home) == [1]


def test_nothing_is_repaired_while_the_pipeline_runs(home: Path, spark: SparkSession) -> None:
    put(home, "a", lines(1))
    tried: list[str] = []

    def meanwhile(epoch: int, rows: pl.DataFrame) -> None:
        tried.append(said(home, "replan", "keys", code=1))
        tried.append(said(home, "skip", "keys", "1", code=1))

    start(home, spark, hf.sink.for_each_epoch(meanwhile))
    assert len(tried) == 2
    for text in tried:
        assert "'keys' is being run by" in text
        assert "stop" in text
    meta = MetaStore(home / "store")
    assert Repairs(meta).known("keys") == []
    meta.close()


def test_an_epoch_that_a_database_has_already_runs_as_it_was_planned(home: Path, spark: SparkSession) -> None:
    put(home, "a", lines(1))
    url = f"sqlite:///{home / 'results.db'}"
    with pytest.raises(OperatorError, match="the process dies"):
        start(home, spark, Dying(url, "rows", None))
    said(home, "skip", "keys", "1", "--reason", "try")
    start(home, spark, hf.sink.database(url, "rows"))
    with sqlite3.connect(home / "results.db") as connection:
        assert connection.execute("select k from rows").fetchall() == [(1,)]
    connection.close()
    assert "already has the rows of epoch 1" in said(home, "status", "keys").replace("\n", " ").replace("  ", " ")


def test_an_epoch_of_one_fragment_is_passed_over_and_its_p_stream_goes_on(home: Path, spark: SparkSession) -> None:
    def picky(rows: pl.DataFrame) -> pl.DataFrame:
        if 13 in rows["k"]:
            raise ValueError("unlucky")
        return rows

    def go(keys: range) -> None:
        if keys:
            put(home, f"{keys[0]:03}", lines(*keys))
        pipeline = hf.Pipeline("cut")
        source = hf.source.files(home / "in", format="ndjson", schema=SCHEMA, grow=True, settle=0)
        kept = pipeline.source("in", source, event_time="ts", time_unit="s").persist("kept")
        kept.map_batches(picky, schema=SCHEMA).sink("out", hf.sink.parquet(home / "out"))
        kept.sink("all", hf.sink.parquet(home / "all"))
        hf.run(pipeline, spark=spark, store=home / "store", until_idle=True)

    go(range(10))
    with pytest.raises(OperatorError, match="unlucky") as stopped:
        go(range(10, 20))
    assert "holdfast skip cut.out 2 " in stopped.value.cure
    said(home, "skip", "cut", "2", "--reason", "unlucky")
    go(range(20, 30))
    assert output(home) == [*range(10), *range(20, 30)]
    assert sorted(hf.read_output(home / "all", "parquet")["k"].to_list()) == list(range(30))
    assert "10 rows" in said(home, "status", "cut.out")
