"""Each job of the page about porting gives the same rows in Structured Streaming and in Holdfast, from the same files.

One Spark session runs both. The input is written before it opens, so that no file looks as if it were still written.
"""

from __future__ import annotations

import importlib.util
import json
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import ModuleType
from typing import Any

import polars as pl
import polars.selectors as cs
import psycopg
import pytest
from pyspark.sql import SparkSession

import holdfast as hf
from holdfast_lab.bench.kafka_speed import connector_jars
from holdfast_lab.chaos.database_server import DatabaseServer
from holdfast_lab.chaos.kafka_server import KafkaServer
from kafka_broker import make_topic, send
from postgres import fresh_url

pytestmark = [pytest.mark.spark, pytest.mark.slow]

JOBS = Path(__file__).parents[2] / "examples/porting"
NINE = datetime(2026, 1, 5, 9, tzinfo=UTC)


Row = Mapping[str, Any]
Rows = list[tuple[Any, ...]]


def at(minutes: float) -> str:
    return (NINE + timedelta(minutes=minutes)).isoformat().replace("+00:00", "Z")


VIEWS: list[list[Row]] = [
    [{"at": at(minute), "page": page} for minute in (1, 4, 8) for page in "ab"],
    [{"at": at(minute), "page": "a"} for minute in (12, 9, 13)],  # 09:09 is behind the greatest time, and not late
    [{"at": at(29), "page": "b"}],
    [{"at": at(30), "page": "b"}],
    [{"at": at(8), "page": "a"}, {"at": at(27), "page": "a"}, {"at": at(33), "page": "b"}],  # 09:08 is late
    [{"at": at(46), "page": "b"}],
]
PAYMENTS: list[list[Row]] = [
    [{"at": at(0), "id": 1, "cents": 100}, {"at": at(1), "id": 2, "cents": 200}, {"at": at(1), "id": 1, "cents": 100}],
    [{"at": at(5), "id": 2, "cents": 200}, {"at": at(6), "id": 3, "cents": 300}],
    [{"at": at(40), "id": 4, "cents": 400}],
    [{"at": at(40), "id": 5, "cents": 500}],
    [{"at": at(41), "id": 1, "cents": 150}, {"at": at(42), "id": 4, "cents": 400}],  # 1 is forgotten by now
]
IMPRESSIONS: list[list[Row]] = [
    [{"ad": ad, "shown": at(ad)} for ad in range(6)],
    [{"ad": ad, "shown": at(60 + ad)} for ad in range(3)],
    [{"ad": 99, "shown": at(300)}],
]
CLICKS: list[list[Row]] = [
    [{"ad": ad, "clicked": at(2 * ad)} for ad in range(0, 6, 2)],
    [{"ad": 0, "clicked": at(60)}, {"ad": 1, "clicked": at(62)}, {"ad": 1, "clicked": at(61)}],
    [{"ad": 98, "clicked": at(300)}],
]
CHANGES: list[list[Row]] = [
    [{"version": v, "customer": v % 4, "city": f"city {v}"} for v in range(start, start + 7)] for start in (0, 7, 14)
]
READINGS: list[list[Row]] = [
    [{"at": at(m), "device": d, "value": m + d / 2} for m in (0, 1, 2) for d in (1, 2, 3)],
    [{"at": at(m), "device": d, "value": 1.0} for m in (6, 9) for d in (2, 3)],
    [{"at": at(15), "device": 3, "value": 2.0}],
    [{"at": at(23), "device": 3, "value": 3.0}],
    [{"at": at(24), "device": 1, "value": 4.0}],
    [{"at": at(60), "device": 4, "value": 5.0}],
]
VISITS: list[list[Row]] = [
    [{"at": at(m), "visitor": v, "page": f"page {m}"} for m in (0, 10, 25) for v in (1, 2)],
    [{"at": at(50), "visitor": 1, "page": "page 50"}, {"at": at(47), "visitor": 1, "page": "page 47"}],
    [{"at": at(100), "visitor": 2, "page": "page 100"}],
    [{"at": at(200), "visitor": 3, "page": "page 200"}],
]
EVENTS: list[list[Row]] = [[{"at": at(file), "id": 100 * file + number} for number in range(100)] for file in range(4)]
OLD_ORDERS = ['{"id": 1, "amount": 2.5}', '{"id": 2, "amount": "many"}', '{"id": 3, "amount": 1.5, "currency": "INR"}']
NEW_ORDERS = ['{"id": 4, "amount": 3.5, "currency": "EUR"}', "{", '{"id": 5, "amount": 0.5}']
ORDERS: list[list[Row]] = [
    [{"id": number, "amount": 37.0 * (number % 50)} for number in range(start, start + 100)] for start in (0, 100)
]
SALES = [
    *(json.dumps({"at": at(number), "shop": f"shop {number % 3}", "amount": number / 4}) for number in range(40)),
    "no order",
    '{"shop": "shop 1", "amount": 1.5}',
]
INPUT: dict[str, Sequence[Sequence[Row]]] = {
    "views": VIEWS, "payments": PAYMENTS, "impressions": IMPRESSIONS, "clicks": CLICKS, "changes": CHANGES,
    "readings": READINGS, "visits": VISITS, "events": EVENTS, "orders": ORDERS,
}  # fmt: skip


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of all input."""
    place = tmp_path_factory.mktemp("porting")
    for name, files in INPUT.items():
        for number, rows in enumerate(files):
            put(place / name, number, map(json.dumps, rows))
    put(place / "sales", 0, SALES)
    put(place / "drifting", 0, OLD_ORDERS)
    time.sleep(2.1)  # `settle`
    return place


def put(place: Path, number: int, lines: Iterable[str]) -> None:
    """A file. Structured Streaming takes files by their age, which must not be the same for two of them."""
    place.mkdir(exist_ok=True)
    path = place / f"{number:03}.ndjson"
    path.write_text("".join(line + "\n" for line in lines))
    age = path.stat().st_mtime - 100 + number
    os.utime(path, (age, age))


def job(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, JOBS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Places:
    """Directories of one test: `places.out` for what it writes, by the names that the test gives."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def __getattr__(self, name: str) -> str:
        return str(self._root / name)


