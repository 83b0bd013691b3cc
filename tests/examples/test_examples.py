"""Every example runs as it is and puts out what it says. They share one Spark session."""

from __future__ import annotations

import importlib.util
import json
import socket
import sqlite3
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType

import httpx
import polars as pl
import pytest
from pyspark.sql import SparkSession

import holdfast as hf
from holdfast.cli.load import load_pipeline
from holdfast.connect.sinks.file_sink import SinkFormat, read_output

pytestmark = [pytest.mark.spark, pytest.mark.slow]

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture(autouse=True)
def in_a_directory_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def result(spark: SparkSession, example: str, output: str, form: SinkFormat = "parquet") -> pl.DataFrame:
    hf.run(load_pipeline(str(EXAMPLES / example)), spark=spark, store=Path("store"))
    return read_output(Path("out") / output, form)


def test_all_examples_are_tested() -> None:
    tested = {"word_count.py", "ysb.py", "sessions.py", "keyed_process.py", "persist.py", "push.py", "beside.py"}
    assert {path.name for path in EXAMPLES.glob("*.py")} == tested


def test_word_count(spark: SparkSession) -> None:
    counts = result(spark, "word_count.py", "word-count")
    assert counts["window_end"].max() == 60_000
    assert counts.filter(pl.col("word") == "hold")["times"].sum() == 2 * 2_000
    assert counts["times"].sum() == 2_000 * (9 + 7 + 9)


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


def test_beside(spark: SparkSession, capsys: pytest.CaptureFixture[str]) -> None:
    load_module(EXAMPLES / "beside.py").main()
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition(":")[0] for line in lines] == ["by-second is running", "by-minute is running"]
    means = read_output("out/by-second", "parquet")
    assert means.height >= 10
    assert means["mean"].is_between(0, 89).all()
    assert spark.range(2).count() == 2  # the session was open before


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
