"""The eleven queries of the Scabbard paper on the engine, each against its naive oracle on real data."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest
from pyspark.sql import SparkSession

import holdfast as hf
from harness import Cut, run
from holdfast_lab.workloads.oracle import first_difference, oracle
from holdfast_lab.workloads.queries import PAPER_QUERIES, QUERIES, query
from strategies import long_cases

ROWS = {"SG1": 2000, "SG3": 2500, "LRB1": 4000}


def events_of(name: str) -> pl.DataFrame:
    return QUERIES[name].dataset.load(ROWS.get(name, 5000))


@pytest.mark.parametrize("name", PAPER_QUERIES)
@pytest.mark.parametrize("cut", [*long_cases(Cut(rows=10**9)), Cut(rows=1100, tasks=3, partitions=4)], ids=str)
def test_a_query_gives_the_oracles_result(name: str, cut: Cut) -> None:
    events = events_of(name)
    sink = hf.sink.collect()
    outcome = run(query(name).build(hf.source.memory(events), sink), cut)
    result = next(iter(outcome.sinks.values()))
    assert result.height
    assert first_difference(result, oracle(name, events), 1e-6) is None


@pytest.mark.spark
@pytest.mark.parametrize("name", ["CM1", "LRB3", "NQ", "YSB"])
def test_a_query_on_spark_gives_the_oracles_result(spark: SparkSession, tmp_path: Path, name: str) -> None:
    events = events_of(name)
    sink = hf.sink.collect()
    hf.run(query(name).build(hf.source.memory(events), sink), spark=spark, store=tmp_path, least_rows=1300)
    assert first_difference(sink.frame(), oracle(name, events), 1e-6) is None