@pytest.fixture
def to(tmp_path: Path) -> Places:
    return Places(tmp_path)


def run(pipeline: hf.Pipeline, spark: SparkSession, to: Places) -> hf.RunSummary:
    return hf.run(pipeline, spark=spark, store=to.store, trigger="available now")


def of_spark(path: str, *columns: str) -> Rows:
    """Instants are in UTC, which the type that Spark writes by default does not say."""
    frame = pl.read_parquet(f"{path}/*.parquet")
    return ordered(frame.with_columns(cs.datetime().dt.replace_time_zone("UTC").dt.cast_time_unit("us")), columns)


def of_holdfast(path: str, *columns: str) -> Rows:
    return ordered(hf.read_output(path), columns)


def ordered(frame: pl.DataFrame, columns: Sequence[str]) -> Rows:
    return frame.select(columns).sort(columns).rows()


def test_kafka_to_delta_with_files_in_place_of_the_topic(spark: SparkSession, given: Path, to: Places) -> None:
    module, messages = job("kafka_to_delta"), str(given / "sales")
    module.structured_streaming(spark.readStream.text(messages), to.spark, to.checkpoint).awaitTermination()
    source = hf.source.files(messages, schema=module.holdfast_source("no:9092").schema, grow=True, bad_rows="skip")
    run(module.holdfast_pipeline(source, to.holdfast), spark, to)
    assert compared_tables(to) == len(SALES) - 2


@pytest.mark.long
def test_kafka_to_delta(spark: SparkSession, kafka_broker: KafkaServer, to: Places) -> None:
    """Spark gets its connector while it runs."""
    connector = connector_jars(print)
    if connector is None:
        pytest.skip("there is no connector of Spark to fetch")
    for jar in connector[1]:
        spark.sql(f"ADD JAR '{jar}'")
    module = job("kafka_to_delta")
    make_topic(kafka_broker, 2, name="orders")
    send(kafka_broker, "orders", [sale.encode() for sale in SALES])
    messages = module.spark_source(spark, kafka_broker.address)
    module.structured_streaming(messages, to.spark, to.checkpoint).awaitTermination()
    run(module.holdfast_pipeline(module.holdfast_source(kafka_broker.address), to.holdfast), spark, to)
    assert compared_tables(to) == len(SALES) - 2


