"""Every sink of Holdfast passes the suite that a user's own can, by the guarantee that it declares."""

from __future__ import annotations

import itertools
import json
import os
import re
from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest
import sqlalchemy as sa
from buckets import TestBucket
from deltalake import DeltaTable
from pyiceberg.catalog import load_catalog

import holdfast as hf
from holdfast.connect.duckdb_file import opened_duckdb
from holdfast_lab.chaos.database_server import DatabaseServer
from holdfast_lab.chaos.kafka_server import KafkaServer
from holdfast_lab.chaos.loopback_proxy import LoopbackProxy
from kafka_broker import committed, make_topic
from postgres import fresh_url

LONG = bool(os.environ.get("HOLDFAST_FUZZ"))
CRASHES = 1_000 if LONG else 3
SCHEMA = pl.Schema({"number": pl.Int64, "text": pl.String, "value": pl.Float64})
NOTHING = pl.DataFrame(schema=SCHEMA)


@pytest.mark.parametrize(
    "format", ["parquet", pytest.param("ndjson", marks=pytest.mark.long), pytest.param("arrow", marks=pytest.mark.long)]
)
def test_files(format: str, tmp_path: Path) -> None:
    def read(place: str) -> pl.DataFrame:
        path = tmp_path / place
        return hf.read_output(path, format, SCHEMA) if path.is_dir() else NOTHING  # type: ignore[arg-type]

    make: Callable[[Path], hf.sink.Sink] = getattr(hf.sink, format)
    hf.testing.check_sink(lambda place: make(tmp_path / place), read, crashes=CRASHES)


@pytest.mark.long
@pytest.mark.parametrize("format", ["parquet", "ndjson", "arrow"])
def test_objects(format: str, bucket: TestBucket) -> None:
    """In a bucket, on a server that hangs and is slow."""

    def read(place: str) -> pl.DataFrame:
        if not bucket.keys(f".{place}.holdfast"):
            return NOTHING
        return hf.read_output(bucket.url(place), format, SCHEMA, storage_options=bucket.options)  # type: ignore[arg-type]

    make: Callable[..., hf.sink.Sink] = getattr(hf.sink, format)
    with LoopbackProxy(bucket.server.port) as proxy:
        options = {**bucket.options, "endpoint": f"http://127.0.0.1:{proxy.port}", "timeout": 2, "retry_timeout": 3}
        hf.testing.check_sink(
            lambda place: make(bucket.url(place), storage_options=options), read,
            hang=proxy.hanging, slow=proxy.slowed, crashes=40,
        )  # fmt: skip


def test_duckdb(tmp_path: Path) -> None:
    path = tmp_path / "out.duckdb"

    def read(place: str) -> pl.DataFrame:
        if not path.exists():
            return NOTHING
        with opened_duckdb(str(path), write=False) as connection:
            if not connection.execute("SELECT 1 FROM duckdb_tables() WHERE table_name = ?", [place]).fetchall():
                return NOTHING
            found = connection.execute(f'SELECT number, "text", value FROM {place}').fetchall()
        return pl.DataFrame(found, schema=SCHEMA, orient="row")

    make = lambda place: hf.sink.database(f"duckdb:///{path}", place, writer=place)  # noqa: E731
    hf.testing.check_sink(make, read, crashes=40 if LONG else 1)


