"""Epochs that Structured Streaming cuts: what goes wrong between its batches and the commits."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from pyspark.sql import SparkSession

import holdfast as hf
from holdfast.errors import HoldfastError, PipelineChangedError

pytestmark = pytest.mark.spark
ROWS = pl.DataFrame({"ts": range(0, 300_000, 1_000), "k": [number % 3 for number in range(300)]})


@pytest.fixture
def inputs(tmp_path: Path) -> Path:
    place = tmp_path / "in"
    place.mkdir()
    for number in range(3):
        ROWS[number * 100 : (number + 1) * 100].write_parquet(place / f"{number}.parquet")
    return place


def pipeline(spark: SparkSession, inputs: Path, out: Path) -> hf.Pipeline:
    frame = spark.readStream.schema("ts long, k long").option("maxFilesPerTrigger", 1).parquet(str(inputs))
    made = hf.Pipeline("stream")
    rows = made.from_spark("rows", frame, event_time="ts", time_unit="ms", lateness="10min")
    rows.key_by("k").window(hf.window.tumbling("5s")).agg(n=hf.count()).sink("out", hf.sink.parquet(out, every="0s"))
    return made


class Dying(hf.Observer):
    """Raises when an epoch was committed."""

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        self.seen: list[int] = []

    def epoch_committed(self, report: Any) -> None:
        self.seen.append(report.epoch)
        if report.epoch == self.epoch:
            raise KeyboardInterrupt


def test_a_batch_whose_epoch_was_committed_is_dropped_when_it_comes_again(
    spark: SparkSession, tmp_path: Path, inputs: Path
) -> None:
    """The run dies after a commit, before Spark hears that the batch is done."""
    store, out = tmp_path / "store", tmp_path / "out"
    first, second = Dying(2), Dying(0)
    with pytest.raises(KeyboardInterrupt):
        hf.run(pipeline(spark, inputs, out), spark=spark, store=store, until_idle=True, observer=first)
    assert first.seen == [1, 2]
    run_to_the_end(spark, inputs, out, store, observer=second)
    assert second.seen[0] == 3


def test_a_batch_that_fails_comes_again_at_the_next_start(spark: SparkSession, tmp_path: Path, inputs: Path) -> None:
    store, out = tmp_path / "store", tmp_path / "out"
    (inputs / "1.parquet").write_bytes(b"no Parquet file")
    with pytest.raises(HoldfastError, match="Spark job failed"):
        hf.run(pipeline(spark, inputs, out), spark=spark, store=store, until_idle=True)
    ROWS[100:200].write_parquet(inputs / "1.parquet")
    run_to_the_end(spark, inputs, out, store)


def run_to_the_end(spark: SparkSession, inputs: Path, out: Path, store: Path, **more: Any) -> None:
    """With a row behind all windows that the others are in."""
    pl.DataFrame({"ts": [10**9], "k": [0]}).write_parquet(inputs / "3.parquet")
    hf.run(pipeline(spark, inputs, out), spark=spark, store=store, until_idle=True, **more)
    found = hf.read_output(out, "parquet").group_by("k").agg(pl.col("n").sum()).sort("k").rows()
    assert found == [(0, 100), (1, 100), (2, 100)]


def test_committed_epochs_without_the_checkpoint_of_spark_are_refused(
    spark: SparkSession, tmp_path: Path, inputs: Path
) -> None:
    store, out = tmp_path / "store", tmp_path / "out"
    hf.run(pipeline(spark, inputs, out), spark=spark, store=store, until_idle=True)
    shutil.rmtree(store / "stream" / "spark-checkpoint")
    with pytest.raises(PipelineChangedError, match="Spark checkpoint is gone"):
        hf.run(pipeline(spark, inputs, out), spark=spark, store=store, until_idle=True)
