"""Every source of Holdfast passes the suite that a user's own can."""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest
import sqlalchemy as sa
from deltalake import write_deltalake
from pyiceberg.catalog import load_catalog

import holdfast as hf
from holdfast.connect.sources import iceberg_source
from holdfast.pstream.appender import open_appender
from holdfast.pstream.link import StreamSource
from holdfast.pstream.pstream import PStream
from holdfast.testkit.quick_store import quick_store
from holdfast_lab.chaos.database_server import DatabaseServer
from holdfast_lab.chaos.kafka_server import KafkaServer
from kafka_broker import make_topic, send
from postgres import fresh_url

ROWS = pl.DataFrame({"n": range(60), "text": [f"row {n}" for n in range(60)]})
LONG = bool(os.environ.get("HOLDFAST_FUZZ"))
CRASHES = 1_000 if LONG else 3
long = pytest.mark.skipif(not LONG, reason="takes long: set HOLDFAST_FUZZ")


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


@pytest.mark.parametrize(
    ("format", "order"),
    [
        ("parquet", "arrival"),
        ("ndjson", "file"),
        pytest.param("csv", "arrival", marks=long),
        pytest.param("parquet", "file", marks=long),
        pytest.param("ndjson", "arrival", marks=long),
        pytest.param("csv", "file", marks=long),
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


@pytest.mark.parametrize("system", ["sqlite", pytest.param("postgresql", marks=long)])
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
    hf.testing.check_source(make, ROWS, feed=feed, crashes=CRASHES)
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


@long
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


@long
@pytest.mark.parametrize("partitions", [1, 3])
def test_kafka(kafka_broker: KafkaServer, partitions: int) -> None:
    topic = make_topic(kafka_broker, partitions)
    numbers = itertools.count()

    def write(frame: pl.DataFrame) -> None:
        texts = [json.dumps(row).encode() for row in frame.to_dicts()]
        send(kafka_broker, topic, texts, next(numbers) % partitions)

    feed = Growing(write)
    make = lambda: hf.source.kafka(kafka_broker.address, topic, ROWS.schema)  # noqa: E731
    hf.testing.check_source(make, ROWS, feed=feed, ordered=partitions == 1, crashes=CRASHES)
