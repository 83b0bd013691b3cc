"""What goes wrong in real life: each a clear error with operator, epoch and cure, and nothing half-committed.

Every test mends the fault afterwards and runs on: the output must be the fault-free one.
"""

from __future__ import annotations

import os
import resource
import sqlite3
from collections.abc import Callable
from pathlib import Path

import polars as pl
import psutil
import pytest
from polars.testing import assert_frame_equal
from pyspark.sql import SparkSession

import holdfast as hf
from holdfast.errors import (
    AlreadyRunningError,
    BadRowError,
    CorruptFileError,
    CorruptPUnitError,
    OperatorError,
    OutputConflictError,
    PipelineChangedError,
    StoreFullError,
    UnknownVersionError,
)
from holdfast.meta import MetaStore
from holdfast.plan.executor_choice import ExecutorName
from holdfast.spark.gateway import kill_python_workers

pytestmark = pytest.mark.spark

EVENTS = pl.DataFrame(
    {"ts": range(0, 20_000, 20), "k": [i % 5 for i in range(1000)], "v": [i % 17 for i in range(1000)]}
)
SCHEMA = {"ts": pl.Int64, "k": pl.Int64, "v": pl.Int64}


def declare(stream: hf.Stream, out: Path) -> hf.Pipeline:
    (
        stream.key_by("k")
        .window(hf.window.tumbling("5s"))
        .agg(n=hf.count(), total=hf.sum("v"))
        .sink("results", hf.sink.parquet(out))
    )
    return stream.pipeline


