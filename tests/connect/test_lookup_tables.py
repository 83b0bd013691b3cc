"""Tables that are read anew while a pipeline runs: files, Delta tables, queries."""

from __future__ import annotations

import os
import re
import shutil
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import polars as pl
import pytest
import sqlalchemy as sa
from deltalake import write_deltalake

import holdfast as hf
from harness import Cut, CutPace, Noted, options, platform
from holdfast.engine.fragment_run import FragmentRun
from holdfast.engine.loop import Loop
from holdfast.errors import (
    DeclarationError,
    HoldfastError,
    InputError,
    LookupTableError,
    UnknownColumnError,
    WrongTypeError,
)
from holdfast_lab.chaos.database_server import DatabaseServer
from postgres import fresh_url

ONE = pl.DataFrame({"k": [0, 1], "name": ["zero", "one"]})
TWO = pl.DataFrame({"k": [1, 2], "name": ["uno", "due"]})


def put(path: Path, table: pl.DataFrame) -> None:
    """Whole at every moment."""
    draft = path.with_name(f".{path.name}")
    getattr(table, f"write_{path.suffix[1:]}")(draft)
    os.replace(draft, path)


@pytest.mark.parametrize("suffix", ["parquet", "csv", "ndjson"])
def test_files_are_a_table_and_have_a_mark(suffix: str, tmp_path: Path) -> None:
    put(tmp_path / f"a.{suffix}", ONE)
    put(tmp_path / f"b.{suffix}", TWO)
    table = hf.lookup.files(tmp_path / f"*.{suffix}", settle=0)
    assert table.schema == ONE.schema
    assert table.read().rows() == ONE.rows() + TWO.rows()
    before = table.mark()
    assert table.mark() == before
    (tmp_path / f"a.{suffix}").unlink()
    assert table.mark() != before
    assert table.read().rows() == TWO.rows()
    (tmp_path / f"b.{suffix}").unlink()
    with pytest.raises(InputError, match="there is no file"):
        table.mark()


def test_what_is_still_written_to_is_waited_for(tmp_path: Path) -> None:
    put(tmp_path / "a.csv", ONE)
    began = time.monotonic()
    hf.lookup.files(tmp_path / "a.csv", settle="200ms").mark()
    assert time.monotonic() - began > 0.1


def test_a_delta_table_is_read_at_its_last_version(tmp_path: Path) -> None:
    write_deltalake(tmp_path / "t", ONE)
    table = hf.lookup.delta(tmp_path / "t")
    before = table.mark()
    assert sorted(table.read().rows()) == ONE.rows()
    write_deltalake(tmp_path / "t", TWO, mode="overwrite")
    assert table.mark() != before
    assert sorted(table.read().rows()) == TWO.rows()
    other = TWO.select("k", "name", label="name").cast({"name": pl.Categorical})
    write_deltalake(tmp_path / "t", other.select("k", "label"), mode="overwrite", schema_mode="overwrite")
    with pytest.raises(LookupTableError, match=r"column 'name' of the Delta table .* is no longer there"):
        table.read()


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'names.db'}"
    server: DatabaseServer = request.getfixturevalue("postgresql")
    return fresh_url(server)


def store_names(url: str, table: pl.DataFrame) -> None:
    engine = sa.create_engine(url)
    with engine.begin() as connection:
        connection.execute(sa.text("DROP TABLE IF EXISTS names"))
        connection.execute(sa.text("CREATE TABLE names (k BIGINT, name TEXT, at BIGINT)"))
        for number, (k, name) in enumerate(table.rows()):
            values = {"k": k, "name": name, "at": number + time.time_ns()}
            connection.execute(sa.text("INSERT INTO names VALUES (:k, :name, :at)"), values)
    engine.dispose()


def test_the_result_of_a_query_is_a_table(url: str) -> None:
    store_names(url, ONE)
    query = "SELECT k, name FROM names WHERE k >= :least ORDER BY k"
    changed = "SELECT count(*), max(at) FROM names"
    table = hf.lookup.database(url, query, changed=changed, parameters={"least": 1})
    before = table.mark()
    assert table.schema == ONE.schema
    assert table.read().rows() == [(1, "one")]
    assert table.mark() == before
    store_names(url, TWO)
    assert table.mark() != before
    assert table.read().rows() == TWO.rows()
    narrow = hf.lookup.database(
        url, query, every="1 min", parameters={"least": 0}, schema={"k": pl.Int64, "id": pl.Int64}
    )
    assert narrow.mark() is None
    with pytest.raises(LookupTableError, match="has no column 'id'"):
        narrow.read()
    wrong = hf.lookup.database(
        url, query, every="1 min", parameters={"least": 0}, schema={"k": pl.Int64, "name": pl.Int64}
    )
    with pytest.raises(LookupTableError, match="does not fit"):
        wrong.read()


