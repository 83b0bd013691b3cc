"""Every example runs as it is and puts out what it says. They share one Spark session."""

from __future__ import annotations

import importlib.util
import json
import socket
import sqlite3
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from types import ModuleType

import httpx
import paho.mqtt.client as paho
import polars as pl
import psycopg
import pytest
from paho.mqtt.enums import CallbackAPIVersion
from pyspark.sql import SparkSession

import holdfast as hf
from holdfast.cli.pipeline_file import load_pipeline
from holdfast.connect.duckdb_file import opened_duckdb
from holdfast.connect.object_store.bucket import bucket_at
from holdfast.connect.sinks.file_sink import SinkFormat, read_output
from holdfast.ingress.receivers import open_receivers
from holdfast.meta import MetaStore
from holdfast_lab.chaos.database_server import DatabaseServer
from holdfast_lab.chaos.kafka_server import KafkaServer
from holdfast_lab.chaos.s3_server import make_bucket, serve_process
from kafka_broker import committed, make_topic, send
from mqtt_broker import MqttBroker, mosquitto

pytestmark = [pytest.mark.spark, pytest.mark.slow]

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture(autouse=True)
def in_a_directory_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def result(spark: SparkSession, example: str, output: str, form: SinkFormat = "parquet") -> pl.DataFrame:
    hf.run(load_pipeline(str(EXAMPLES / example)), spark=spark, store=Path("store"))
    return read_output(Path("out") / output, form)


def test_all_examples_are_tested() -> None:
    tested = {"word_count", "ysb", "sessions", "keyed_process", "persist", "push", "background_run", "kafka_counts"}
    tested |= {"delta_tables", "iceberg_tables", "database_tables", "lookup_table", "object_store"}
    tested |= {"mqtt_readings", "postgres_history", "duckdb_totals", "tested_pipeline", "spark_frames"}
    assert {path.stem for path in EXAMPLES.glob("*.py")} == tested


def test_word_count(spark: SparkSession) -> None:
    counts = result(spark, "word_count.py", "word-count")
    assert counts["window_end"].max() == 60_000
    assert counts.filter(pl.col("word") == "hold")["times"].sum() == 2 * 2_000
    assert counts["times"].sum() == 2_000 * (9 + 7 + 9)


def test_lookup_table(spark: SparkSession) -> None:
    amounts = result(spark, "lookup_table.py", "amounts")
    assert amounts["amount"].sum() == 1_500
    assert amounts["name"].n_unique() == 10
    assert amounts.filter(pl.col("name").is_null())["amount"].sum() == 150, "of the customer that nobody knows"


def test_spark_frames(spark: SparkSession) -> None:
    counts = load_module(EXAMPLES / "spark_frames.py").main(spark).collect()
    assert {row["user"] for row in counts} == set(range(7))
    assert sum(row["events"] for row in counts) == 900, "of all windows that are closed"


def test_ysb(spark: SparkSession) -> None:
    counts = result(spark, "ysb.py", "ysb")
    assert counts.height == 10 * 100
    # A view is every third event of the frame, and the frame does not divide by three.
    assert counts["views"].sum() == 10 * 33_334


def test_sessions(spark: SparkSession) -> None:
    sessions = result(spark, "sessions.py", "sessions", "ndjson")
    late = read_output("out/late-clicks", "ndjson")
    assert sessions["visitor"].n_unique() == 200
    assert late.height == 60_000 // 500
    assert sessions["clicks"].sum() + late.height == 60_000


def test_keyed_process(spark: SparkSession) -> None:
    notices = result(spark, "keyed_process.py", "notices")
    unusual = notices.filter(pl.col("notice") == "unusual payment")
    unused = notices.filter(pl.col("notice") == "not used any more")
    assert unusual["cents"].min() >= 50_000  # type: ignore[operator]
    assert unusual.height > 50
    assert set(range(100, 200)) <= set(unused["card"])
    assert unused["card"].is_unique().all()