def compared_tables(to: Places) -> int:
    found, expected = pl.read_delta(to.holdfast), pl.read_delta(to.spark)
    assert found.schema == expected.schema
    assert ordered(found, found.columns) == ordered(expected, found.columns)
    return found.height


def test_windowed_counts(spark: SparkSession, given: Path, to: Places) -> None:
    module, views = job("windowed_counts"), str(given / "views")
    module.structured_streaming(spark, views, to.spark, to.checkpoint).awaitTermination()
    run(module.holdfast_pipeline(views, to.holdfast, to.late), spark, to)
    found = of_holdfast(to.holdfast, "page", "window_start", "window_end", "views")
    assert found == of_spark(to.spark, "page", "start", "end", "views")
    counts = [(page, views) for page, _, _, views in found]
    assert counts == [("a", 4), ("a", 2), ("a", 1), ("b", 3), ("b", 1), ("b", 2)]
    assert hf.read_output(to.late, "ndjson").height == 1


def test_deduplicated(spark: SparkSession, given: Path, to: Places) -> None:
    module, payments = job("deduplicated"), str(given / "payments")
    module.structured_streaming(spark, payments, to.spark, to.checkpoint).awaitTermination()
    run(module.holdfast_pipeline(payments, to.holdfast), spark, to)
    found = of_holdfast(to.holdfast, "id", "cents", "at")
    assert found == of_spark(to.spark, "id", "cents", "at")
    assert [row[:2] for row in found] == [(1, 100), (1, 150), (2, 200), (3, 300), (4, 400), (5, 500)]


@pytest.mark.long
def test_stream_join(spark: SparkSession, given: Path, to: Places) -> None:
    module, shown, clicked = job("stream_join"), str(given / "impressions"), str(given / "clicks")
    module.structured_streaming(spark, shown, clicked, to.spark, to.checkpoint).awaitTermination()
    run(module.holdfast_pipeline(shown, clicked, to.holdfast), spark, to)
    found = of_holdfast(to.holdfast, "ad", "shown", "clicked")
    assert found == of_spark(to.spark, "ad", "shown", "clicked")
    assert len([row for row in found if row[2] is None]) == 3
    assert len(found) == 8 + 3


def test_upserts(spark: SparkSession, given: Path, to: Places, postgresql: DatabaseServer) -> None:
    module, changes = job("upserts"), str(given / "changes")
    databases = [fresh_url(postgresql), fresh_url(postgresql)]
    with psycopg.connect(databases[0]) as connection:
        connection.execute("CREATE TABLE cities (customer BIGINT PRIMARY KEY, city TEXT)")
    module.structured_streaming(spark, changes, databases[0], to.checkpoint).awaitTermination()
    run(module.holdfast_pipeline(changes, databases[1]), spark, to)
    tables = []
    for database in databases:
        with psycopg.connect(database) as connection:
            tables.append(connection.execute("SELECT customer, city FROM cities ORDER BY customer").fetchall())
    assert tables[0] == tables[1] == [(0, "city 20"), (1, "city 17"), (2, "city 18"), (3, "city 19")]


@pytest.mark.long
def test_keyed_state(spark: SparkSession, given: Path, to: Places) -> None:
    module, readings = job("keyed_state"), str(given / "readings")
    module.structured_streaming(spark.newSession(), readings, to.spark, to.checkpoint).awaitTermination()
    run(module.holdfast_pipeline(readings, to.holdfast), spark, to)
    found = of_holdfast(to.holdfast, "device", "n", "total")
    assert found == of_spark(to.spark, "device", "n", "total")
    assert found == [(1, 1, 4.0), (1, 3, 4.5), (2, 5, 8.0), (3, 7, 14.5)]


