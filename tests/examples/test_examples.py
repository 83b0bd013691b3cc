"""Every example runs as it is and puts out what it says. They share one Spark session."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest
from pyspark.sql import SparkSession

import holdfast as hf
from holdfast.cli.load import load_pipeline
from holdfast.connect import read_output
from holdfast.connect.file_sink import SinkFormat

pytestmark = [pytest.mark.spark, pytest.mark.slow]

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture(autouse=True)
def in_a_directory_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def result(spark: SparkSession, example: str, output: str, form: SinkFormat = "parquet") -> pl.DataFrame:
    hf.run(load_pipeline(str(EXAMPLES / example)), spark=spark, store=Path("store"))
    return read_output(Path("out") / output, form)


def test_all_examples_are_tested() -> None:
    tested = {"word_count.py", "ysb.py", "sessions.py", "keyed_process.py"}
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