def test_persist(spark: SparkSession) -> None:
    pipeline = load_pipeline(str(EXAMPLES / "persist.py"))
    summary = hf.run(pipeline, spark=spark, store=Path("store"))
    assert set(summary.fragments) == {"sales.kept", "sales.totals"}
    with sqlite3.connect("sales.db") as connection:
        rows, sales = connection.execute("select count(*), sum(sales) from totals").fetchone()
    assert rows == 6 * 7
    assert sales == 6_000 * 44 // 50


def test_push(spark: SparkSession) -> None:
    [address] = free_addresses(1)
    pipeline = load_module(EXAMPLES / "push.py").build(http=address)
    lines = "".join(json.dumps({"at": at, "shop": "a", "amount": 2.0}) + "\n" for at in (100, 200, 1_300, 2_500))

    def client() -> None:
        url = f"http://{address}/v1/streams/orders"
        headers = {"Content-Type": "application/x-ndjson", "Holdfast-Batch": "one"}
        answers = [httpx.post(url, content=lines, headers=headers, timeout=60).json() for _ in range(2)]
        assert [answer["duplicate"] for answer in answers] == [False, True]

    with ThreadPoolExecutor(1) as pool:
        sent = pool.submit(retrying(client))
        hf.run(pipeline, spark=spark, store=Path("store"), max_epochs=1)
        sent.result()
    results = read_output("out", "parquet").sort("window_end")
    assert results.select("window_end", "total", "orders").rows() == [(1_000, 4.0, 2), (2_000, 2.0, 1)]


def test_mqtt_readings(spark: SparkSession, tmp_path: Path) -> None:
    if mosquitto() is None:
        pytest.skip("there is no mosquitto, and no package of it")
    broker = MqttBroker(tmp_path)
    broker.start()
    try:
        pipeline = load_module(EXAMPLES / "mqtt_readings.py").build(broker.url)
        with closing(MetaStore(Path("store"))) as meta, open_receivers(pipeline, meta, Path("store")) as receivers:
            sender = paho.Client(CallbackAPIVersion.VERSION2)
            sender.connect("127.0.0.1", broker.port)
            sender.loop_start()
            for at in (100, 200, 200, 1_300, 2_500):
                reading = json.dumps({"id": f"a-{at}", "at": at, "value": at / 100})
                sender.publish("site/a/temperature", reading, qos=1).wait_for_publish(20)
            sender.disconnect()
            sender.loop_stop()
            for _ in range(600):
                if receivers.server.totals()["readings"].rows < 5:
                    time.sleep(0.05)
        hf.run(pipeline, spark=spark, store=Path("store"), ingress=False, until_idle=True)
    finally:
        broker.kill()
    results = read_output("out", "parquet").sort("window_end")
    assert results.select("topic", "mean", "readings").rows() == [
        ("site/a/temperature", 1.5, 2), ("site/a/temperature", 13.0, 1),
    ]  # fmt: skip


def drop_slots(connection: psycopg.Connection) -> None:
    """The server may not have noticed yet that nobody reads them."""
    for _ in range(100):
        try:
            connection.execute("select pg_drop_replication_slot(slot_name) from pg_replication_slots")
            return
        except psycopg.errors.ObjectInUse:
            time.sleep(0.1)


def test_postgres_history(spark: SparkSession, postgresql: DatabaseServer) -> None:
    with psycopg.connect(postgresql.url, autocommit=True) as connection:
        connection.execute("create table orders (id int primary key, item text)")
        connection.execute("insert into orders values (1, 'a'), (2, 'b')")
        try:
            pipeline = load_module(EXAMPLES / "postgres_history.py").build(postgresql.url)
            hf.run(pipeline, spark=spark, store=Path("store"), max_epochs=1)
        finally:
            drop_slots(connection)
            connection.execute("drop table orders")
    history = read_output("out/history", "parquet").sort("id")
    assert history.select("op", "id", "item").rows() == [("snapshot", 1, "a"), ("snapshot", 2, "b")]


