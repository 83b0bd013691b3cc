"""Results in a DuckDB file: rows, epoch and vector in one transaction, every epoch once, whoever else has the file."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, date, datetime, time
from decimal import Decimal
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from polars.testing import assert_frame_equal

from holdfast.connect import duckdb_file
from holdfast.connect.base import Owner
from holdfast.connect.duckdb_file import opened_duckdb
from holdfast.errors import DeclarationError, InputError, OperatorError, OutputConflictError
from holdfast.sink import database
from holdfast.source import database as table_source

ROWS = pl.DataFrame({"page": ["a", "b"], "n": [1, 2], "mean": [0.5, None]})


def opened(path: Path, schema: pl.Schema = ROWS.schema, store: str = "store", **options: Any) -> Any:
    sink = database(f"duckdb:///{path}", "results", **options)
    sink.accept(schema)
    sink.attach(Owner(store, "p", "out"))
    sink.bind(schema)
    return sink


def rows_in(path: Path, query: str = "select page, n, mean from results order by rowid") -> list[tuple[Any, ...]]:
    with opened_duckdb(str(path)) as connection:
        found: list[tuple[Any, ...]] = connection.execute(query).fetchall()
        return found


def test_an_epoch_that_comes_again_is_written_once(tmp_path: Path) -> None:
    path = tmp_path / "out.db"
    assert opened(path).delivered() is None
    opened(path).deliver(1, ROWS, {"in": {"row": 2}})
    again = opened(path)  # as after a crash between the database's commit and ours
    again.check(0)
    again.deliver(1, ROWS, {"in": {"row": 2}})
    again.deliver(2, ROWS[:1], {"in": {"row": 3}})
    again.deliver(1, ROWS, {"in": {"row": 2}})
    assert again.delivered() == 2
    assert rows_in(path) == [("a", 1, 0.5), ("b", 2, None), ("a", 1, 0.5)]


def test_an_epoch_of_another_history_or_another_store_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "out.db"
    opened(path).deliver(1, ROWS, {"in": {"row": 2}})
    with pytest.raises(OutputConflictError, match="depends on"):
        opened(path).deliver(1, ROWS, {"in": {"row": 1}})
    opened(path).deliver(2, ROWS, {"in": {"row": 4}})
    with pytest.raises(OutputConflictError, match="up to epoch 2"):
        opened(path).check(0)
    with pytest.raises(OutputConflictError, match="from store store; this is store another"):
        opened(path, store="another").deliver(3, ROWS, {})
    opened(path, writer="other").check(0)
    assert len(rows_in(path)) == 4


def test_rows_are_updated_by_key_and_the_last_of_an_epoch_counts(tmp_path: Path) -> None:
    path = tmp_path / "out.db"
    sink = opened(path, key="page")
    sink.deliver(1, ROWS, {})
    sink.deliver(2, pl.DataFrame({"page": ["c", "b", "b"], "n": [3, 7, 8], "mean": [0.0, 1.0, 2.0]}), {})
    assert sorted(rows_in(path)) == [("a", 1, 0.5), ("b", 8, 2.0), ("c", 3, 0.0)]


def test_a_failure_leaves_neither_rows_nor_progress(tmp_path: Path) -> None:
    path = tmp_path / "out.db"
    with opened_duckdb(str(path), write=True) as connection:
        connection.execute("create table results (page varchar, n bigint check (n < 5), mean double)")
    sink = opened(path)
    sink.deliver(1, ROWS, {})
    with pytest.raises(OperatorError, match="cannot write table 'results'"):
        sink.deliver(2, ROWS.with_columns(n=pl.col("n") * 3), {})
    assert sink.delivered() == 1
    assert len(rows_in(path)) == 2


def test_every_type_comes_back_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "out.db"
    rows = pl.DataFrame(
        {
            "id": [1, 2],
            "small": pl.Series([1, None], dtype=pl.UInt8),
            "ratio": pl.Series([0.5, None], dtype=pl.Float32),
            "flag": [True, None],
            "text": ["ä", None],
            "raw": [b"\x00x", None],
            "day": [date(2024, 2, 29), None],
            "clock": [time(23, 59, 59, 5), None],
            "at": pl.Series([datetime(2024, 1, 1, 12), None], dtype=pl.Datetime("us")),
            "moment": pl.Series([datetime(2024, 1, 1, 12, tzinfo=UTC), None], dtype=pl.Datetime("us", "UTC")),
            "money": pl.Series([Decimal("1.50"), None], dtype=pl.Decimal(12, 2)),
            "tags": [["x", "y"], None],
            "pair": [{"a": 1}, None],
        }
    )
    opened(path, rows.schema).deliver(1, rows, {})
    source = table_source(f"duckdb:///{path}", "results", "id", settle=0)
    assert source.schema == rows.schema
    [piece] = source.take(source.start(), 10, 1).slices
    assert_frame_equal(pl.concat(chunk.frame for chunk in source.read(piece)), rows)


def test_what_does_not_fit_is_told(tmp_path: Path) -> None:
    path = tmp_path / "out.db"
    with opened_duckdb(str(path), write=True) as connection:
        connection.execute("create table results (page varchar, n bigint)")
    with pytest.raises(DeclarationError, match="no column 'mean'"):
        opened(path)
    with pytest.raises(DeclarationError, match=r"no unique index on \(page\)"):
        opened(path, ROWS.drop("mean").schema, key="page")
    with opened_duckdb(str(path), write=True) as connection:
        connection.execute("create unique index by_page on results (page)")
    opened(path, ROWS.drop("mean").schema, key="page").deliver(1, ROWS.drop("mean"), {})
    with pytest.raises(DeclarationError, match="which is part of the key"):
        opened(path, key="other")
    for url in ("duckdb://", "duckdb:///:memory:"):
        with pytest.raises(DeclarationError, match="does not name a file"):
            database(url, "results")
    with pytest.raises(InputError, match="cannot read table 'results'"):
        table_source(f"duckdb:///{tmp_path / 'missing.db'}", "results", "n")


def test_another_process_with_the_file_is_waited_for_and_then_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "out.db"
    sink = opened(path)
    code = (
        "import duckdb, sys; c = duckdb.connect(sys.argv[1]); c.execute('insert into results values (?, 0, 0)', ['x']);"
        " print('in', flush=True); sys.stdin.readline(); c.close()"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", code, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert holder.stdout is not None
    assert holder.stdin is not None
    try:
        assert holder.stdout.readline() == "in\n"
        monkeypatch.setattr(duckdb_file, "_PATIENCE_SECONDS", 0.1)
        with pytest.raises(OperatorError, match=r"lock(.|\n)*check that no other program has the file open"):
            sink.deliver(1, ROWS, {})
        monkeypatch.setattr(duckdb_file, "_PATIENCE_SECONDS", 20.0)
        with ThreadPoolExecutor(1) as pool:
            delivery = pool.submit(sink.deliver, 1, ROWS, {})
            holder.stdin.write("\n")
            holder.stdin.flush()
            delivery.result(30)
    finally:
        holder.kill()
        holder.communicate()
    assert [row[0] for row in rows_in(path)] == ["x", "a", "b"]
