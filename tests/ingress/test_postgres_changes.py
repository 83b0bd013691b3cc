"""Changes of a PostgreSQL table: replayed, they give the table, whoever was killed in between, and each comes once."""

from __future__ import annotations

import contextlib
import itertools
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import polars as pl
import psycopg
import pytest
from receiving import stored

from holdfast.connect.sources.postgres_changes import ChangesSource, postgres_changes
from holdfast.errors import DeclarationError, InputError, ListenError
from holdfast.ingress import IngressServer, change_progress, change_stream
from holdfast.ingress.replication_connection import ReplicationConnection
from holdfast.meta import MetaStore
from holdfast.pstream.appender import open_appender
from holdfast_lab.chaos.database_server import DatabaseServer
from holdfast_lab.chaos.loopback_proxy import LoopbackProxy
from postgres import fresh_url

PATIENCE = 40.0
SCHEMA = {"id": pl.Int64, "name": pl.String, "size": pl.Float64}
_NUMBERS = itertools.count(1)


class Table:
    """A table `items` in a schema of its own, and a source of its changes."""

    def __init__(self, server: DatabaseServer, columns: str = "id bigint primary key, name text, size float8") -> None:
        self.url = fresh_url(server)
        self.slot = f"slot_{next(_NUMBERS)}"
        user = self.url.partition("//")[2].partition("@")[0]
        self._server = server
        with psycopg.connect(server.url, autocommit=True) as admin:
            admin.execute(f"ALTER ROLE {user} REPLICATION")
            admin.execute(f"GRANT CREATE ON DATABASE postgres TO {user}")
        self.connection = psycopg.connect(self.url, autocommit=True)
        self.connection.execute(f"CREATE TABLE items ({columns})")

    def source(self, **settings: Any) -> ChangesSource:
        return postgres_changes(self.url, "items", **{"key": "id", "slot": self.slot, "schema": SCHEMA, **settings})

    def run(self, *commands: str) -> None:
        """In one transaction."""
        with self.connection.transaction():
            for command in commands:
                self.connection.execute(command)

    def confirmed(self) -> int:
        [(lsn,)] = self.connection.execute(
            "SELECT confirmed_flush_lsn - '0/0' FROM pg_replication_slots WHERE slot_name = %s", [self.slot]
        )
        return int(lsn)

    def rows(self) -> list[tuple[Any, ...]]:
        return self.connection.execute("SELECT id, name, size FROM items ORDER BY id").fetchall()

    def close(self) -> None:
        self.connection.close()
        with psycopg.connect(self._server.url, autocommit=True) as admin:
            for _ in range(100):
                try:
                    admin.execute(
                        "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name = %s",
                        [self.slot],
                    )
                    return
                except psycopg.errors.ObjectInUse:
                    time.sleep(0.1)


@pytest.fixture
def table(postgresql: DatabaseServer) -> Iterator[Table]:
    made = Table(postgresql)
    yield made
    made.close()


@contextlib.contextmanager
def receiving(place: Path, source: ChangesSource) -> Iterator[IngressServer]:
    with contextlib.closing(MetaStore(place)) as meta:
        appender = open_appender(
            meta, place, "p.events", source.schema, event_time=None, lateness=0, budget=source.budget
        )
        try:
            with IngressServer({"events": (source, appender)}, grace=10.0) as server:
                yield server
        finally:
            appender.close()


def changes(place: Path) -> pl.DataFrame:
    with contextlib.closing(MetaStore(place)) as meta:
        return stored(meta, place)


def until(met: Callable[[], bool], server: IngressServer | None = None) -> None:
    deadline = time.monotonic() + PATIENCE
    while not met():
        if server is not None:
            server.check()
        assert time.monotonic() < deadline
        time.sleep(0.02)


def taken(server: IngressServer, rows: int) -> None:
    until(lambda: server.totals()["events"].rows >= rows, server)


def replayed(frame: pl.DataFrame) -> list[tuple[Any, ...]]:
    """The table that the changes make."""
    found: dict[int, tuple[Any, ...]] = {}
    for row in frame.iter_rows(named=True):
        if row["op"] == "truncate":
            found.clear()
            continue
        if row["op"] in ("update", "delete"):
            del found[row["before_id"]]
        if row["op"] != "delete":
            assert row["id"] not in found
            found[row["id"]] = (row["id"], row["name"], row["size"])
    return [found[number] for number in sorted(found)]


