"""The Structured Streaming twins give the oracle's result on a bounded input."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from holdfast.errors import DeclarationError
from holdfast_lab.workloads import PAPER_QUERIES, first_difference, oracle, query
from holdfast_lab.workloads.spark_queries import spark_query
from holdfast_lab.workloads.spark_run import block_rows, unfold

pytestmark = [pytest.mark.spark]

QUICK = ("CM1", "YSB")
ROWS = {"CM2": 2_000, "NQ": 1_000, "YSB": 3_000, "SM": 1_000}
"""Rows of input where 400 would tell little."""

SLIDE = {"SG1": 600, "SG2": 32, "SG3": 16, "LRB1": 60, "NQ": 20}
"""Longer slides than in the paper, to keep the number of Spark's state rows down."""


def write_batches(events: pl.DataFrame, time: str, end: dict[str, int], directory: Path) -> None:
    """Two files of events, then a row so late that it closes all windows: Spark has no end of input."""
    directory.mkdir()
    half = events.height // 2
    batches = [events.head(half), events.slice(half)]
    closing = events.tail(1).with_columns(
        **{column: pl.lit(value).cast(events.schema[column]) for column, value in end.items()}
    )
    for number, batch in enumerate([*batches, closing]):
        path = directory / f"{number}.parquet"
        batch.write_parquet(path)
        os.utime(path, (1_000_000 + number, 1_000_000 + number))  # files are read in order of this time


def run(spark: Any, name: str, events: pl.DataFrame, tmp_path: Path, slide: int | None = None) -> pl.DataFrame:
    asked = query(name)
    time = asked.dataset.event_time
    per_second = {"s": 1, "ms": 1_000, "us": 1_000_000}[asked.dataset.time_unit]
    end = {time: int(events[time].max()) + 10_000 * per_second}  # type: ignore[arg-type]
    if "event_type" in events.columns:
        end["event_type"] = {"CM2": 3}.get(asked.name, 0)
    write_batches(events, time, end, tmp_path / "in")
    schema = spark.read.parquet(str(tmp_path / "in")).schema
    stream = spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).parquet(str(tmp_path / "in"))
    result = spark_query(name, stream, slide=slide)
    table = f"result_{name}"
    running = (
        result.writeStream.format("memory")
        .queryName(table)
        .outputMode("append")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    assert running.awaitTermination(120)
    return pl.DataFrame(pl.from_arrow(spark.table(table).toArrow()))


@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.long) for name in PAPER_QUERIES]
)
def test_twin_gives_the_result_of_the_oracle(name: str, spark: Any, tmp_path: Path) -> None:
    slide = SLIDE.get(name)
    events = query(name).dataset.load(ROWS.get(name, 400))
    expected = oracle(name, events, slide=slide)
    assert expected.height > 0
    actual = run(spark, name, events, tmp_path, slide)
    assert first_difference(actual, expected) is None


def test_query_without_a_twin_is_refused() -> None:
    with pytest.raises(DeclarationError, match="no twin"):
        spark_query("keyed", None)  # type: ignore[arg-type]


def test_the_source_of_benchmarks_repeats_each_row_in_its_place_round_after_round(spark: Any) -> None:
    data = query("CM1").dataset
    events = data.load(40)
    repeat = 3
    rows = unfold(spark.range(2).withColumnRenamed("id", "value"), data, events, repeat)
    actual = pl.DataFrame(pl.from_arrow(rows.toArrow()))
    rounds = [
        events.with_columns(pl.col(data.event_time) + number * data.period(events))
        for number in range(2 * block_rows(repeat) // repeat // events.height + 1)
    ]
    once = pl.concat(rounds).head(2 * block_rows(repeat) // repeat)
    expected = pl.concat([once] * repeat).sort(events.columns)
    assert actual.sort(events.columns).equals(expected)
