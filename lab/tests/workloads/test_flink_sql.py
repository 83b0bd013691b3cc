"""The queries in Flink SQL: what they read and put out, and the input that Flink unfolds, without a Flink."""

from __future__ import annotations

import json
import re
from pathlib import Path

import polars as pl
import pytest

from holdfast.errors import DeclarationError
from holdfast_lab.workloads import PAPER_QUERIES, oracle, query
from holdfast_lab.workloads.flink_input import flink_input
from holdfast_lab.workloads.flink_queries import flink_query

TYPES = {"INT": pl.Int32, "BIGINT": pl.Int64, "DOUBLE": pl.Float64}


def unfolded(directory: Path, copies: int) -> pl.DataFrame:
    """What Flink's two UNNESTs make of the lines, all files together."""
    rows = []
    for path in sorted(directory.iterdir()):
        for line in map(json.loads, path.read_text().splitlines()):
            rows += [{"t": line["t"], **row} for _ in range(copies) for row in line["rws"]]
    return pl.DataFrame(rows)


@pytest.mark.parametrize("name", PAPER_QUERIES)
def test_a_query_puts_out_the_columns_of_the_oracle(name: str) -> None:
    expected = oracle(name, query(name).dataset.load(200)).schema
    columns = {column: TYPES[kind] for column, kind in flink_query(name).columns}
    assert columns == dict(expected)
    assert list(columns) == list(expected)


@pytest.mark.parametrize("name", PAPER_QUERIES)
def test_a_query_reads_only_columns_that_its_dataset_has(name: str) -> None:
    assert set(flink_query(name).reads) <= set(query(name).dataset.load(10).columns)


@pytest.mark.parametrize("name", PAPER_QUERIES)
def test_a_query_has_the_windows_of_its_definition(name: str) -> None:
    asked = query(name)
    made = flink_query(name)
    text = " ".join([*made.statements(), made.select])
    hops = {(int(size), int(slide)) for slide, size in re.findall(r"HOP\(.*?'(\d+)'.*?'(\d+)'", text)}
    tumbles = {int(size) for size in re.findall(r"TUMBLE\(.*?'(\d+)'", text)}
    if asked.slide in asked.sizes:
        assert tumbles == set(asked.sizes)
        assert not hops
    else:
        assert hops == {(size, asked.slide) for size in asked.sizes}
        assert tumbles <= {asked.slide}


def test_another_slide_makes_other_windows() -> None:
    assert "TUMBLE" in flink_query("CM1", slide=60).select
    assert "INTERVAL '20' SECOND(4), INTERVAL '60' SECOND(4)" in flink_query("CM1", slide=20).select


def test_bounds_are_in_ticks_of_the_dataset() -> None:
    assert "* 1000000" in flink_query("SM").select
    assert "* 1000" in flink_query("YSB").select
    assert "AS BIGINT) *" not in flink_query("CM1").select


def test_a_query_without_a_twin_is_refused() -> None:
    with pytest.raises(DeclarationError, match="no twin"):
        flink_query("keyed")


@pytest.mark.parametrize(("name", "repeat"), [("CM1", 1), ("CM1", 6), ("YSB", 4), ("SM", 2)])
def test_lines_unfold_to_the_rows_of_the_dataset(name: str, repeat: int, tmp_path: Path) -> None:
    data = query(name).dataset
    events = data.load(300)
    reads = flink_query(name).reads
    made = flink_input(data, events, reads, tmp_path / "in", repeat=repeat)
    kept = [column for column in reads if column != data.event_time]
    per_second = {"s": 1, "ms": 1_000, "us": 1_000_000}[data.time_unit]
    times = (pl.col(data.event_time) * 1_000 // per_second).alias("t")
    expected = pl.concat([events.select(times, *kept)] * made.repeat)
    actual = (
        unfolded(tmp_path / "in", made.copies)
        .with_columns(pl.col("t").cast(pl.Int64))
        .cast({column: events.schema[column] for column in kept})
    )
    assert made.repeat == repeat
    assert made.rows == expected.height
    assert actual.sort(actual.columns).equals(expected.sort(expected.columns))


def test_replays_are_shifted_by_the_period_and_counted(tmp_path: Path) -> None:
    data = query("CM1").dataset
    events = data.load(100)
    made = flink_input(data, events, ("category", "cpu"), tmp_path / "in", repeat=2, rows=550)
    lines = [json.loads(line)["t"] for line in (tmp_path / "in" / "part-0.json").read_text().splitlines()]
    instants = len(set(events["timestamp"].to_list()))
    assert lines == sorted(lines)
    assert len(lines) == 3 * instants
    assert lines[instants] - lines[0] == 1_000 * data.period(events)
    assert made.rows == 600
    assert made.rows_of(0) == 0
    assert made.rows_of(instants) == 100
    assert made.rows_of(10**9) == 300


def test_a_dense_instant_is_cut_into_several_lines(tmp_path: Path) -> None:
    data = query("SG1").dataset
    events = data.load(2_000)
    made = flink_input(data, events, ("value",), tmp_path / "in", repeat=1_000)
    assert made.copies < 500
    assert abs(made.repeat - 1_000) <= 50
    assert max(b - a for a, b in zip(made.rows_before, made.rows_before[1:], strict=False)) <= 80_000
