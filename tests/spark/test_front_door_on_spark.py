"""The data source "holdfast": what Spark reads of a store and writes to a p-stream, in a session that knows nothing of
it."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest
from pyspark.sql import DataFrame, SparkSession

import holdfast as hf
from front_stores import ROWS, epochs_of, make_store, release_of
from harness import run_in

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_store(tmp_path_factory.mktemp("front"))


def read(spark: SparkSession, **options: object) -> DataFrame:
    reader = spark.read.format("holdfast")
    for name, value in options.items():
        reader = reader.option(name, str(value))
    return reader.load()


def rows(frame: DataFrame) -> list[tuple[object, ...]]:
    return sorted(tuple(row) for row in frame.collect())


@pytest.mark.long
def test_an_output_is_read_whole_and_as_a_stream(spark: SparkSession, store: Path, tmp_path: Path) -> None:
    expected = sorted(hf.read_output(store / "out", "parquet").rows())
    assert rows(spark.read.format("holdfast").load(str(store / "out"))) == expected
    stream = spark.readStream.format("holdfast").load(str(store / "out"))
    assert rows(played(stream, tmp_path)) == expected


def played(stream: DataFrame, place: Path) -> DataFrame:
    """All that a streaming DataFrame has now."""
    query = (
        stream.writeStream.format("parquet").option("checkpointLocation", str(place / "checkpoint"))
        .option("path", str(place / "played")).trigger(availableNow=True).start()
    )  # fmt: skip
    query.awaitTermination()
    return stream.sparkSession.read.schema(stream.schema).parquet(str(place / "played"))


@pytest.mark.long
def test_state_of_a_retained_epoch_is_read(spark: SparkSession, store: Path) -> None:
    options = {"store": store / "store", "pipeline": "counted.out", "operator": "counts"}
    epochs = epochs_of(store / "store", "counted.out")
    assert len(epochs) > 2
    found = {}
    for epoch in epochs:
        expected = hf.state(store / "store", "counted.out", "counts", epoch=epoch)
        found[epoch] = rows(read(spark, epoch=epoch, **options))
        assert found[epoch] == sorted(expected.rows())
    assert rows(read(spark, **options)) == found[max(epochs)]


@pytest.mark.long
def test_a_p_stream_is_read_whole_and_as_a_stream(spark: SparkSession, store: Path, tmp_path: Path) -> None:
    options = {"store": store / "store", "stream": "counted.kept"}
    assert rows(read(spark, **options)) == sorted(ROWS.rows())
    some = spark.read.format("holdfast").schema("k BIGINT").options(**{k: str(v) for k, v in options.items()}).load()
    assert rows(some) == sorted(ROWS.select("k").rows())
    given = {**{name: str(value) for name, value in options.items()}, "reader": "spark-test", "maxRows": "30"}
    stream = spark.readStream.format("holdfast").options(**given).load()
    assert rows(played(stream, tmp_path)) == sorted(ROWS.rows())
    assert release_of(store / "store", "counted.kept", "spark-test") > 0, "what is read is released"


def numbers(spark: SparkSession, place: Path) -> DataFrame:
    return spark.readStream.schema("n BIGINT").parquet(str(place / "numbers"))


@pytest.mark.long  # examples/spark_frames.py does the like, and test_front_door.py has what comes again
def test_batches_of_a_query_are_written_once_and_a_pipeline_reads_them(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "numbers").mkdir()
    options = {"store": str(tmp_path / "store"), "stream": "numbers"}

    def play() -> None:
        query = numbers(spark, tmp_path).writeStream.format("holdfast").options(**options)
        query = query.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True)
        query.start().awaitTermination()

    for batch in range(3):
        pl.DataFrame({"n": range(batch * 10, batch * 10 + 10)}).write_parquet(tmp_path / "numbers" / f"{batch}.parquet")
        play()
    # Spark has not noted that the last batch was committed, as if it had been killed: it runs it again.
    last = max((tmp_path / "checkpoint" / "commits").glob("[0-9]*"), key=lambda path: int(path.name))
    last.unlink()
    (last.parent / f".{last.name}.crc").unlink(missing_ok=True)
    play()
    pipeline = hf.Pipeline("reads")
    source = pipeline.source("in", hf.source.pstream("numbers", {"n": pl.Int64}))
    source.sink("out", hf.sink.collect())
    outcome = run_in(tmp_path / "store", pipeline)
    assert sorted(outcome.rows()) == [(n,) for n in range(30)]
    files = [path for path in (tmp_path / "store" / "streams" / "numbers").rglob("*") if path.is_file()]
    assert len(files) <= 3, "what was written again is removed"