def test_changes_come_with_their_kind_their_key_before_and_their_place(table: Table, tmp_path: Path) -> None:
    table.run("INSERT INTO items VALUES (1, 'one', 1.5), (2, null, 'NaN')")
    with receiving(tmp_path, table.source()) as server:
        taken(server, 2)
        table.run("INSERT INTO items VALUES (3, 'ä\n', -0.1)", "UPDATE items SET name = 'two' WHERE id = 2")
        table.run("UPDATE items SET id = 10 WHERE id = 1")
        table.run("DELETE FROM items WHERE id = 3")
        table.run("TRUNCATE items")
        taken(server, 7)
    found = changes(tmp_path)
    assert found.select("op", "id", "before_id", "name", "seq").rows() == [
        ("snapshot", 1, None, "one", 0),
        ("snapshot", 2, None, None, 1),
        ("insert", 3, None, "ä\n", 0),
        ("update", 2, 2, "two", 1),
        ("update", 10, 1, "one", 0),
        ("delete", 3, 3, None, 0),
        ("truncate", None, None, None, 0),
    ]
    assert found["size"].to_list()[:3] == pytest.approx([1.5, float("nan"), -0.1], nan_ok=True)
    assert found["lsn"].is_sorted()
    assert found["lsn"].n_unique() == 5
    assert found["committed_at"].is_sorted()
    assert found["unchanged"].is_null().all()
    assert replayed(found) == []


def test_what_happens_while_nobody_reads_comes_later_and_the_slot_is_told_what_is_durable(
    table: Table, tmp_path: Path
) -> None:
    table.run("INSERT INTO items SELECT n, 'n' || n, n FROM generate_series(1, 100) n")
    with receiving(tmp_path, table.source()) as server:
        taken(server, 100)
        until(lambda: server.totals()["events"].batches >= 2, server)
    table.run("UPDATE items SET size = -size")
    table.run("DELETE FROM items WHERE id % 2 = 0")
    before = table.confirmed()
    with receiving(tmp_path, table.source()) as server:
        taken(server, 150)
        until(lambda: table.confirmed() > before, server)
    with receiving(tmp_path, table.source()) as server:
        table.run("INSERT INTO items VALUES (1000, 'last', 0)")
        taken(server, 1)
    assert changes(tmp_path).height == 100 + 150 + 1
    assert replayed(changes(tmp_path)) == table.rows()


def test_without_a_snapshot_only_later_changes_come(table: Table, tmp_path: Path) -> None:
    table.run("INSERT INTO items VALUES (1, 'one', 1)")
    with receiving(tmp_path, table.source(snapshot=False)) as server:
        until(lambda: server.totals()["events"].batches >= 2, server)
        table.run("INSERT INTO items VALUES (2, 'two', 2)")
        taken(server, 1)
    assert changes(tmp_path).select("op", "id").rows() == [("insert", 2)]