def mistakes(place: Path) -> dict[str, tuple[Callable[[], object], type[HoldfastError], str]]:
    empty = f"sqlite:///{place / 'none.db'}"
    names = pl.DataFrame({"k": ["0"], "name": ["zero"]})
    text = place / "text.parquet"
    put(text, names)
    rows = hf.Pipeline("p").source("in", hf.source.memory([ONE.rename({"name": "other"})]))
    both = hf.Pipeline("q").source("in", hf.source.memory([ONE]))
    return {
        "no files": (lambda: hf.lookup.files(place / "*.csv"), DeclarationError, "there is no file"),
        "no span": (lambda: hf.lookup.files(text, every=0), DeclarationError, "every='5 min'"),
        "no table": (lambda: hf.lookup.delta(place / "t"), DeclarationError, "there is no Delta table"),
        "never": (lambda: hf.lookup.database(empty, "SELECT 1"), DeclarationError, "neither every= nor changed="),
        "bad query": (lambda: hf.lookup.database(empty, "SELECT k FROM no", every="1s"), InputError, "no such table"),
        "no type": (
            lambda: hf.lookup.database(empty, "SELECT NULL AS k", every="1s"), DeclarationError, "give .* a schema"
        ),
        "key type": (
            lambda: rows.join_table(hf.lookup.files(text), on="k"), WrongTypeError, "lookup table with schema"
        ),
        "no key": (lambda: rows.join_table(hf.lookup.files(text), on="other"), UnknownColumnError, "other"),
        "both": (
            lambda: both.join_table(hf.lookup.files(text, schema=ONE.schema), on="k"), DeclarationError, "both sides"
        ),
    }  # fmt: skip


def test_bad_settings_are_answered_at_declaration(tmp_path: Path) -> None:
    for name, (declare, kind, text) in mistakes(tmp_path).items():
        with pytest.raises(kind) as caught:
            declare()
        assert re.search(text, str(caught.value)), name


# while it runs


class Told(Noted):
    def __init__(self) -> None:
        super().__init__([])
        self.notices: list[str] = []

    def notice(self, fragment: str, text: str) -> None:
        self.notices.append(text)


@contextmanager
def running(
    store: Path, table: hf.lookup.Lookup, sink: hf.sink.Sink, before_step: Callable[[Loop], None]
) -> Iterator[Told]:
    """A run with ten rows of the keys 0 and 1, one in each epoch."""
    pipeline = hf.Pipeline("named")
    rows = pl.DataFrame({"n": range(10), "k": [0, 1] * 5})
    named = pipeline.source("in", hf.source.memory([rows])).join_table(table, on="k", how="left", name="names")
    named.sink("out", sink)
    told, clock, cut = Told(), iter(range(0, 10_000_000, 10)), Cut(rows=1)
    FragmentRun(
        pipeline, platform(cut, before_step), options(store, cut, max_epochs=10, latency=30.0),
        observer=told, pace=CutPace(cut), clock=lambda: float(next(clock)),
    ).live()  # fmt: skip
    yield told


def tables(place: Path) -> dict[str, tuple[hf.lookup.Lookup, Callable[[pl.DataFrame], None], Callable[[], None]]]:
    """The table, how to change it, and how to lose it."""
    put(place / "names.parquet", ONE)
    write_deltalake(place / "delta", ONE)
    url = f"sqlite:///{place / 'names.db'}"
    store_names(url, ONE)

    def lose_query() -> None:
        with closing(sqlite3.connect(place / "names.db")) as connection:
            connection.execute("DROP TABLE names")

    return {
        "files": (
            hf.lookup.files(place / "names.parquet", settle=0),
            lambda table: put(place / "names.parquet", table),
            (place / "names.parquet").unlink,
        ),
        "delta": (
            hf.lookup.delta(place / "delta"),
            lambda table: write_deltalake(place / "delta", table, mode="overwrite"),
            lambda: shutil.rmtree(place / "delta"),
        ),
        "query": (
            hf.lookup.database(url, "SELECT k, name FROM names", every="1s"),
            lambda table: store_names(url, table),
            lose_query,
        ),
    }


@pytest.mark.parametrize("kind", ["files", "delta", "query"])
def test_a_change_is_seen_and_a_loss_is_told_while_the_last_version_is_used(kind: str, tmp_path: Path) -> None:
    table, change, lose = tables(tmp_path)[kind]
    done: set[str] = set()

    def between(loop: Loop) -> None:
        if loop.machine.committed == 3 and "change" not in done:
            done.add("change")
            change(TWO)
        if loop.machine.committed == 6 and "lose" not in done:
            done.add("lose")
            lose()

    sink = hf.sink.collect()
    with running(tmp_path / "store", table, sink, between) as told:
        names = dict(sink.frame().select("n", "name").rows())
        assert names == {n: ONE["name"][n % 2] if n < 3 else (None if n % 2 == 0 else "uno") for n in range(10)}
        [text] = [notice for notice in told.notices if "names" in notice]
        assert "operator 'names': its table cannot be read" in text
        assert "Rows are joined with the table as it was at" in text
