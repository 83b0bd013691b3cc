"""Every source of Holdfast passes the suite that a user's own can."""

from __future__ import annotations

import contextlib
import io
import itertools
import json
import os
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import paho.mqtt.client as paho
import polars as pl
import psycopg
import pytest
import sqlalchemy as sa
from buckets import TestBucket
from deltalake import write_deltalake
from paho.mqtt.enums import CallbackAPIVersion
from pyiceberg.catalog import load_catalog

import holdfast as hf
from holdfast.connect.duckdb_file import opened_duckdb
from holdfast.connect.source_need import SourceNeed
from holdfast.connect.sources import iceberg_source
from holdfast.connect.sources.received import ReceivedSource
from holdfast.ingress import IngressServer
from holdfast.meta import MetaStore
from holdfast.pstream.appender import open_appender
from holdfast.pstream.link import StreamSource
from holdfast.pstream.pstream import PStream
from holdfast.testkit.quick_store import quick_store
from holdfast_lab.chaos.database_server import DatabaseServer
from holdfast_lab.chaos.kafka_server import KafkaServer
from holdfast_lab.chaos.loopback_proxy import LoopbackProxy
from kafka_broker import make_topic, send
from mqtt_broker import MqttBroker, mosquitto
from postgres import fresh_url

ROWS = pl.DataFrame({"n": range(60), "text": [f"row {n}" for n in range(60)]})
LONG = bool(os.environ.get("HOLDFAST_FUZZ"))
CRASHES = 1_000 if LONG else 3


def part(first: int, last: int) -> pl.DataFrame:
    return pl.DataFrame({"n": range(first, last), "text": [f"row {n}" for n in range(first, last)]})


class Growing:
    """Input that grows: `write` is given ten more rows at a time."""

    def __init__(self, write: Callable[[pl.DataFrame], object]) -> None:
        self._write, self._next = write, itertools.count(60, 10)
        for first in (0, 20, 40):
            write(part(first, first + 20))

    def __call__(self) -> pl.DataFrame:
        first = next(self._next)
        self._write(part(first, first + 10))
        return part(first, first + 10)


def test_memory() -> None:
    frames = [ROWS[:30], ROWS[:0], ROWS[30:]]
    hf.testing.check_source(lambda: hf.source.memory(frames), ROWS, crashes=CRASHES)


def test_generator() -> None:
    make = lambda: hf.source.generator(part, ROWS.schema, rows=60, chunk_rows=7)  # noqa: E731
    hf.testing.check_source(make, ROWS, crashes=CRASHES)


def test_replay(tmp_path: Path) -> None:
    """Once and a half. It is the reader of a chunk that adds to its times."""
    expected = pl.concat([ROWS, ROWS[:30]])
    make = lambda: hf.source.replay(ROWS, "n", rows=90, period=60, chunk_rows=7, directory=tmp_path)  # noqa: E731
    hf.testing.check_source(make, expected, crashes=CRASHES)


@pytest.mark.parametrize(
    ("format", "order"),
    [
        ("parquet", "arrival"),
        ("ndjson", "file"),
        pytest.param("csv", "arrival", marks=pytest.mark.long),
        pytest.param("parquet", "file", marks=pytest.mark.long),
        pytest.param("ndjson", "arrival", marks=pytest.mark.long),
        pytest.param("csv", "file", marks=pytest.mark.long),
    ],
)
def test_files(format: str, order: str, tmp_path: Path) -> None:
    numbers = itertools.count()

    def write(frame: pl.DataFrame) -> None:
        draft = tmp_path / "draft"
        getattr(frame, f"write_{format}")(draft)
        draft.rename(tmp_path / f"{next(numbers):04d}.{format}")

    feed = Growing(write)
    make = lambda: hf.source.files(  # noqa: E731
        tmp_path / f"*.{format}", format=format, schema=ROWS.schema, grow=True, settle=0, order=order
    )
    hf.testing.check_source(make, ROWS, feed=feed, crashes=CRASHES)


@pytest.mark.parametrize("format", ["ndjson", "csv"])
def test_bad_rows_of_files(format: str, tmp_path: Path) -> None:
    lines = [json.dumps({"n": n}) if format == "ndjson" else str(n) for n in range(30)]
    bad = {3: "nonsense", 17: "{", 18: '"x"'}
    texts = [bad.get(number, line) for number, line in enumerate(lines)]
    (tmp_path / f"a.{format}").write_text("\n".join(texts if format == "ndjson" else ["n", *texts]) + "\n")
    good = [{"n": n} for n in range(30) if n not in bad]
    make = lambda: hf.source.files(  # noqa: E731
        tmp_path / f"a.{format}", format=format, schema={"n": pl.Int64}, bad_rows="dead_letter"
    )
    hf.testing.check_source(make, good, bad=3, crashes=2)