def test_kafka_counts(spark: SparkSession, kafka_broker: KafkaServer) -> None:
    for topic in ("views", "counts"):
        make_topic(kafka_broker, 2, name=topic)
    views = [{"at": 1_000 * second, "page": "ab"[second % 2]} for second in range(200)]
    send(kafka_broker, "views", [*(json.dumps(view).encode() for view in views), b"no view"])
    pipeline = load_module(EXAMPLES / "kafka_counts.py").build(kafka_broker.address)
    hf.run(pipeline, spark=spark, store=Path("store"), until_idle=True)
    counts = [(message.key(), json.loads(message.value())) for message in committed(kafka_broker, "counts")]
    assert sorted((key, row["window_end"], row["views"]) for key, row in counts) == [
        (page, end, 30) for page in (b"a", b"b") for end in (60_000, 120_000, 180_000)
    ]
    assert read_output("out/bad-views", "ndjson")["row"].to_list() == ["no view"]


def test_background_run(spark: SparkSession, capsys: pytest.CaptureFixture[str]) -> None:
    load_module(EXAMPLES / "background_run.py").main()
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition(":")[0] for line in lines] == ["by-second is running", "by-minute is running"]
    means = read_output("out/by-second", "parquet")
    assert means.height >= 10
    assert means["mean"].is_between(0, 89).all()
    assert spark.range(2).count() == 2  # the session was open before


def test_tables(spark: SparkSession) -> None:
    for example in ("delta_tables.py", "iceberg_tables.py", "database_tables.py"):
        for _ in range(2):
            hf.run(load_pipeline(str(EXAMPLES / example)), spark=spark, store=Path(f"{example}-store"))
    with sqlite3.connect("shop.db") as connection:
        found = [connection.execute("select count(*), sum(sales) from sales").fetchone()]
    iceberg = load_module(EXAMPLES / "iceberg_tables.py")
    sales = iceberg.load_catalog("default", **iceberg.CATALOG).load_table("shop.sales").scan().to_arrow()
    tables = [pl.read_delta("out/sales"), pl.DataFrame(sales)]
    found += [(table.height, table["sales"].sum()) for table in tables]
    assert found == [(3 * 10, 600)] * 3


def test_object_store(spark: SparkSession) -> None:
    orders = [{"at": 1_000 * second, "shop": f"shop {second % 3}", "amount": 1.5} for second in range(600)]
    with serve_process() as server:
        Path("key").write_text("lab\n")  # the workers of the session may have been started without it
        options = server.options(access_key_id="lab", secret_access_key=f"file:{Path('key').absolute()}")
        found = bucket_at(make_bucket(server, "shop"), options, "a test")
        assert found is not None
        for part in range(3):
            lines = "".join(json.dumps(order) + "\n" for order in orders[part * 200 : (part + 1) * 200])
            found[0].put(f"orders/{part}.ndjson", lines.encode())
        for _ in range(2):
            pipeline = load_module(EXAMPLES / "object_store.py").build("s3://shop", options)
            hf.run(pipeline, spark=spark, store=Path("store"), until_idle=True)
        sales = read_output("s3://shop/sales", "parquet", storage_options=options)
    assert (sales.height, sales["sales"].sum(), sales["amount"].sum()) == (3 * 10, 600, 900.0)


def test_duckdb_totals(spark: SparkSession) -> None:
    for _ in range(2):
        hf.run(load_pipeline(str(EXAMPLES / "duckdb_totals.py")), spark=spark, store=Path("store"))
    with opened_duckdb("shop.duckdb") as connection:
        found = connection.execute("select count(*), sum(sales), sum(amount) from sales").fetchall()
    assert found == [(3 * 10, 600, 600 / 20 * sum(range(20)))]


def free_addresses(count: int) -> list[str]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    try:
        return [f"127.0.0.1:{bound.getsockname()[1]}" for bound in sockets]
    finally:
        for bound in sockets:
            bound.close()


def retrying(client: Callable[[], None]) -> Callable[[], None]:
    """Until somebody listens."""

    def run() -> None:
        for _ in range(600):
            try:
                return client()
            except httpx.ConnectError:
                time.sleep(0.1)
        raise AssertionError("nobody listens")

    return run


def load_module(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"example_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
