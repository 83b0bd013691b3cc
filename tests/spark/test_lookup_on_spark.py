"""Lookup tables in the tasks of Spark, of a crew and of jobs."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import holdfast as hf
from holdfast.plan.executor_choice import ExecutorName
from observers import watching
from planned_joins import expected, joining, write_table

pytestmark = pytest.mark.spark


@pytest.mark.parametrize("executor", ["crew", "jobs"])
def test_tasks_join_with_the_version_of_the_plan(executor: ExecutorName, spark: SparkSession, tmp_path: Path) -> None:
    table, numbers = tmp_path / "names.parquet", itertools.count()
    write_table(table, next(numbers))
    hf.run(
        joining(table, hf.sink.parquet(tmp_path / "out"), epochs=6),
        spark=spark, store=tmp_path / "store", executor=executor, retain=100, checkpoint="delta",
        observer=watching(epoch_committed=lambda report: write_table(table, next(numbers))),
    )  # fmt: skip
    rows, versions = expected(tmp_path / "store")
    assert sorted(hf.read_output(tmp_path / "out", "parquet").rows()) == sorted(rows)
    assert versions > 2