@pytest.mark.long
@pytest.mark.parametrize("format", ["parquet", "ndjson", "csv"])
def test_objects(format: str, bucket: TestBucket) -> None:
    """In a bucket, on a server that hangs and is slow."""
    numbers = itertools.count()

    def write(frame: pl.DataFrame) -> None:
        made = io.BytesIO()
        getattr(frame, f"write_{format}")(made)
        bucket.put(f"in/{next(numbers):04d}.{format}", made.getvalue())

    feed = Growing(write)
    with LoopbackProxy(bucket.server.port) as proxy:
        options = {**bucket.options, "endpoint": f"http://127.0.0.1:{proxy.port}", "timeout": 2, "retry_timeout": 3}
        make = lambda: hf.source.files(  # noqa: E731
            bucket.url(f"in/*.{format}"), schema=ROWS.schema, grow=True, storage_options=options
        )
        hf.testing.check_source(make, ROWS, feed=feed, hang=proxy.hanging, slow=proxy.slowed, crashes=40)


@pytest.mark.long
def test_bad_rows_of_objects(bucket: TestBucket) -> None:
    bad = {3: "nonsense", 17: "{", 18: '"x"'}
    lines = [bad.get(n, json.dumps({"n": n})) for n in range(30)]
    bucket.put("in/a.ndjson", "\n".join(lines).encode())
    make = lambda: hf.source.files(  # noqa: E731
        bucket.url("in/a.ndjson"), schema={"n": pl.Int64}, bad_rows="dead_letter", storage_options=bucket.options
    )
    hf.testing.check_source(make, [{"n": n} for n in range(30) if n not in bad], bad=3, crashes=2)


@pytest.mark.long
def test_duckdb(tmp_path: Path) -> None:
    path = tmp_path / "in.duckdb"
    with opened_duckdb(str(path), write=True) as connection:
        connection.execute("CREATE TABLE orders (n BIGINT PRIMARY KEY, text VARCHAR)")

    def write(frame: pl.DataFrame) -> None:
        with opened_duckdb(str(path), write=True) as connection:
            connection.executemany("INSERT INTO orders VALUES (?, ?)", frame.rows())

    feed = Growing(write)
    make = lambda: hf.source.database(f"duckdb:///{path}", "orders", "n", settle=0)  # noqa: E731
    hf.testing.check_source(make, ROWS, feed=feed, crashes=40)


