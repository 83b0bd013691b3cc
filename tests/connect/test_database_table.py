"""A table of a database as a source: rows by a key that grows, each once, whatever order transactions commit in."""

from __future__ import annotations

import time
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace

import polars as pl
import psycopg
import pytest
import sqlalchemy as sa
from drain import drain
from polars.testing import assert_frame_equal

import holdfast as hf
from harness import Cut, run_in
from holdfast.connect.duckdb_file import opened_duckdb
from holdfast.connect.sources import database_table
from holdfast.errors import BadRowError, DeclarationError, InputError
from holdfast.source import database
from holdfast_lab.chaos.database_server import DatabaseServer
from postgres import fresh_url

ROWS = pl.DataFrame(
    {
        "id": [3 * n + 1 for n in range(200)],
        "shop": [None if n % 7 == 0 else f"shop {n % 3}" for n in range(200)],
        "at": [datetime(2026, 1, 1, 0, n // 60, n % 60) for n in range(200)],
        "amount": [n / 2 for n in range(200)],
    }
)


@pytest.fixture(params=["postgresql", "sqlite", "duckdb"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param != "postgresql":
        return f"{request.param}:///{tmp_path / 'in.db'}"
    return fresh_url(request.getfixturevalue("postgresql"))


@pytest.fixture
def server_url(postgresql: DatabaseServer) -> str:
    return fresh_url(postgresql)


def fill(url: str, rows: pl.DataFrame = ROWS) -> None:
    """As the sink does it."""
    sink = hf.sink.database(url, "orders", key="id")
    sink.attach(hf.sink.Owner("store", "fill", f"out {rows['id'].min()}"))
    sink.bind(rows.schema)
    sink.deliver(1, rows, {})


@pytest.mark.parametrize(("rows", "pieces"), [(1_000, 1), (23, 3)])
def test_the_contract_is_kept_however_the_table_is_cut(url: str, rows: int, pieces: int) -> None:
    fill(url, ROWS.head(150))
    source = database(url, "orders", "id", settle=0)
    seen, position = drain(source, rows=rows, pieces=pieces)
    assert_frame_equal(seen, ROWS.head(150))
    assert source.lag(position) == 0
    fill(url, ROWS.tail(50))
    assert source.lag(position) == 50
    more, _ = drain(source, rows=rows, pieces=pieces, position=position)
    assert_frame_equal(more, ROWS.tail(50))


def test_what_waits_is_estimated_by_keys_and_never_counted(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is asked for in each epoch: a table of a billion rows must not be counted for it."""
    fill(url)
    source = database(url, "orders", "id", settle=0)
    position = source.take(source.start(), 50, 1).position
    assert source.lag(source.start()) == 598, "no more rows than there are keys"
    asked: list[str] = []

    def note(*given: object) -> None:
        asked.append(str(given[2]))

    sa.event.listen(sa.Engine, "before_cursor_execute", note)
    try:
        assert source.lag(position) == 150
    finally:
        sa.event.remove(sa.Engine, "before_cursor_execute", note)
    assert asked or url.startswith("duckdb"), "DuckDB is not asked by way of SQLAlchemy"
    assert [query for query in asked if "count" in query.lower()] == []


def test_a_table_that_does_not_grow_ends_with_the_rows_it_had(url: str) -> None:
    fill(url, ROWS.head(100))
    source = database(url, "orders", "id", grow=False)
    first = source.take(source.start(), 10, 1)
    fill(url, ROWS.tail(50))
    rest, _ = drain(source, rows=30, position=first.position)
    assert_frame_equal(rest, ROWS.slice(10, 90))


def test_a_key_is_read_when_it_was_the_greatest_for_long_enough(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(url, ROWS.head(10))
    clock = SimpleNamespace(now=1_000.0)
    monkeypatch.setattr(database_table, "time", SimpleNamespace(monotonic=lambda: clock.now))
    source = database(url, "orders", "id", settle="300ms")
    assert not source.take(source.start(), 100, 1).slices
    assert source.awaits(source.start())
    clock.now += 0.35
    take = source.take(source.start(), 100, 1)
    assert take.slices[0].rows == 10
    assert not source.awaits(take.position)


def test_a_transaction_that_is_open_is_waited_for(server_url: str) -> None:
    """It took its key before the others, and commits after them."""
    with psycopg.connect(server_url) as connection:
        connection.execute("create table orders (id bigint generated always as identity, v int)")
    with psycopg.connect(server_url) as slow, psycopg.connect(server_url, autocommit=True) as quick:
        slow.execute("insert into orders (v) values (1)")
        quick.execute("insert into orders (v) values (2), (3)")
        source = database(server_url, "orders", "id", settle=0)
        assert not source.take(source.start(), 100, 1).slices
        assert source.awaits(source.start())
        slow.commit()
        quick.execute("insert into orders (v) values (4)")
        seen, position = drain_until(source, 4)
        assert seen == [1, 2, 3, 4]
        assert not source.awaits(position)


def drain_until(source: hf.source.Source, rows: int) -> tuple[list[int], hf.source.Position]:
    at, seen = source.start(), []
    deadline = time.monotonic() + 30
    while len(seen) < rows and time.monotonic() < deadline:
        take = source.take(at, 100, 1)
        seen += [v for piece in take.slices for chunk in source.read(piece) for v in chunk.frame["v"].to_list()]
        at = take.position
    return seen, at


def test_rows_that_appear_below_what_was_planned_are_told(url: str) -> None:
    fill(url)
    source = database(url, "orders", "id", settle=0)
    take = source.take(source.start(), 10, 1)
    fill(url, ROWS.head(1).with_columns(id=pl.lit(2, pl.Int64)))
    with pytest.raises(InputError, match=r"had 10 rows with 'id' above None up to 28 .* but has 11 now(.|\n)*settle"):
        list(source.read(take.slices[0]))


def test_what_does_not_fit_is_told_at_declaration(url: str) -> None:
    with pytest.raises(
        InputError, match=r"cannot read table 'orders'.*: (it does not exist|.*database does not exist)"
    ):
        database(url, "orders", "id")
    fill(url)
    with pytest.raises(InputError, match="cannot read table 'missing'"):
        database(url, "missing", "id")
    for key, problem in (("nr", "no column 'nr'"), ("shop", "not a whole number")):
        with pytest.raises(DeclarationError, match=problem):
            database(url, "orders", key).take({"base": 0, "key": None, "last": None}, 1, 1)
    with pytest.raises(BadRowError, match="do not fit the schema"):
        drain(database(url, "orders", "id", schema={"shop": pl.Int64}, settle=0))
    if url.startswith("duckdb"):
        return  # it has no types that are not Arrow's
    with sa.create_engine(url).begin() as connection:
        connection.execute(sa.text("create table odd (id integer, what numeric(10, 2))"))
    with pytest.raises(DeclarationError, match=r"'what' .* no single type"):
        database(url, "odd", "id")


@pytest.mark.parametrize("kind", ["sqlite", "duckdb"])
def test_a_file_is_found_from_any_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    fill(f"{kind}:///in.db")
    source = database(f"{kind}:///in.db", "orders", "id", settle=0)
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert drain(source)[0].height == 200


def test_a_pipeline_from_table_to_table(url: str, tmp_path: Path) -> None:
    fill(url)
    pipeline = hf.Pipeline("sales")
    orders = pipeline.source("orders", database(url, "orders", "id", grow=False), event_time="at")
    sums = orders.key_by("shop").window(hf.window.tumbling("1 min")).agg(n=hf.count(), amount=hf.sum("amount"))
    sums.sink("out", hf.sink.database(url, "sales"))
    run_in(tmp_path / "store", pipeline, Cut(rows=30, tasks=2))
    query = "select sum(n), sum(amount) from sales"
    if url.startswith("duckdb"):
        with opened_duckdb(url.removeprefix("duckdb:///")) as file:
            [(n, amount)] = file.execute(query).fetchall()
    else:
        with sa.create_engine(url).connect() as connection:
            n, amount = connection.execute(sa.text(query)).one()
    assert (n, amount) == (200, ROWS["amount"].sum())
