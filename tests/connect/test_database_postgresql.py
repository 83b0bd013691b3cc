"""Results in PostgreSQL: by COPY, in its binary format or as text, inserted or updated by key, and every epoch once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from datetime import date, datetime, time
from pathlib import Path
from typing import Any

import polars as pl
import psycopg
import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast.connect.base import Owner
from holdfast.connect.sinks.database import DatabaseSink, database
from holdfast.connect.sinks.postgres_copy import fits_binary
from holdfast.errors import DeclarationError
from holdfast_lab.chaos.database_server import DatabaseServer
from postgres import fresh_url

ROWS = pl.DataFrame({"page": ["a", "b"], "n": [1, 2], "mean": [0.5, None]})
EVERYTHING = pl.DataFrame(
    {
        "i": [1, None, -(2**63)],
        "small": pl.Series([1, None, -3], dtype=pl.Int16),
        "u": pl.Series([1, 2, 2**32 - 1], dtype=pl.UInt32),
        "f": [0.5, None, float("inf")],
        "single": pl.Series([0.25, None, 1e10], dtype=pl.Float32),
        "t": ["", None, 'a "b"\n,\\N ü'],
        "null": ["\\N", "NULL", "x"],
        "b": [True, None, False],
        "d": [date(1999, 12, 31), None, date(2026, 7, 1)],
        "n": [datetime(1999, 12, 31, 23, 59, 59, 999999), None, datetime(2026, 7, 1)],
        "m": pl.Series([datetime(2026, 7, 1), None, datetime(1970, 1, 1)], dtype=pl.Datetime("ms")),
        "z": pl.Series([datetime(2026, 7, 1, 12), None, datetime(2026, 1, 1)]).dt.replace_time_zone("Europe/Berlin"),
        "at": [time(1, 2, 3, 456), None, time(23, 59, 59, 999999)],
        "y": [b"\x00\xff", None, b""],
    }
)


@pytest.fixture
def url(postgresql: DatabaseServer) -> str:
    return fresh_url(postgresql)


def opened(url: str, rows: pl.DataFrame = ROWS, table: str = "results", **options: Any) -> DatabaseSink:
    sink = database(url, table, **options)
    sink.accept(rows.schema)
    sink.attach(Owner("store", "p", "out"))
    sink.bind(rows.schema)
    return sink


def query(url: str, text: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(url, options="-c timezone=UTC") as connection:
        return connection.execute(text).fetchall()  # type: ignore[arg-type]


@pytest.fixture(params=["postgresql", "sqlite"])
def anywhere(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'out.db'}"
    return fresh_url(request.getfixturevalue("postgresql"))


def found(url: str, text: str) -> list[tuple[Any, ...]]:
    with sa.create_engine(url).connect() as connection:
        return [tuple(row) for row in connection.execute(sa.text(text))]


def as_told(rows: pl.DataFrame) -> list[tuple[Any, ...]]:
    return rows.with_columns(pl.col("z").dt.convert_time_zone("UTC")).rows()


def test_values_of_all_types_come_back(url: str) -> None:
    opened(url, EVERYTHING).deliver(1, EVERYTHING, {})
    assert fits_binary(EVERYTHING.schema, opened(url, EVERYTHING)._into.types)  # type: ignore[union-attr]
    assert query(url, "select * from results") == as_told(EVERYTHING)


def test_a_table_with_other_types_is_given_text_which_the_server_casts(url: str) -> None:
    with psycopg.connect(url) as connection:
        connection.execute(
            "create table results (i numeric, small bigint, u integer, f numeric, single float8, t varchar(80),"
            ' "null" text, b boolean, d timestamp, n timestamptz, m date, z timestamp, at text, y bytea, more json)'
        )
    rows = EVERYTHING.with_columns(u=pl.col("u").clip(0, 7), f=pl.Series([0.5, None, 7.0]))
    sink = opened(url, rows)
    assert not fits_binary(rows.schema, sink._into.types)  # type: ignore[union-attr]
    sink.deliver(1, rows, {})
    [first, empty, last] = query(url, 'select i, u, f, t, "null", d, m, z, y, more from results')
    assert first == (
        1,
        1,
        0.5,
        "",
        "\\N",
        datetime(1999, 12, 31),
        date(2026, 7, 1),
        datetime(2026, 7, 1, 10),
        b"\0\xff",
        None,
    )
    assert empty[3:5] == (None, "NULL")
    assert last[3] == 'a "b"\n,\\N ü'


def test_what_the_server_refuses_leaves_nothing(url: str) -> None:
    with psycopg.connect(url) as connection:
        connection.execute("create table results (page text, n smallint, mean float8 check (mean < 1))")
    sink = opened(url)
    for wrong in ({"n": 2**40}, {"mean": 2.0}):
        with pytest.raises(psycopg.Error):
            sink.deliver(1, ROWS.with_columns(**{name: pl.lit(value) for name, value in wrong.items()}), {})
    assert query(url, "select count(*) from results") == [(0,)]
    sink.deliver(1, ROWS, {})
    assert query(url, "select count(*) from results") == [(2,)]


PLAIN = EVERYTHING.select("i", "f", "t", "b", "d", "n", "y")


@settings(max_examples=200 if os.environ.get("HOLDFAST_FUZZ") else 8, deadline=None,
          suppress_health_check=[HealthCheck.function_scoped_fixture])  # fmt: skip
@given(data=st.data())
def test_any_rows_come_back_as_they_were(url: str, data: st.DataObject) -> None:
    text = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]))
    moments = st.datetimes(datetime(1900, 1, 1), datetime(2100, 1, 1))
    kinds = [st.integers(-(2**63), 2**63 - 1), st.floats(allow_nan=False), text, st.booleans(), st.dates(), moments,
             st.binary()]  # fmt: skip
    made = data.draw(st.lists(st.tuples(*(st.none() | kind for kind in kinds)), min_size=1, max_size=8))
    rows = pl.DataFrame(made, schema=PLAIN.schema, orient="row")
    columns = data.draw(st.lists(st.sampled_from(rows.columns), min_size=1, unique=True))
    with psycopg.connect(url) as connection:
        connection.execute("drop table if exists results, holdfast_progress")
    opened(url, rows.select(columns)).deliver(1, rows.select(columns), {})
    assert query(url, "select * from results") == rows.select(columns).rows()


def test_rows_are_updated_by_key_and_the_last_of_an_epoch_counts(anywhere: str) -> None:
    sink = opened(anywhere, key=["page"])
    sink.deliver(1, pl.DataFrame({"page": ["a", "b", "a"], "n": [1, 2, 3], "mean": [0.0, 0.5, 1.5]}), {"in": 1})
    again = opened(anywhere, key="page")
    again.deliver(1, ROWS, {"in": 1})
    assert found(anywhere, "select page, n, mean from results order by page") == [("a", 3, 1.5), ("b", 2, 0.5)]
    again.deliver(
        2, pl.DataFrame({"page": ["c", "a"], "n": [4, 5], "mean": [None, None]}, schema=ROWS.schema), {"in": 2}
    )
    assert found(anywhere, "select page, n, mean from results order by page") == [
        ("a", 5, None), ("b", 2, 0.5), ("c", 4, None),
    ]  # fmt: skip


def test_rows_that_are_all_key_are_there_once(anywhere: str) -> None:
    sink = opened(anywhere, key=ROWS.columns[:2], rows=ROWS.select("page", "n"))
    for epoch in (1, 2):
        sink.deliver(epoch, ROWS.select("page", "n"), {})
    assert found(anywhere, "select page, n from results order by n") == [("a", 1), ("b", 2)]


def test_a_key_that_cannot_be_one_is_refused(anywhere: str) -> None:
    opened(anywhere)
    with pytest.raises(DeclarationError, match=r"no unique index on \(page\)(.|\n)*CREATE UNIQUE INDEX"):
        opened(anywhere, key="page")
    with sa.create_engine(anywhere).begin() as connection:
        connection.execute(sa.text("create unique index one on results (n, page)"))
    opened(anywhere, key=["page", "n"])
    with pytest.raises(DeclarationError, match="no column 'day', which is part of the key"):
        opened(anywhere, key="day")


def test_names_need_not_be_simple(anywhere: str) -> None:
    rows = pl.DataFrame({"Page": ["a"], 'a "b"': [1], "select": [2]})
    sink = opened(anywhere, rows, table="My results", key="Page")
    for epoch in (1, 2):
        sink.deliver(epoch, rows, {})
    assert found(anywhere, 'select * from "My results"') == rows.rows()


def test_an_epoch_that_comes_again_is_written_once(url: str) -> None:
    opened(url).deliver(1, ROWS, {"in": {"row": 2}})
    again = opened(url)  # as after a crash between the database's commit and ours
    again.check(0)
    again.deliver(1, ROWS, {"in": {"row": 2}})
    again.deliver(2, ROWS[:1], {"in": {"row": 3}})
    assert query(url, "select count(*) from results") == [(3,)]


def test_hosts_that_deliver_the_same_epochs_write_each_once(url: str) -> None:
    hosts = [opened(url, key="page") for _ in range(2)] + [opened(url, key="page")]
    for epoch in range(1, 6):
        rows = pl.DataFrame({"page": [f"{epoch}-{n}" for n in range(100)], "n": range(100), "mean": [0.5] * 100})
        with ThreadPoolExecutor(3) as pool:
            list(pool.map(lambda sink, e=epoch, r=rows: sink.deliver(e, r, {"in": e}), hosts))  # type: ignore[misc]
    assert query(url, "select count(*) from results") == [(500,)]


VICTIM = """
import os, signal, sys
import test_database_postgresql as it
from holdfast.connect.sinks.table_writer import _PostgresWriter
url, where = sys.argv[1:]
sink = it.opened(url)
sink.deliver(1, it.ROWS, {"in": 1})
real = getattr(_PostgresWriter, "_copy")
def copy(self, *args):
    real(self, *args)
    os.kill(os.getpid(), signal.SIGKILL)
if where == "before":
    _PostgresWriter._copy = copy
sink.deliver(2, it.ROWS, {"in": 2})
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("where", ["before", pytest.param("behind", marks=pytest.mark.long)])
def test_a_driver_that_is_killed_around_the_databases_commit_is_followed_by_one_that_sees_it(
    url: str, where: str
) -> None:
    here = Path(__file__).parent
    path = os.pathsep.join([str(here), str(here.parent), *filter(None, [os.environ.get("PYTHONPATH")])])
    run = [sys.executable, "-c", VICTIM, url, where]
    died = subprocess.run(run, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True)
    assert died.returncode == -signal.SIGKILL, died.stderr
    next_one = opened(url)
    assert next_one.delivered() == (1 if where == "before" else 2)
    next_one.deliver(2, ROWS, {"in": 2})
    assert query(url, "select count(*) from results") == [(4,)]
