"""Results in a database: rows, epoch and vector in one transaction, and every epoch once."""

from __future__ import annotations

import sqlite3
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import polars as pl
import pytest
from sqlalchemy.exc import IntegrityError

from holdfast.connect.base import Owner
from holdfast.connect.sinks.database import DatabaseSink, database
from holdfast.errors import DeclarationError, OperatorError, OutputConflictError

ROWS = pl.DataFrame({"page": ["a", "b"], "n": [1, 2], "mean": [0.5, None]})


def opened(path: Path, **options: str) -> DatabaseSink:
    sink = database(f"sqlite:///{path}", "results", **options)
    assert isinstance(sink, DatabaseSink)
    sink.attach(Owner("store", "p", "out"))
    sink.bind(ROWS.schema)
    return sink


def rows_in(path: Path) -> list[tuple[object, ...]]:
    connection = sqlite3.connect(path)
    try:
        return connection.execute("select page, n, mean from results order by rowid").fetchall()
    finally:
        connection.close()


def test_an_epoch_that_comes_again_is_written_once(tmp_path: Path) -> None:
    path = tmp_path / "out.db"
    opened(path).deliver(1, ROWS, {"in": {"row": 2}})
    again = opened(path)  # as after a crash between the database's commit and ours
    again.check(0)
    again.deliver(1, ROWS, {"in": {"row": 2}})
    again.deliver(2, ROWS[:1], {"in": {"row": 3}})
    assert rows_in(path) == [("a", 1, 0.5), ("b", 2, None), ("a", 1, 0.5)]


def test_an_epoch_of_another_history_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "out.db"
    opened(path).deliver(1, ROWS, {"in": {"row": 2}})
    with pytest.raises(OutputConflictError, match="depends on"):
        opened(path).deliver(1, ROWS, {"in": {"row": 1}})
    opened(path).deliver(2, ROWS, {"in": {"row": 4}})
    with pytest.raises(OutputConflictError, match="up to epoch 2"):
        opened(path).check(0)
    opened(path, writer="other").check(0)


def test_a_writer_of_another_store_is_refused(tmp_path: Path) -> None:
    """Its epochs have the same numbers: rows of the one that is behind would be taken for rows that are there."""
    path = tmp_path / "out.db"
    opened(path).deliver(1, ROWS, {"in": {"row": 2}})
    other = database(f"sqlite:///{path}", "results")
    other.attach(Owner("another", "p", "out"))
    other.bind(ROWS.schema)
    for attempt in (lambda: other.check(10), lambda: other.deliver(11, ROWS, {"in": {"row": 22}})):
        with pytest.raises(OutputConflictError, match="from store store; this is store another"):
            attempt()
    opened(path).deliver(2, ROWS, {"in": {"row": 4}})
    assert len(rows_in(path)) == 4


def test_a_table_of_version_0_1_goes_on_and_knows_its_store_from_then_on(tmp_path: Path) -> None:
    path = tmp_path / "out.db"
    connection = sqlite3.connect(path)
    connection.execute("create table holdfast_progress (writer varchar(255) primary key, epoch bigint, vector text)")
    connection.execute("insert into holdfast_progress values ('p.out', 1, '{}')")
    connection.commit()
    connection.close()
    sink = opened(path)
    sink.check(1)
    sink.deliver(1, ROWS, {})
    sink.deliver(2, ROWS, {})
    assert len(rows_in(path)) == 2, "the first epoch was there"
    connection = sqlite3.connect(path)
    assert connection.execute("select writer, epoch, store from holdfast_progress").fetchall() == [
        ("p.out", 2, "store")
    ]
    connection.close()


def test_a_sink_that_two_pipelines_use_writes_for_each_under_its_own_name(tmp_path: Path) -> None:
    path = tmp_path / "out.db"
    sink = database(f"sqlite:///{path}", "results")
    for pipeline in ("one", "two"):
        sink.attach(Owner("store", pipeline, "out"))
        sink.bind(ROWS.schema)
        sink.deliver(1, ROWS, {})
    assert len(rows_in(path)) == 4


def test_two_sinks_write_to_one_table_each_on_its_own_account(tmp_path: Path) -> None:
    path = tmp_path / "out.db"
    one, two = (database(f"sqlite:///{path}", "results") for _ in range(2))
    for name, sink in (("one", one), ("two", two)):
        sink.attach(Owner("store", "p", name))
        sink.bind(ROWS.schema)
        sink.deliver(1, ROWS, {"in": {"row": 2}})
    assert len(rows_in(path)) == 4
    one.deliver(2, ROWS, {"in": {"row": 3}})
    with pytest.raises(OutputConflictError, match="another process writes"):
        one.deliver(2, ROWS, {"in": {"row": 2}})


def test_hosts_that_deliver_the_same_epochs_write_each_once(tmp_path: Path) -> None:
    """They race: each looks how far it is before the other has written."""
    path = tmp_path / "out.db"
    hosts = [opened(path) for _ in range(2)]
    for epoch in range(1, 4):
        with ThreadPoolExecutor(2) as pool:
            vector = {"in": {"row": epoch}}
            list(pool.map(lambda sink, e=epoch, v=vector: sink.deliver(e, ROWS, v), hosts))  # type: ignore[misc]
    hosts[0].deliver(1, ROWS, {"in": {"row": 1}})  # far behind: the other one has brought it
    assert len(rows_in(path)) == 3 * ROWS.height


def test_a_failed_transaction_leaves_nothing(tmp_path: Path) -> None:
    path = tmp_path / "out.db"
    sink = opened(path)
    connection = sqlite3.connect(path)
    connection.execute("create trigger stop before insert on holdfast_progress begin select raise(abort, 'no'); end")
    with pytest.raises(IntegrityError):
        sink.deliver(1, ROWS, {})  # the rows are in the transaction when the progress is refused
    assert rows_in(path) == []
    connection.execute("drop trigger stop")
    connection.close()
    sink.deliver(1, ROWS, {})
    assert len(rows_in(path)) == 2


def test_what_cannot_be_written_is_refused_before_the_run(tmp_path: Path) -> None:
    with pytest.raises(DeclarationError, match="URL of the database cannot be parsed"):
        database("results.db", "t")
    sink = database(f"sqlite:///{tmp_path / 'out.db'}", "t")
    with pytest.raises(DeclarationError, match="'tags' for table 't' is List"):
        sink.bind(pl.Schema({"tags": pl.List(pl.String)}))
    with pytest.raises(OperatorError, match="cannot open table"):
        database(f"sqlite:///{tmp_path / 'missing' / 'out.db'}", "t").bind(ROWS.schema)
    opened(tmp_path / "out.db")
    with pytest.raises(DeclarationError, match="no column 'more'"):
        database(f"sqlite:///{tmp_path / 'out.db'}", "results").bind(pl.Schema({"more": pl.Int64}))