def expected(frame: pl.DataFrame) -> pl.DataFrame:
    return (
        frame.group_by("k", (pl.col("ts") // 5000 * 5000).alias("window_start"))
        .agg(n=pl.len().cast(pl.Int64), total=pl.col("v").sum())
        .with_columns(window_end=pl.col("window_start") + 5000)
        .select("k", "window_start", "window_end", "n", "total")
    )


def source(pipeline: hf.Pipeline, what: hf.source.Source) -> hf.Stream:
    return pipeline.source("events", what, event_time="ts", time_unit="ms")


def check(out: Path, frame: pl.DataFrame = EVENTS) -> None:
    assert_frame_equal(hf.read_output(out, "parquet"), expected(frame), check_row_order=False)


def halves() -> hf.source.Source:
    return hf.source.memory([EVENTS[:500], EVENTS[500:]], epochs=True)


def last_epoch(store: Path, pipeline: str) -> int:
    meta = MetaStore(store)
    commit = meta.last_commit(pipeline)
    meta.close()
    return commit.epoch if commit else 0


def test_a_user_function_that_raises(spark: SparkSession, tmp_path: Path, executor: ExecutorName) -> None:
    out, store, mended = tmp_path / "out", tmp_path / "store", tmp_path / "mended"

    def pipeline() -> hf.Pipeline:
        def fragile(rows: pl.DataFrame) -> pl.DataFrame:
            if rows.height and rows["ts"].max() > 15_000 and not mended.exists():  # type: ignore[operator]
                raise ZeroDivisionError("row 751 is odd")
            return rows

        return declare(source(hf.Pipeline("fragile"), halves()).map_batches(fragile, name="scrub"), out)

    with pytest.raises(OperatorError, match=r"operator 'scrub', epoch 2: ZeroDivisionError: row 751 is odd\n  cure: ."):
        hf.run(pipeline(), executor=executor, spark=spark, store=store)
    assert last_epoch(store, "fragile") == 1
    mended.touch()
    hf.run(pipeline(), executor=executor, spark=spark, store=store)
    check(out)


def test_an_expression_that_fails_on_data(spark: SparkSession, tmp_path: Path) -> None:
    pipeline = hf.Pipeline("strict")
    text = pl.when(pl.col("v") == 16).then(pl.lit("x")).otherwise(pl.lit("1"))
    rows = source(pipeline, hf.source.memory(EVENTS.with_columns(v=text)))
    declare(rows.with_columns(pl.col("v").cast(pl.Int64)).named("parse"), tmp_path / "out")
    with pytest.raises(OperatorError, match="operator 'parse', epoch 1") as caught:
        hf.run(pipeline, spark=spark, store=tmp_path / "store")
    assert caught.value.cure
    assert last_epoch(tmp_path / "store", "strict") == 0


def test_a_keyed_process_that_breaks_its_contract(spark: SparkSession, tmp_path: Path, executor: ExecutorName) -> None:
    def twice(rows: pl.DataFrame, state: pl.DataFrame, context: hf.ProcessContext) -> hf.Step:
        return hf.Step(upserts=rows.select("k", "v"))

    pipeline = hf.Pipeline("twice")
    stream = source(pipeline, hf.source.memory(EVENTS))
    stream.key_by("k").process(twice, state={"v": pl.Int64}, output={"k": pl.Int64}, keep_forever=True).sink(
        "results", hf.sink.collect()
    )
    with pytest.raises(OperatorError, match=r"operator 'process', epoch 1: the key \(\d,\) occurs twice in one Step"):
        hf.run(pipeline, executor=executor, spark=spark, store=tmp_path)


@pytest.mark.parametrize("policy", ["fail", "dead_letter"])
def test_a_row_that_does_not_fit(spark: SparkSession, tmp_path: Path, policy: str) -> None:
    folder, out, dead = tmp_path / "in", tmp_path / "out", hf.sink.collect()
    folder.mkdir()
    lines = EVENTS.write_csv().splitlines()
    (folder / "a.csv").write_text("\n".join([*lines[:400], "12,zwei,3", *lines[400:]]) + "\n")
    pipeline = hf.Pipeline("rows")
    stream = source(pipeline, hf.source.files(folder, schema=SCHEMA, bad_rows=policy))  # type: ignore[arg-type]
    declare(stream, out)
    if policy == "fail":
        with pytest.raises(BadRowError, match=r"operator 'events', epoch 1: .*a\.csv") as caught:
            hf.run(pipeline, spark=spark, store=tmp_path / "store")
        assert caught.value.cure
        assert not hf.read_output(out, "parquet").height
        return
    stream.dead_letters.sink("dead", dead)
    hf.run(pipeline, spark=spark, store=tmp_path / "store")
    check(out)
    assert dead.frame()["row"].to_list() == ["12,zwei,3"]


def test_a_truncated_file(spark: SparkSession, tmp_path: Path) -> None:
    folder, out = tmp_path / "in", tmp_path / "out"
    folder.mkdir()
    EVENTS[:500].write_parquet(folder / "a.parquet")
    EVENTS[500:].write_parquet(folder / "b.parquet")
    whole = (folder / "b.parquet").read_bytes()
    (folder / "b.parquet").write_bytes(whole[: len(whole) // 2])

    def pipeline() -> hf.Pipeline:
        return declare(source(hf.Pipeline("files"), hf.source.files(folder, schema=SCHEMA)), out)

    with pytest.raises(CorruptFileError, match=r"b\.parquet"):
        hf.run(pipeline(), spark=spark, store=tmp_path / "store")
    (folder / "b.parquet").write_bytes(whole)
    hf.run(pipeline(), spark=spark, store=tmp_path / "store")
    check(out)


def test_a_row_without_event_time(spark: SparkSession, tmp_path: Path) -> None:
    frame = EVENTS.with_columns(ts=pl.when(pl.col("v") > 0).then("ts"))
    pipeline = declare(source(hf.Pipeline("timeless"), hf.source.memory(frame)), tmp_path / "out")
    with pytest.raises(BadRowError, match=r"operator 'events', epoch 1.*no event time"):
        hf.run(pipeline, spark=spark, store=tmp_path / "store")


def limiting(flag: Path) -> Callable[[pl.DataFrame, pl.DataFrame, hf.ProcessContext], hf.Step]:
    """A process that, while `flag` exists, lets the kernel refuse its worker's writes: as a full disk would."""

    def remember(rows: pl.DataFrame, state: pl.DataFrame, context: hf.ProcessContext) -> hf.Step:
        _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (100 if flag.exists() and context.epoch == 2 else hard, hard))
        seen = pl.concat([state, rows.select("k", total="v")]).group_by("k").agg(pl.col("total").sum())
        return hf.Step(output=seen, upserts=seen)

    return remember


def test_a_full_disk(spark: SparkSession, tmp_path: Path) -> None:
    flag, store, sink = tmp_path / "full", tmp_path / "store", hf.sink.collect()
    flag.touch()

    def pipeline() -> hf.Pipeline:
        result = hf.Pipeline("full")
        stream = source(result, halves())
        output = {"k": pl.Int64, "total": pl.Int64}
        stream.key_by("k").process(limiting(flag), state={"total": pl.Int64}, output=output, keep_forever=True).sink(
            "results", sink
        )
        return result

    try:
        with pytest.raises(StoreFullError, match="operator 'process', epoch 2: cannot write"):
            hf.run(pipeline(), spark=spark, store=store)
    finally:
        kill_python_workers(
            and_their_parent=False
        )  # the limit stays with a worker, which would be given to other tests
    assert last_epoch(store, "full") == 1
    flag.unlink()
    hf.run(pipeline(), spark=spark, store=store)
    assert_frame_equal(
        hf.state(store, "full", "process"),
        EVENTS.group_by("k").agg(total=pl.col("v").sum()),
        check_row_order=False,
    )


def test_a_flipped_bit_in_a_punit_is_never_used(spark: SparkSession, tmp_path: Path) -> None:
    out, store = tmp_path / "out", tmp_path / "store"

    def pipeline() -> hf.Pipeline:
        return declare(source(hf.Pipeline("flip"), halves()), out)

    hf.run(pipeline(), spark=spark, store=store, max_epochs=1)
    files = list((store / "flip" / "state").rglob("*.segment"))
    assert files
    originals = {path: path.read_bytes() for path in files}
    for path, data in originals.items():
        spoilt = bytearray(data)
        spoilt[::300] = bytes(byte ^ 4 for byte in spoilt[::300])  # in every p-unit
        path.write_bytes(spoilt)
    with pytest.raises(CorruptPUnitError, match=r"operator 'window', epoch 2: .*checksum"):
        hf.run(pipeline(), spark=spark, store=store)
    for path, data in originals.items():
        path.write_bytes(data)
    hf.run(pipeline(), spark=spark, store=store)
    check(out)


def test_a_store_of_an_unknown_version(spark: SparkSession, tmp_path: Path) -> None:
    out = tmp_path / "out"

    def pipeline() -> hf.Pipeline:
        return declare(source(hf.Pipeline("old"), halves()), out)

    hf.run(pipeline(), spark=spark, store=tmp_path / "store", max_epochs=1)
    with sqlite3.connect(tmp_path / "store" / "meta.db") as database:
        database.execute("update holdfast set value = '999' where key = 'store'")
    database.close()
    with pytest.raises(UnknownVersionError, match="store version 999"):
        hf.run(pipeline(), spark=spark, store=tmp_path / "store")


def test_a_pipeline_that_no_longer_fits_its_state(spark: SparkSession, tmp_path: Path) -> None:
    hf.run(declare(source(hf.Pipeline("p"), halves()), tmp_path / "out"), spark=spark, store=tmp_path, max_epochs=1)
    changed = hf.Pipeline("p")
    stream = source(changed, halves())
    stream.key_by("v").window(hf.window.tumbling("5s")).agg(n=hf.count(), total=hf.sum("v")).sink(
        "r", hf.sink.collect()
    )
    with pytest.raises(PipelineChangedError, match=r"operator 'window': .*keys of .window. was"):
        hf.run(changed, spark=spark, store=tmp_path)


def test_output_of_another_run_is_not_mixed_with_new_output(spark: SparkSession, tmp_path: Path) -> None:
    out = tmp_path / "out"

    def pipeline() -> hf.Pipeline:
        return declare(source(hf.Pipeline("p"), halves()), out)

    hf.run(pipeline(), spark=spark, store=tmp_path / "store")
    before = hf.read_output(out, "parquet")
    with pytest.raises(
        OutputConflictError, match=r"operator 'results': .*is the output of sink 'results' of pipeline 'p' in store"
    ):
        hf.run(pipeline(), spark=spark, store=tmp_path / "fresh store")
    assert hf.read_output(out, "parquet").equals(before)


def test_two_processes_on_one_pipeline(spark: SparkSession, tmp_path: Path) -> None:
    meta = MetaStore(tmp_path / "store")
    alive = psutil.Process(os.getppid())
    owner = f"{os.uname().nodename}:{alive.pid}:{alive.create_time():.2f}"
    meta.acquire("p", owner, 0.0, 1e12)
    meta.close()
    pipeline = declare(source(hf.Pipeline("p"), halves()), tmp_path / "out")
    with pytest.raises(AlreadyRunningError, match="is being run by"):
        hf.run(pipeline, spark=spark, store=tmp_path / "store")


def test_a_source_that_fails_once_is_read_again(spark: SparkSession, tmp_path: Path, executor: ExecutorName) -> None:
    out = tmp_path / "out"
    flaky = hf.source.memory([EVENTS[:500], hf.source.Fail(tmp_path / "failed"), EVENTS[500:]])
    pipeline = declare(source(hf.Pipeline("flaky"), flaky), out)
    hf.run(pipeline, executor=executor, spark=spark, store=tmp_path / "store", least_rows=100, most_rows=100)
    assert (tmp_path / "failed").exists()
    check(out)


def test_a_killed_python_worker_is_replaced(spark: SparkSession, tmp_path: Path, executor: ExecutorName) -> None:
    out, killed = tmp_path / "out", tmp_path / "killed"

    def deadly(rows: pl.DataFrame) -> pl.DataFrame:
        if rows.height and rows["ts"].max() > 15_000 and not killed.exists():  # type: ignore[operator]
            killed.touch()
            os.kill(os.getpid(), 9)
        return rows

    pipeline = declare(source(hf.Pipeline("deadly"), halves()).map_batches(deadly, schema=SCHEMA), out)
    hf.run(pipeline, executor=executor, spark=spark, store=tmp_path / "store")
    assert killed.exists()
    check(out)
