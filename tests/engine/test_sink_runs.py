"""Runs and their file sinks: whose the output is, when it is seen, and what happens where it cannot be written."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from pyspark.sql import SparkSession

import holdfast as hf
from holdfast.connect.base import Receipt
from holdfast.connect.sinks.file_sink import FileSink, published_epochs
from holdfast.errors import OutputConflictError, OutputUnwritableError, UnseenFileError
from holdfast.meta import MetaStore

pytestmark = pytest.mark.spark


def pipeline(name: str, sink: hf.sink.Sink, epochs: int = 3, first: int = 0) -> hf.Pipeline:
    result = hf.Pipeline(name)
    frames = [pl.DataFrame({"v": [first + 2 * n, first + 2 * n + 1]}) for n in range(epochs)]
    result.source("in", hf.source.memory(frames, epochs=True)).sink("out", sink)
    return result


def jobs(spark: SparkSession) -> int:
    return len(spark.sparkContext.statusTracker().getJobIdsForGroup(None))


def values(place: Path) -> list[int]:
    return sorted(hf.read_output(place, "parquet")["v"].to_list())


def test_a_second_pipeline_on_the_same_path_is_refused_and_not_swallowed(spark: SparkSession, tmp_path: Path) -> None:
    options: dict[str, Any] = {"spark": spark, "store": tmp_path / "store", "durable": False}
    hf.run(pipeline("one", hf.sink.parquet(tmp_path / "out")), **options)
    before = jobs(spark)
    with pytest.raises(OutputConflictError, match=r"operator 'out': .*is the output of sink 'out' of pipeline 'one'"):
        hf.run(pipeline("two", hf.sink.parquet(tmp_path / "out"), first=100), **options)
    assert jobs(spark) == before, "it is told before anything runs"
    assert values(tmp_path / "out") == list(range(6))
    hf.run(pipeline("two", hf.sink.parquet(tmp_path / "two"), first=100), **options)
    assert values(tmp_path / "two") == list(range(100, 106))


def test_a_reader_may_move_epochs_away_between_two_runs(spark: SparkSession, tmp_path: Path) -> None:
    out, taken = tmp_path / "out", tmp_path / "taken"
    options: dict[str, Any] = {"spark": spark, "store": tmp_path / "store", "durable": False}
    hf.run(pipeline("p", hf.sink.parquet(out, every=0)), max_epochs=2, **options)
    assert published_epochs(out) == [1, 2]
    taken.mkdir()
    for place in out.iterdir():
        shutil.move(place, taken)
    hf.run(pipeline("p", hf.sink.parquet(out, every=0)), **options)
    assert (values(taken), values(out)) == ([0, 1, 2, 3], [4, 5])


def test_short_epochs_do_not_make_a_directory_each(spark: SparkSession, tmp_path: Path) -> None:
    out, epochs = tmp_path / "out", 12
    hf.run(
        pipeline("p", hf.sink.parquet(out, every="1h"), epochs), spark=spark, store=tmp_path / "store", durable=False
    )
    assert values(out) == list(range(2 * epochs))
    assert published_epochs(out) == [1, epochs], "the first one at once, and at the end what was gathered"
    assert len(list((out / f"epoch={epochs:012d}").iterdir())) == 1
    assert hf.sink.parquet(out).rhythm.every == 1.0


class PrivateDisk(FileSink):
    """As on a cluster whose workers see another directory under the path of the staged files than the driver does."""

    def prepare(self, rows: pl.DataFrame, *, epoch: int, part: str, attempt: str) -> Receipt:
        receipt = super().prepare(rows, epoch=epoch, part=part, attempt=attempt)
        if epoch == 2:
            file = self.staging.path(receipt["file"])
            os.rename(file, self.path.with_name(f"private-{file.name}"))
        return receipt


def test_an_epoch_whose_files_the_driver_does_not_see_is_not_committed(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.engine.inventory._PATIENCE_SECONDS", 0.2)
    options: dict[str, Any] = {"spark": spark, "store": tmp_path / "store", "durable": False}
    host = os.uname().nodename
    with pytest.raises(UnseenFileError, match=rf"operator 'out', epoch 2: {host} wrote .*out\.staging.*is not"):
        hf.run(pipeline("p", PrivateDisk(tmp_path / "out", "parquet")), **options)
    meta = MetaStore(tmp_path / "store")
    assert meta.last_epoch("p") == 1
    meta.close()
    hf.run(pipeline("p", hf.sink.parquet(tmp_path / "out")), **options)
    assert values(tmp_path / "out") == list(range(6)), "nothing is lost where the path is mended"


def test_an_output_that_cannot_be_written_is_told_before_spark_runs_anything(
    spark: SparkSession, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("in the way")
    before = jobs(spark)
    with pytest.raises(OutputUnwritableError, match=rf"operator 'out': cannot write to {tmp_path}/file/out: "):
        hf.run(pipeline("p", hf.sink.parquet(tmp_path / "file" / "out")), spark=spark, store=tmp_path / "store")
    assert jobs(spark) == before


def test_a_run_that_fails_shows_what_it_has_committed(spark: SparkSession, tmp_path: Path) -> None:
    def fragile(rows: pl.DataFrame) -> pl.DataFrame:
        if rows.height and rows["v"].max() == 15:
            raise ZeroDivisionError
        return rows

    failing = hf.Pipeline("p")
    frames = [pl.DataFrame({"v": [2 * n, 2 * n + 1]}) for n in range(10)]
    rows = failing.source("in", hf.source.memory(frames, epochs=True)).map_batches(fragile, name="scrub")
    rows.sink("out", hf.sink.parquet(tmp_path / "out", every="1h"))
    with pytest.raises(hf.HoldfastError, match="ZeroDivisionError"):
        hf.run(failing, spark=spark, store=tmp_path / "store", durable=False, overlap=False)
    assert values(tmp_path / "out") == list(range(14))