@pytest.mark.long
def test_session_windows(spark: SparkSession, given: Path, to: Places) -> None:
    module, clicks = job("session_windows"), str(given / "visits")
    module.structured_streaming(spark, clicks, to.spark, to.checkpoint).awaitTermination()
    run(module.holdfast_pipeline(clicks, to.holdfast), spark, to)
    found = of_holdfast(to.holdfast, "visitor", "window_start", "window_end", "clicks", "last_page")
    assert found == of_spark(to.spark, "visitor", "start", "end", "clicks", "last_page")
    assert [(row[0], *row[3:]) for row in found] == [(1, 5, "page 50"), (2, 3, "page 25"), (2, 1, "page 100")]


def test_rate_limits(spark: SparkSession, given: Path, to: Places) -> None:
    module, events = job("rate_limits"), str(given / "events")
    query = module.structured_streaming(spark, events, to.spark, to.checkpoint)
    query.awaitTermination()
    with module.holdfast_run(events, to.holdfast, to.store) as running:
        summary = running.wait()
    assert summary.epochs == len(query.recentProgress) == len(EVENTS)
    assert of_holdfast(to.holdfast, "id", "at") == of_spark(to.spark, "id", "at")


def test_rate_limits_of_jobs_that_stay(spark: SparkSession, given: Path, to: Places) -> None:
    module, events, rows = job("rate_limits"), str(given / "events"), 100 * len(EVENTS)
    query = module.structured_streaming(spark, events, to.spark, to.checkpoint, "200 milliseconds")
    query.processAllAvailable()
    query.stop()
    with module.holdfast_run(events, to.holdfast, to.store, "200 ms") as running:
        deadline = time.monotonic() + 60
        while running.status().rows < rows:
            assert time.monotonic() < deadline, running.status()
            time.sleep(0.02)
        assert running.status().epochs == len(EVENTS)
    assert of_holdfast(to.holdfast, "id", "at") == of_spark(to.spark, "id", "at")


def test_schema_drift(spark: SparkSession, given: Path, to: Places) -> None:
    module, orders = job("schema_drift"), given / "drifting"
    schemas = [
        ("id BIGINT, amount DOUBLE", {"id": pl.Int64, "amount": pl.Float64}),
        ("id BIGINT, amount DOUBLE, currency STRING", {"id": pl.Int64, "amount": pl.Float64, "currency": pl.String}),
    ]
    for spark_schema, schema in schemas:
        query = module.structured_streaming(spark, str(orders), to.good, to.bad, to.checkpoint, spark_schema)
        query.awaitTermination()
        run(module.holdfast_pipeline(str(orders), to.fine, to.dead, schema), spark, to)
        if not (orders / "001.ndjson").exists():
            put(orders, 1, NEW_ORDERS)
            time.sleep(2.1)
    found = hf.read_output(to.fine)
    frames = [pl.read_parquet(path) for path in Path(to.good).glob("*.parquet")]
    expected = pl.concat(frames, how="diagonal")
    columns = ["id", "amount", "currency"]
    assert ordered(found, columns) == ordered(expected, columns)
    assert [row[0] for row in ordered(found, columns)] == [1, 3, 4, 5]
    lines = [line for path in Path(to.bad).glob("*.txt") for line in path.read_text().splitlines()]
    assert sorted(hf.read_output(to.dead, "ndjson")["row"]) == sorted(lines) == sorted([OLD_ORDERS[1], NEW_ORDERS[1]])


def test_several_sinks(spark: SparkSession, given: Path, to: Places) -> None:
    module, orders = job("several_sinks"), str(given / "orders")
    module.structured_streaming(spark, orders, to.archive, to.review, to.checkpoint).awaitTermination()
    run(module.holdfast_pipeline(orders, to.all, to.large), spark, to)
    assert of_holdfast(to.all, "id", "amount") == of_spark(to.archive, "id", "amount")
    assert of_holdfast(to.large, "id", "amount") == of_spark(to.review, "id", "amount")
    assert len(of_holdfast(to.large, "id")) == 2 * 2 * 22