@pytest.mark.parametrize("system", ["sqlite", pytest.param("postgresql", marks=pytest.mark.long)])
def test_database(system: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    """PostgreSQL also hangs and is slow."""
    server: DatabaseServer | None = request.getfixturevalue("postgresql") if system == "postgresql" else None
    url = f"sqlite:///{tmp_path / 'out.db'}" if server is None else fresh_url(server)
    engine = sa.create_engine(url)

    def read(place: str) -> pl.DataFrame:
        if not sa.inspect(engine).has_table(place):
            return NOTHING
        with engine.connect() as connection:
            found = connection.execute(sa.text(f'select number, "text", value from {place}')).fetchall()
        return pl.DataFrame([tuple(row) for row in found], schema=SCHEMA, orient="row")

    make = lambda place: hf.sink.database(url, place, writer=place)  # noqa: E731
    if server is None:
        hf.testing.check_sink(make, read, crashes=CRASHES)
    else:
        with LoopbackProxy(server.port) as proxy:
            url = f"{url.replace(str(server.port), str(proxy.port))}?timeout=3"
            hf.testing.check_sink(make, read, hang=proxy.hanging, slow=proxy.slowed, crashes=100)
    engine.dispose()


@pytest.mark.long
def test_delta(tmp_path: Path) -> None:
    def read(place: str) -> pl.DataFrame:
        path = str(tmp_path / place)
        return pl.read_delta(path) if DeltaTable.is_deltatable(path) else NOTHING

    hf.testing.check_sink(lambda place: hf.sink.delta(tmp_path / place), read, crashes=CRASHES)


@pytest.mark.long
def test_iceberg(tmp_path: Path) -> None:
    settings = {"type": "sql", "uri": f"sqlite:///{tmp_path / 'c.db'}", "warehouse": f"file://{tmp_path / 'w'}"}
    catalog = load_catalog("default", **settings)
    catalog.create_namespace("db")

    def read(place: str) -> pl.DataFrame:
        name = f"db.{place}"
        if not catalog.table_exists(name):
            return NOTHING
        found = pl.from_arrow(catalog.load_table(name).scan().to_arrow())
        assert isinstance(found, pl.DataFrame)
        return found

    hf.testing.check_sink(lambda place: hf.sink.iceberg(f"db.{place}", settings), read, crashes=CRASHES)


@pytest.mark.long
def test_kafka(kafka_broker: KafkaServer) -> None:
    run, known = next(_RUNS), set()

    def topic(place: str) -> str:
        name = f"sink{run}-{place}"
        if name not in known:
            known.add(make_topic(kafka_broker, 2, name))
        return name

    def read(place: str) -> pl.DataFrame:
        found = [json.loads(message.value()) for message in committed(kafka_broker, topic(place))]
        return pl.DataFrame(found, schema=SCHEMA)

    hf.testing.check_sink(
        lambda place: hf.sink.kafka(kafka_broker.address, topic(place)), read,
        hang=kafka_broker.hanging, slow=kafka_broker.slowed, deadline=180, crashes=40,
    )  # fmt: skip


_RUNS = itertools.count(1)


def test_for_each_epoch() -> None:
    """Each call is an effect: at least once."""
    written: dict[str, list[pl.DataFrame]] = {}

    def make(place: str) -> hf.sink.Sink:
        return hf.sink.for_each_epoch(lambda epoch, rows: written.setdefault(place, []).append(rows))

    def read(place: str) -> pl.DataFrame:
        return pl.concat([NOTHING, *written.get(place, ())])

    hf.testing.check_sink(make, read, crashes=CRASHES)


def test_for_each_epoch_is_exactly_once_by_the_number_of_the_epoch() -> None:
    written: dict[str, dict[int, pl.DataFrame]] = {}

    def make(place: str) -> hf.sink.Sink:
        return hf.sink.for_each_epoch(lambda epoch, rows: written.setdefault(place, {}).setdefault(epoch, rows))

    def read(place: str) -> pl.DataFrame:
        return pl.concat([NOTHING, *written.get(place, {}).values()])

    hf.testing.check_sink(make, read, guarantee="exactly-once", crashes=CRASHES)


def test_collect() -> None:
    """It lives as long as the process does: for a run that crashes that is at most once."""
    sinks: dict[str, hf.sink.CollectSink] = {}
    make = lambda place: sinks.setdefault(place, hf.sink.collect())  # noqa: E731
    hf.testing.check_sink(make, lambda place: sinks[place].frame(), guarantee="at-most-once", crashes=CRASHES)


def test_console(capsys: pytest.CaptureFixture[str]) -> None:
    printed: list[str] = []
    seen = 0

    def read(place: str) -> pl.DataFrame:
        """The rows that were printed since the suite went to this place."""
        nonlocal seen
        printed.append(capsys.readouterr().out)
        if place != places[-1]:
            places.append(place)
            seen = len(printed) - 1
        numbers = re.findall(r"│ (\d+) +┆ (row \d+) +┆ ([\d.]+)", "".join(printed[seen:]))
        return pl.DataFrame([(int(n), text, float(v)) for n, text, v in numbers], schema=SCHEMA, orient="row")

    places = [""]
    hf.testing.check_sink(lambda place: hf.sink.console(), read, crashes=CRASHES)


def test_no_sink_is_left_out() -> None:
    text = Path(__file__).read_text()
    formats = {"parquet", "ndjson", "arrow"}  # by their names: see test_files
    sinks = {name for name in hf.sink.__all__ if name.islower()} - formats
    assert {name for name in sinks if f"hf.sink.{name}(" not in text} == set()
