"""A run that ends leaves no job of its own on the session."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path

import polars as pl
import pytest
from pyspark.sql import SparkSession

import holdfast as hf
from holdfast.signals import abort_on_termination

pytestmark = pytest.mark.spark


def test_a_run_that_is_aborted_cancels_its_jobs(spark: SparkSession, tmp_path: Path) -> None:
    begun = tmp_path / "begun"

    def endless(rows: pl.DataFrame) -> pl.DataFrame:
        if rows.height:  # not when it is declared
            begun.touch()
            time.sleep(60)
        return rows

    pipeline = hf.Pipeline("endless")
    pipeline.source("events", hf.source.memory(pl.DataFrame({"v": [1]}))).map_batches(endless).sink(
        "out", hf.sink.collect()
    )

    def abort() -> None:
        while not begun.exists():
            time.sleep(0.02)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=abort, daemon=True).start()
    with pytest.raises(KeyboardInterrupt), abort_on_termination():
        hf.run(pipeline, spark=spark, store=tmp_path / "store")
    assert not spark.sparkContext.statusTracker().getActiveJobsIds()
    assert spark.range(4).count() == 4