def test_a_confirmation_that_was_lost_gives_no_change_twice(
    table: Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with receiving(tmp_path, table.source()) as server:
        until(lambda: server.totals()["events"].batches >= 2, server)
        # From here on the slot stays where it is.
        monkeypatch.setattr(ReplicationConnection, "confirm", lambda self, lsn, *, answer=False: None)
        for number in range(20):
            table.run(
                f"INSERT INTO items VALUES ({number}, 'n', 0)", f"INSERT INTO items VALUES ({-1 - number}, 'n', 0)"
            )
        taken(server, 40)
    monkeypatch.undo()
    with receiving(tmp_path, table.source()) as server:
        table.run("DELETE FROM items WHERE id = 5")
        taken(server, 1)
    assert changes(tmp_path).height == 41
    assert replayed(changes(tmp_path)) == table.rows()


def test_a_server_that_has_fallen_silent_is_connected_to_again(
    table: Table,
    postgresql: DatabaseServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Its connections are open, and nothing comes of them, for longer than anybody should wait."""
    monkeypatch.setattr(change_stream, "STATUS_SECONDS", 0.2)
    monkeypatch.setattr(change_stream, "_SILENT_SECONDS", 2.0)
    opened: list[str] = []
    open_one = ReplicationConnection.__init__

    def counted(self: ReplicationConnection, url: str, answer_seconds: float) -> None:
        open_one(self, url, answer_seconds)
        opened.append(url)

    monkeypatch.setattr(ReplicationConnection, "__init__", counted)
    with LoopbackProxy(postgresql.port) as proxy:
        table.url = table.url.replace(str(postgresql.port), str(proxy.port))
        with receiving(tmp_path, table.source()) as server:
            table.run("INSERT INTO items VALUES (1, 'one', 1)")
            taken(server, 1)
            table.run("INSERT INTO items VALUES (2, 'two', 2)")
            taken(server, 2)  # it came behind the snapshot: the slot is read
            before = len(opened)
            proxy.cut()
            table.run("INSERT INTO items VALUES (3, 'three', 3)")
            until(lambda: "nothing has arrived" in caplog.text, server)
            proxy.heal()
            until(lambda: len(opened) > before, server)
            taken(server, 3)
    assert replayed(changes(tmp_path)) == table.rows()


def test_a_command_that_is_never_answered_closes_the_connection(table: Table, postgresql: DatabaseServer) -> None:
    with LoopbackProxy(postgresql.port) as proxy:
        table.url = table.url.replace(str(postgresql.port), str(proxy.port)) + "?timeout=0.5"
        source = table.source()
        log = ReplicationConnection(source.url, source.answer_seconds)
        assert log.execute("IDENTIFY_SYSTEM")[0]["dbname"] == "postgres"
        with proxy.hanging(), pytest.raises(psycopg.OperationalError, match=r"no answer within 0\.5 seconds"):
            log.execute("IDENTIFY_SYSTEM")
        log.close()


@pytest.mark.parametrize("shared", [False, True], ids=["one table", "two tables"])
def test_a_large_transaction_is_written_in_pieces_and_goes_on_in_its_middle(
    table: Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shared: bool
) -> None:
    source = table.source()
    if shared:
        both = f"both_{table.slot}"
        table.run("CREATE TABLE others (id bigint primary key)", f"CREATE PUBLICATION {both} FOR TABLE items, others")
        source = table.source(publication=both)
    monkeypatch.setattr(change_progress, "_MOST_ROWS", 100)
    written: list[int] = []
    write, confirm = change_progress.TakenChanges.write, ReplicationConnection.confirm

    def broken(self: Any, frame: pl.DataFrame, count: Any) -> bool:
        if len(written) == 5:
            raise InputError("pulled", cure="plug")
        written.append(frame.height)
        return write(self, frame, count)

    with receiving(tmp_path, source) as server:
        until(lambda: server.totals()["events"].batches >= 2, server)
        monkeypatch.setattr(change_progress.TakenChanges, "write", broken)
        if shared:  # the slot stays where it is, so that it sends the transaction of the other table again, too
            monkeypatch.setattr(ReplicationConnection, "confirm", lambda self, lsn, *, answer=False: None)
        table.run("INSERT INTO items VALUES (-1, 'small', 0)")
        if shared:
            table.run("INSERT INTO others VALUES (1)")
        table.run(
            "INSERT INTO items SELECT n, 'n' || n, n FROM generate_series(1, 1000) n", "DELETE FROM items WHERE id = 7"
        )
        with pytest.raises(InputError, match="pulled"):
            until(lambda: False, server)
    monkeypatch.setattr(change_progress.TakenChanges, "write", write)
    monkeypatch.setattr(ReplicationConnection, "confirm", confirm)
    assert 300 <= changes(tmp_path).height < 1000
    with receiving(tmp_path, source) as server:
        until(lambda: changes(tmp_path).height == 1002, server)
    assert changes(tmp_path)["seq"].to_list() == [0, *range(1001)]
    assert replayed(changes(tmp_path)) == table.rows()


def test_an_interrupted_snapshot_begins_again_behind_a_truncate(
    table: Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table.run("INSERT INTO items SELECT n, 'n' || n, n FROM generate_series(1, 1000) n")
    monkeypatch.setattr(change_progress, "_MOST_ROWS", 300)
    write = change_progress.TakenChanges.write_whole

    def pulled(self: Any, frame: pl.DataFrame, end: int) -> bool:
        raise InputError("pulled", cure="plug")

    monkeypatch.setattr(change_progress.TakenChanges, "write_whole", pulled)
    with receiving(tmp_path, table.source()) as server, pytest.raises(InputError, match="pulled"):
        until(lambda: False, server)
    monkeypatch.setattr(change_progress.TakenChanges, "write_whole", write)
    table.run("DELETE FROM items WHERE id < 500")
    with receiving(tmp_path, table.source()) as server:
        taken(server, 502)
    assert changes(tmp_path)["op"].to_list() == ["snapshot"] * 900 + ["truncate"] + ["snapshot"] * 501
    assert replayed(changes(tmp_path)) == table.rows()


def test_all_types_and_large_values_that_an_update_leaves_as_they_are(
    postgresql: DatabaseServer, tmp_path: Path
) -> None:
    table = Table(
        postgresql,
        "id int primary key, flag bool, small int2, ratio float4, money numeric(12, 2), day date, at timestamp,"
        " moment timestamptz, clock time, raw bytea, doc jsonb, tags text[], long text",
    )
    schema = {
        "id": pl.Int32, "flag": pl.Boolean, "small": pl.Int16, "ratio": pl.Float32, "money": pl.Decimal(12, 2),
        "day": pl.Date, "at": pl.Datetime("us"), "moment": pl.Datetime("us", "UTC"), "clock": pl.Time,
        "raw": pl.Binary, "doc": pl.String, "tags": pl.String, "long": pl.String,
    }  # fmt: skip
    insert = (
        "INSERT INTO items VALUES ({}, true, -3, 0.5, 12345.60, '2024-02-29', '2024-02-29 12:34:56.789',"
        " '2024-02-29 12:34:56+02', '23:59:59.5', '\\xdeadbeef', '{{\"a\": [1]}}', array['x', 'y z'],"
        " (SELECT string_agg(md5(n::text), '') FROM generate_series(1, 500) n))"
    )
    try:
        table.run(insert.format(1))
        table.run("INSERT INTO items (id) VALUES (2)")
        with receiving(tmp_path, table.source(schema=schema)) as server:
            taken(server, 2)
            table.run(insert.format(3))
            table.run("UPDATE items SET flag = false WHERE id = 3")
            table.run("ALTER TABLE items REPLICA IDENTITY FULL")
            table.run("UPDATE items SET flag = true WHERE id = 3")
            taken(server, 5)
        found = changes(tmp_path).select(*schema, "unchanged")
        expected = table.connection.execute(
            "SELECT id, flag, small, ratio, money, day, at, moment, clock, raw, doc::text, tags::text, long FROM items"
            " ORDER BY id"
        ).fetchall()
        rows = found.drop("unchanged").rows()
        assert rows[:3] == expected
        assert rows[4] == expected[2]
        assert found["unchanged"].to_list() == [None, None, None, ["long"], None]
        assert rows[3][-1] is None
    finally:
        table.close()


def test_columns_that_are_added_are_left_out_and_one_that_is_dropped_is_told(table: Table, tmp_path: Path) -> None:
    with receiving(tmp_path, table.source()) as server:
        until(lambda: server.totals()["events"].batches >= 2, server)
        table.run("ALTER TABLE items ADD more int", "INSERT INTO items VALUES (1, 'one', 1, 5)")
        taken(server, 1)
        table.run("ALTER TABLE items RENAME size TO extent")
        table.run("INSERT INTO items VALUES (2, 'two', 2, 5)")
        with pytest.raises(InputError, match="no longer has the column 'size': it has id, name, extent, more") as error:
            until(lambda: False, server)
    assert error.value.operator == "events"
    assert "pg_drop_replication_slot" in error.value.cure
    table.run("ALTER TABLE items RENAME extent TO size")


def test_what_cannot_work_is_told_before_anything_is_made(
    table: Table, postgresql: DatabaseServer, tmp_path: Path
) -> None:
    def told(error: type[Exception], match: str, **settings: Any) -> None:
        with pytest.raises(error, match=match), receiving(tmp_path, table.source(**settings)) as server:
            until(lambda: False, server)

    table.run("CREATE TABLE plain (id bigint, name text)")
    source = postgres_changes(table.url, "plain", key="id", slot=table.slot)
    with pytest.raises(InputError, match="do not say which row"), receiving(tmp_path, source):
        pass
    told(InputError, "do not say which row.*would say id, but the key is id, name", key=["id", "name"])
    table.run("CREATE PUBLICATION other FOR TABLE plain")
    told(InputError, "does not have table 'items'", publication="other")
    with psycopg.connect(postgresql.url, autocommit=True) as admin:
        admin.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", [table.slot])
    told(InputError, "was not created by this pipeline")
    source = postgres_changes("postgresql://me@127.0.0.1:1/x", "items", key="id", slot="s", schema=SCHEMA)
    with pytest.raises(ListenError, match=r"the database at 127\.0\.0\.1:1"), receiving(tmp_path, source):
        pass


def test_a_slot_that_is_gone_is_told(table: Table, tmp_path: Path) -> None:
    with receiving(tmp_path, table.source()) as server:
        until(lambda: server.totals()["events"].batches >= 2, server)
    until(lambda: table.connection.execute("SELECT NOT active FROM pg_replication_slots WHERE slot_name = %s",
                                           [table.slot]).fetchone() == (True,))  # fmt: skip
    table.run(f"SELECT pg_drop_replication_slot('{table.slot}')")
    with receiving(tmp_path, table.source()) as server, pytest.raises(InputError, match="is gone"):
        until(lambda: False, server)


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ({"url": "sqlite:///x.db"}, "one of sqlite"),
        ({"key": "other"}, "is not a column"),
        ({"key": []}, "there is no key"),
        ({"slot": "No-Slot"}, "slot="),
        ({"url": "postgresql://me@host/x?timeout=soon"}, "timeout=soon"),
        ({"schema": {"id": pl.Int64, "op": pl.String}}, "has a column 'op'"),
        ({"schema": {"id": pl.Int64, "tags": pl.List(pl.String)}}, "cannot be read from PostgreSQL"),
    ],
)
def test_settings_that_cannot_work_are_told_at_once(settings: dict[str, Any], match: str) -> None:
    given: dict[str, Any] = {"key": "id", "slot": "s", "schema": SCHEMA, **settings}
    with pytest.raises(DeclarationError, match=match) as error:
        postgres_changes(given.pop("url", "postgresql://me@host/x"), "items", **given)
    assert error.value.cure


PIPELINE = """
import polars as pl
import holdfast as hf

pipeline = hf.Pipeline("p")
source = hf.source.postgres_changes("{url}", "items", key="id", slot="{slot}")
pipeline.source("events", source).sink("out", hf.sink.parquet("out"))
"""


def ingress(place: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", "from holdfast.cli import main; main()", "ingress", "pipeline.py"]
    return subprocess.Popen(
        [*command, "--store", "store"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=place
    )


@pytest.mark.long  # five processes are started
def test_killed_in_the_middle_the_replay_of_the_changes_is_the_table(tmp_path: Path) -> None:
    """kill -9 of the receiver, again and again, and of the database, while the table is changed."""
    with DatabaseServer(logical=True) as server:
        table = Table(server)
        table.run("INSERT INTO items SELECT n, 'n' || n, n FROM generate_series(1, 20000) n")
        (tmp_path / "pipeline.py").write_text(PIPELINE.format(url=table.url, slot=table.slot))
        chance = random.Random(7)
        process = ingress(tmp_path)
        try:
            ids = itertools.count(100_000)
            store = tmp_path / "store"
            known = 0
            for round in range(4):
                until(lambda known=known: _height(store) > known)  # it is in the middle of it
                known = _height(store)
                for _ in range(60):
                    some, first = chance.randrange(1, 20_000), 50 * next(ids)
                    table.run(
                        f"INSERT INTO items SELECT n, 'new', 0 FROM generate_series({first}, {first + 49}) n",
                        f"DELETE FROM items WHERE id BETWEEN {some} AND {some + 20}",
                        f"UPDATE items SET size = size + 1 WHERE id % 97 = {chance.randrange(97)}",
                        f"UPDATE items SET id = -id WHERE id BETWEEN {some + 30} AND {some + 40} AND id > 0",
                    )
                    time.sleep(0.01)
                process.kill()
                process.communicate()
                if round == 2:
                    table.connection.close()
                    server.kill()
                    server.start()
                    table.connection = psycopg.connect(table.url, autocommit=True)
                process = ingress(tmp_path)
            expected = table.rows()
            until(lambda: process.poll() is None and _is(store, expected))
            process.send_signal(signal.SIGTERM)
            said, _ = process.communicate(timeout=30)
            assert process.returncode == 0, said
        finally:
            process.kill()
            process.communicate()
            table.close()
        found = changes(tmp_path / "store")
        assert found.filter(pl.col("op") != "snapshot").select("lsn", "seq").is_unique().all()


def _height(store: Path) -> int:
    time.sleep(0.2)
    return changes(store).height if (store / "meta.db").exists() else 0


def _is(store: Path, expected: list[tuple[Any, ...]]) -> bool:
    time.sleep(0.3)
    return replayed(changes(store)) == expected
