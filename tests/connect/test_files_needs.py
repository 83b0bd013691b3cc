"""A pipeline reads of its files what it needs, and puts out the same as if it had read all: the oracle is the same
pipeline over rows in memory."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import holdfast as hf
from harness import Cut, run
from holdfast.connect.base import Source
from holdfast.connect.formats import columnar
from holdfast.connect.sources.files import FileSource
from holdfast.plan.program import compile_program

SCHEMA = pl.Schema({"at": pl.Int64(), "key": pl.Int64(), "kind": pl.String(), "value": pl.Int64(), "more": pl.String()})


def filtered_windows(rows: hf.Stream) -> hf.Stream:
    kept = rows.filter(pl.col("kind") == "a").filter(pl.col("value") > 2)
    return kept.key_by("key").window(hf.window.tumbling("10s"), name="w").agg(n=hf.count(), total=hf.sum("value"))


def two_branches(rows: hf.Stream) -> hf.Stream:
    doubled = rows.filter(pl.col("kind") != "b").with_columns(value=pl.col("value") * 2)
    both = doubled.union(rows.filter(pl.col("value") < 5))
    return both.key_by("key").window(hf.window.tumbling("10s"), name="w").agg(n=hf.count(), total=hf.sum("value"))


def python_function(rows: hf.Stream) -> hf.Stream:
    """Nobody knows what it does: it must not be moved into the reader."""
    kept = rows.filter(pl.col("value").map_batches(lambda values: values > 4, return_dtype=pl.Boolean))
    return kept.window(hf.window.tumbling("10s"), name="w").agg(n=hf.count())


def everything(rows: hf.Stream) -> hf.Stream:
    return rows.filter(pl.col("kind") == "a")


PIPELINES = [filtered_windows, two_branches, python_function, everything]


def built(source: Source, declare: Callable[[hf.Stream], hf.Stream]) -> hf.Pipeline:
    pipeline = hf.Pipeline("test")
    rows = pipeline.source("in", source, event_time="at", time_unit="s", lateness="3s")
    declare(rows).sink("out", hf.sink.collect())
    return pipeline


row = st.tuples(st.integers(0, 5), st.integers(0, 3), st.sampled_from("abc"), st.integers(0, 9))


@pytest.mark.parametrize("format", ["parquet", "csv", "ndjson"])
@pytest.mark.parametrize("declare", PIPELINES)
@settings(max_examples=5, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    steps=st.lists(row, min_size=1, max_size=60),
    back=st.sets(st.integers(0, 59), max_size=6),
    cut=st.sampled_from([Cut(), Cut(rows=7), Cut(rows=20, tasks=3, partitions=2)]),
)
def test_the_output_is_that_of_all_rows_and_columns(
    tmp_path_factory: pytest.TempPathFactory,
    format: str,
    declare: Callable[[hf.Stream], hf.Stream],
    steps: list[tuple[int, int, str, int]],
    back: set[int],
    cut: Cut,
) -> None:
    place, at, made = tmp_path_factory.mktemp("in"), 0, []
    for number, (step, key, kind, value) in enumerate(steps):
        at += step
        made.append((max(0, at - 25) if number in back else at, key, kind, value, "unread"))
    frame = pl.DataFrame(made, schema=SCHEMA, orient="row")
    write(frame, place / f"a.{format}")
    before = columnar.CHUNK_ROWS
    columnar.CHUNK_ROWS = 5
    try:
        found = run(built(hf.source.files(place, schema=SCHEMA), declare), cut)
    finally:
        columnar.CHUNK_ROWS = before
    expected = run(built(hf.source.memory(frame), declare), cut)
    assert sorted(found.rows()) == sorted(expected.rows())
    assert found.totals == expected.totals


def write(frame: pl.DataFrame, path: Path) -> None:
    if path.suffix == ".parquet":
        frame.write_parquet(path, row_group_size=4)
    elif path.suffix == ".csv":
        frame.write_csv(path)
    else:
        frame.write_ndjson(path)


def needs_of(directory: Path, declare: Callable[[hf.Stream], hf.Stream]) -> tuple[list[str], bool]:
    """The columns that are read, and whether rows are left out."""
    [node] = compile_program(built(hf.source.files(directory, format="parquet", schema=SCHEMA), declare)).sources
    assert isinstance(node.source, FileSource)
    return node.source.schema.names(), node.source.need.filter is not None


def test_columns_that_nobody_reads_are_left_out_and_first_filters_go_into_the_reader(tmp_path: Path) -> None:
    assert needs_of(tmp_path, filtered_windows) == (["at", "key", "kind", "value"], True)
    assert needs_of(tmp_path, two_branches) == (["at", "key", "kind", "value"], False)
    assert needs_of(tmp_path, python_function) == (["at", "value"], False)
    assert needs_of(tmp_path, everything) == (SCHEMA.names(), True)


def test_a_filter_that_fails_is_named_and_not_the_file(tmp_path: Path) -> None:
    frame = pl.DataFrame([(1, 1, "a", 1, "x")], schema=SCHEMA, orient="row")
    write(frame, tmp_path / "a.parquet")

    def fails(rows: hf.Stream) -> hf.Stream:
        return rows.filter(pl.col("more").cast(pl.Int64) > 1).named("broken")

    with pytest.raises(hf.errors.OperatorError, match="broken"):
        run(built(hf.source.files(tmp_path, schema=SCHEMA), fails))
