"""Whole pipelines on Spark, without faults."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest
from polars.testing import assert_frame_equal
from pyspark.sql import SparkSession

import holdfast as hf
from holdfast.epoch.report import EpochReport
from observers import watching

pytestmark = pytest.mark.spark

EVENTS = pl.DataFrame(
    {"ts": range(0, 40_000, 20), "k": [i % 5 for i in range(2000)], "v": [(i * 7919) % 101 for i in range(2000)]}
)


def sums(frame: pl.DataFrame, size: int) -> pl.DataFrame:
    """The oracle: tumbling sums by key."""
    return (
        frame.group_by("k", (pl.col("ts") // size * size).alias("window_start"))
        .agg(n=pl.len().cast(pl.Int64), total=pl.col("v").sum())
        .with_columns(window_end=pl.col("window_start") + size)
        .select("k", "window_start", "window_end", "n", "total")
    )


def declare(source: hf.source.Source, sink: hf.sink.Sink, name: str = "sums") -> hf.Pipeline:
    pipeline = hf.Pipeline(name)
    (
        pipeline.source("events", source, event_time="ts", time_unit="ms")
        .key_by("k")
        .window(hf.window.tumbling("5s"))
        .agg(n=hf.count(), total=hf.sum("v"))
        .sink("results", sink)
    )
    return pipeline


def same(left: pl.DataFrame, right: pl.DataFrame) -> None:
    assert_frame_equal(left, right, check_row_order=False)


def test_a_window_over_a_bounded_source_is_complete(spark: SparkSession, tmp_path: Path) -> None:
    sink = hf.sink.collect()
    reports: list[EpochReport] = []
    hf.run(
        declare(hf.source.memory(EVENTS), sink),
        spark=spark,
        store=tmp_path,
        least_rows=300,
        observer=watching(epoch_committed=reports.append),
    )
    same(sink.frame(), sums(EVENTS, 5000))
    assert sum(report.rows for report in reports) == EVENTS.height
    assert [report.epoch for report in reports] == list(range(1, len(reports) + 1))


def test_a_finished_pipeline_started_again_does_nothing(spark: SparkSession, tmp_path: Path) -> None:
    out = tmp_path / "out"
    reports: list[EpochReport] = []
    for _ in range(2):
        hf.run(
            declare(hf.source.memory(EVENTS), hf.sink.parquet(out)),
            spark=spark,
            store=tmp_path / "store",
            observer=watching(epoch_committed=reports.append),
        )
    same(hf.read_output(out, "parquet"), sums(EVENTS, 5000))
    assert sum(report.rows for report in reports) == EVENTS.height


def test_a_stopped_run_goes_on_where_it_was(spark: SparkSession, tmp_path: Path) -> None:
    out = tmp_path / "out"
    for limit in (2, 4, None):
        hf.run(
            declare(hf.source.memory(EVENTS), hf.sink.parquet(out)),
            spark=spark, store=tmp_path / "store", least_rows=300, most_rows=300, max_epochs=limit,
        )  # fmt: skip
    same(hf.read_output(out, "parquet"), sums(EVENTS, 5000))


def test_several_sources_and_sinks(spark: SparkSession, tmp_path: Path) -> None:
    pipeline = hf.Pipeline("two")
    left = pipeline.source("left", hf.source.memory(EVENTS), event_time="ts", time_unit="ms")
    right = pipeline.source("right", hf.source.memory(EVENTS.filter(pl.col("v") > 50)), event_time="ts", time_unit="ms")
    rows, totals, joined = hf.sink.collect(), hf.sink.collect(), hf.sink.collect()
    both = left.union(right)
    both.filter("v > 90").sink("rows", rows)
    both.key_by("k").window(hf.window.tumbling("5s")).agg(n=hf.count(), total=hf.sum("v")).sink("totals", totals)
    left.join(right, on=["k", "ts"], window=hf.window.tumbling("5s")).select("k", "ts", "v_right").sink(
        "joined", joined
    )
    hf.run(pipeline, spark=spark, store=tmp_path, least_rows=700)
    all_rows = pl.concat([EVENTS, EVENTS.filter(pl.col("v") > 50)])
    same(rows.frame(), all_rows.filter(pl.col("v") > 90))
    same(totals.frame(), sums(all_rows, 5000))
    same(joined.frame(), EVENTS.filter(pl.col("v") > 50).select("k", "ts", pl.col("v").alias("v_right")))


def test_stateful_operators_in_a_row_use_one_job_with_a_stage_each(spark: SparkSession, tmp_path: Path) -> None:
    pipeline = hf.Pipeline("chain")
    sink = hf.sink.collect()
    counts = (
        pipeline.source("events", hf.source.memory(EVENTS), event_time="ts", time_unit="ms")
        .key_by("k")
        .window(hf.window.sliding("4s", "2s"))
        .agg(total=hf.sum("v"))
    )
    best = counts.window(hf.window.tumbling("2s")).agg(best=hf.max("total"))
    at = pl.col("window_end").alias("at")
    counts.with_columns(at).join(best.with_columns(at), on="at", window=hf.window.tumbling("2s")).filter(
        "total = best"
    ).select("at", "k", "total").sink("results", sink)
    hf.run(pipeline, spark=spark, store=tmp_path, least_rows=500)
    expected = []
    for start in range(-2000, 40_000, 2000):
        rows = EVENTS.filter(pl.col("ts").is_between(start, start + 4000, closed="left"))
        per_key = rows.group_by("k").agg(total=pl.col("v").sum())
        hot = per_key.filter(pl.col("total") == pl.col("total").max())
        expected.append(hot.select(pl.lit(start + 4000, pl.Int64).alias("at"), "k", "total"))
    same(sink.frame(), pl.concat(expected))


def test_state_is_a_table_for_people(spark: SparkSession, tmp_path: Path) -> None:
    def remember(rows: pl.DataFrame, state: pl.DataFrame, context: hf.ProcessContext) -> hf.Step:
        seen = pl.concat([state, rows.select("k", pl.col("v").alias("total"))]).group_by("k").agg(pl.col("total").sum())
        return hf.Step(output=seen, upserts=seen)

    pipeline = hf.Pipeline("remember")
    source = hf.source.memory([EVENTS[:1000], EVENTS[1000:]], epochs=True)
    (
        pipeline.source("events", source)
        .key_by("k")
        .process(remember, state={"total": pl.Int64}, output={"k": pl.Int64, "total": pl.Int64}, keep_forever=True)
        .sink("results", hf.sink.collect())
    )
    hf.run(pipeline, spark=spark, store=tmp_path)
    for epoch, rows in ((1, EVENTS[:1000]), (2, EVENTS)):
        state = hf.state(tmp_path, "remember", "process", epoch=epoch)
        same(state, rows.group_by("k").agg(total=pl.col("v").sum()))


def test_cost_and_files_do_not_grow_with_the_number_of_epochs(spark: SparkSession, tmp_path: Path) -> None:
    frames = [EVENTS[i : i + 20] for i in range(0, 2000, 20)]
    pipeline = declare(hf.source.memory(frames, epochs=True), hf.sink.collect())
    hf.run(pipeline, spark=spark, store=tmp_path, retain=4)
    state = [path for path in (tmp_path / "sums" / "state").rglob("*") if path.is_file()]
    assert len(state) <= 2 * (4 + 12), "two partitions, four retained epochs, twelve pieces at the most"
    assert not (tmp_path / "sums" / "work").exists() or not list((tmp_path / "sums" / "work").iterdir())


def test_a_streaming_dataframe_is_a_source(spark: SparkSession, tmp_path: Path) -> None:
    inputs, out = tmp_path / "in", tmp_path / "out"
    inputs.mkdir()

    def run() -> None:
        frame = (
            spark.readStream.schema("ts long, k long, v long")
            .option("maxFilesPerTrigger", 1)
            .parquet(str(inputs))
            .where("k <> 3")
        )
        pipeline = hf.Pipeline("stream")
        (
            pipeline.from_spark("events", frame, event_time="ts", time_unit="ms", lateness="60s")
            .key_by("k")
            .window(hf.window.tumbling("5s"))
            .agg(n=hf.count(), total=hf.sum("v"))
            .sink("results", hf.sink.parquet(out))
        )
        hf.run(pipeline, spark=spark, store=tmp_path / "store", until_idle=True)

    EVENTS[:1000].write_parquet(inputs / "0.parquet")
    EVENTS[1000:].write_parquet(inputs / "1.parquet")
    run()
    closing = pl.DataFrame({"ts": [10**9], "k": [0], "v": [0]})
    closing.write_parquet(inputs / "2.parquet")
    run()
    same(hf.read_output(out, "parquet"), sums(EVENTS.filter(pl.col("k") != 3), 5000))