@pytest.mark.parametrize("system", ["sqlite", pytest.param("postgresql", marks=pytest.mark.long)])
def test_database(system: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    server: DatabaseServer | None = request.getfixturevalue("postgresql") if system == "postgresql" else None
    url = f"sqlite:///{tmp_path / 'in.db'}" if server is None else fresh_url(server)
    engine = sa.create_engine(url)
    with engine.begin() as connection:
        connection.execute(sa.text("create table orders (n bigint primary key, text varchar(20))"))

    def write(frame: pl.DataFrame) -> None:
        with engine.begin() as connection:
            connection.execute(sa.text("insert into orders values (:n, :text)"), frame.to_dicts())

    feed = Growing(write)
    make = lambda: hf.source.database(url, "orders", "n", settle=0)  # noqa: E731
    if server is None:
        hf.testing.check_source(make, ROWS, feed=feed, crashes=CRASHES)
    else:
        with LoopbackProxy(server.port) as proxy:
            url = f"{url.replace(str(server.port), str(proxy.port))}?timeout=3"
            hf.testing.check_source(make, ROWS, feed=feed, hang=proxy.hanging, slow=proxy.slowed, crashes=100)
    engine.dispose()


def test_pstream(tmp_path: Path) -> None:
    """What clients push, and what one pipeline writes for another: whole batches, which are not cut."""
    with quick_store() as store:
        meta = store.meta()
        appender = open_appender(meta, tmp_path, "pushed", ROWS.schema, event_time=None, lateness=0, budget=None)
        feed = Growing(lambda frame: [appender.append(frame[low : low + 5]) for low in range(0, frame.height, 5)])

        def make() -> hf.source.Source:
            return StreamSource("pushed", ROWS.schema).bound(
                PStream(meta, tmp_path, "pushed"), tmp_path, "reader", None
            )

        hf.testing.check_source(make, ROWS, feed=feed, crashes=0)
        appender.close()
        meta.close()


def test_delta(tmp_path: Path) -> None:
    table = tmp_path / "table"
    feed = Growing(lambda frame: write_deltalake(str(table), frame.to_arrow(), mode="append"))
    hf.testing.check_source(lambda: hf.source.delta(table), ROWS, feed=feed, ordered=False, crashes=CRASHES)


@pytest.mark.long
def test_iceberg(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(iceberg_source, "_LOOK_SECONDS", 0.0)
    settings = {"type": "sql", "uri": f"sqlite:///{tmp_path / 'c.db'}", "warehouse": f"file://{tmp_path / 'w'}"}
    catalog = load_catalog("default", **settings)
    catalog.create_namespace("db")
    arrow = ROWS.to_arrow(compat_level=pl.CompatLevel.oldest())
    table = catalog.create_table("db.t", schema=arrow.schema)
    feed = Growing(lambda frame: table.append(frame.to_arrow(compat_level=pl.CompatLevel.oldest())))
    hf.testing.check_source(
        lambda: hf.source.iceberg("db.t", settings), ROWS, feed=feed, ordered=False, crashes=CRASHES
    )


@pytest.mark.long
@pytest.mark.parametrize("partitions", [1, 3])
def test_kafka(kafka_broker: KafkaServer, partitions: int) -> None:
    topic = make_topic(kafka_broker, partitions)
    numbers = itertools.count()

    def write(frame: pl.DataFrame) -> None:
        texts = [json.dumps(row).encode() for row in frame.to_dicts()]
        send(kafka_broker, topic, texts, next(numbers) % partitions)

    feed = Growing(write)
    make = lambda: hf.source.kafka(kafka_broker.address, topic, ROWS.schema)  # noqa: E731
    hf.testing.check_source(
        make, ROWS, feed=feed, ordered=partitions == 1, crashes=100,
        hang=kafka_broker.hanging, slow=kafka_broker.slowed, deadline=180,
    )  # fmt: skip


class Received:
    """What a receiver takes, as a run reads it: from its p-stream, the columns of `ROWS`.

    Who publishes does so while the receiver cannot reach the server, and waits until all rows are durable: so nothing
    may be lost in between. Crashes of runs are those of any p-stream, and those of receivers have tests of their own.
    """

    def __init__(self, place: Path, meta: MetaStore, source: ReceivedSource) -> None:
        self._place, self._meta, self._source = place, meta, source
        self._rows = 0
        self._appender = open_appender(
            meta, place, "received", source.schema, event_time=None, lateness=0, budget=source.budget
        )
        self.server = IngressServer({"events": (source, self._appender)}, grace=10.0)

    def make(self) -> hf.source.Source:
        stream = StreamSource("received", self._source.schema)
        bound = stream.bound(PStream(self._meta, self._place, "received"), self._place, "reader", None)
        return bound.narrowed(SourceNeed(tuple(ROWS.columns)))

    def taken(self, rows: int) -> None:
        self._rows += rows
        deadline = time.monotonic() + 120
        while self.server.totals()["events"].rows < self._rows:
            self.server.check()
            assert time.monotonic() < deadline, self.server.totals()
            time.sleep(0.02)

    def check(self, write: Callable[[pl.DataFrame], object], proxy: LoopbackProxy) -> None:
        def published(frame: pl.DataFrame) -> None:
            with proxy.hanging():
                write(frame)
            self.taken(frame.height)

        try:
            with self.server:
                hf.testing.check_source(
                    self.make, ROWS, feed=Growing(published), hang=proxy.hanging, slow=proxy.slowed, crashes=0
                )
        finally:
            self._appender.close()


def test_no_source_is_left_out() -> None:
    text = Path(__file__).read_text()
    received = {"push", "pstream"}  # both are read as p-streams: see test_pstream
    sources = {name for name in hf.source.__all__ if name.islower()} - received
    assert {name for name in sources if f"hf.source.{name}(" not in text} == set()


@pytest.mark.long
def test_mqtt(tmp_path: Path) -> None:
    if mosquitto() is None:
        pytest.skip("there is no mosquitto, and no package of it")
    broker = MqttBroker(tmp_path)
    broker.start()
    client = paho.Client(CallbackAPIVersion.VERSION2)
    client.connect("127.0.0.1", broker.port)
    client.loop_start()

    def write(frame: pl.DataFrame) -> None:
        for sent in [client.publish("rows", json.dumps(row), qos=1) for row in frame.to_dicts()]:
            sent.wait_for_publish(30)

    try:
        with quick_store() as store, closing(store.meta()) as meta, LoopbackProxy(broker.port) as proxy:
            source = hf.source.mqtt(f"mqtt://127.0.0.1:{proxy.port}", "rows", ROWS.schema, client="suite")
            Received(tmp_path, meta, source).check(write, proxy)
    finally:
        client.disconnect()
        client.loop_stop()
        broker.kill()


@pytest.mark.long
def test_postgres_changes(postgresql: DatabaseServer, tmp_path: Path) -> None:
    url = fresh_url(postgresql)
    user = sa.make_url(url).username
    with psycopg.connect(postgresql.url, autocommit=True) as admin, psycopg.connect(url, autocommit=True) as own:
        admin.execute(f"ALTER ROLE {user} REPLICATION")
        admin.execute(f"GRANT CREATE ON DATABASE postgres TO {user}")
        own.execute("CREATE TABLE items (n bigint primary key, text text)")

        def write(frame: pl.DataFrame) -> None:
            with own.transaction(), own.cursor() as cursor:
                cursor.executemany("INSERT INTO items VALUES (%s, %s)", frame.rows())

        with quick_store() as store, closing(store.meta()) as meta, LoopbackProxy(postgresql.port) as proxy:
            there = url.replace(str(postgresql.port), str(proxy.port))
            source = hf.source.postgres_changes(there, "items", key="n", slot=f"suite_{user}")
            Received(tmp_path, meta, source).check(write, proxy)
        drop = f"SELECT pg_drop_replication_slot('suite_{user}')"
        for _ in range(100):
            with contextlib.suppress(psycopg.errors.ObjectInUse):
                admin.execute(drop)
                break
            time.sleep(0.1)
