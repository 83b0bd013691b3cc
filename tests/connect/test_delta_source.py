"""A Delta table as a source: the rows that are there, then those that each version adds, again and again the same."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from datetime import date, datetime
from pathlib import Path

import polars as pl
import pytest
from deltalake import DeltaTable, write_deltalake
from drain import drain
from polars.testing import assert_frame_equal

import holdfast as hf
from harness import Cut, run_in
from holdfast.errors import DeclarationError, InputError
from holdfast.source import delta

SCHEMA = pl.Schema({"at": pl.Int64, "day": pl.Date, "v": pl.Float64})


def rows(keys: Sequence[int]) -> pl.DataFrame:
    days = [date(2026, 1, 1 + k % 3) for k in keys]
    return pl.DataFrame({"at": keys, "day": days, "v": [k / 2 for k in keys]}, schema=SCHEMA)


def append(table: Path, keys: Sequence[int], **given: object) -> None:
    write_deltalake(table, rows(keys), mode="append", **given)  # type: ignore[call-overload]


@pytest.mark.parametrize("partition_by", [None, ["day"]])
@pytest.mark.parametrize(("count", "pieces"), [(10_000, 1), (7, 3), (1, 2)])
def test_the_contract_is_kept_however_the_table_is_cut(
    tmp_path: Path, partition_by: list[str] | None, count: int, pieces: int
) -> None:
    table = tmp_path / "table"
    for start in (0, 50):
        append(table, range(start, start + 50), partition_by=partition_by)
    source = delta(table)
    seen, position = drain(source, rows=count, pieces=pieces)
    assert_frame_equal(seen, rows(range(100)), check_row_order=False)
    assert source.lag(position) == 0
    assert source.settled(position)
    append(table, range(100, 120))
    DeltaTable(table).optimize.compact()
    append(table, range(120, 130))
    assert source.lag(position) == 30
    more, position = drain(source, rows=count, pieces=pieces, position=position)
    assert_frame_equal(more, rows(range(100, 130)), check_row_order=False)
    assert position["done"] == 4


def test_an_epoch_has_rows_of_one_version_or_of_many_as_the_order_says(tmp_path: Path) -> None:
    for start in (0, 10, 20):
        append(tmp_path, range(start, start + 10))
    takes = [delta(tmp_path, after=0).take(delta(tmp_path, after=0).start(), 1000, 1)]
    assert takes[0].slices[0].rows == 10
    ordered = delta(tmp_path, after=0, order="file")
    assert ordered.take(ordered.start(), 1000, 1).slices[0].rows == 20
    part = delta(tmp_path, after=0).take(takes[0].position, 4, 1)
    assert not delta(tmp_path).settled(part.position)


def test_a_table_that_does_not_grow_ends_at_the_version_it_had(tmp_path: Path) -> None:
    append(tmp_path, range(10))
    source = delta(tmp_path, grow=False)
    take = source.take(source.start(), 4, 1)
    append(tmp_path, range(10, 20))
    assert not take.done
    rest, position = drain(source, rows=4, position=take.position)
    assert rest.height == 6
    assert source.take(position, 1, 1).done


def test_a_version_that_changes_rows_is_told_or_passed_over(tmp_path: Path) -> None:
    append(tmp_path, range(10))
    append(tmp_path, range(10, 20))
    DeltaTable(tmp_path).delete("at < 5")
    append(tmp_path, range(20, 30))
    strict, skipping = delta(tmp_path, after=0), delta(tmp_path, after=0, changes="skip")
    with pytest.raises(InputError, match=r"version 2 .*\(DELETE\) deletes or changes rows"):
        drain(strict)
    assert drain(skipping)[0].sort("at").equals(rows(range(10, 30)))
    assert drain(delta(tmp_path))[0].sort("at").equals(rows(range(5, 30)))


def test_what_was_vacuumed_before_it_was_read_is_told(tmp_path: Path) -> None:
    for start in range(3):
        append(tmp_path, [start])
    source = delta(tmp_path, after=0)
    take = source.take(source.start(), 1, 1)
    table = DeltaTable(tmp_path)
    table.optimize.compact()
    table.vacuum(0, dry_run=False, enforce_retention_duration=False)
    with pytest.raises(InputError, match=r"file of version 1 .* is gone(.|\n)*vacuum with a retention longer"):
        list(source.read(take.slices[0]))
    assert drain(delta(tmp_path))[0]["at"].sort().to_list() == [0, 1, 2]


def test_versions_that_are_no_longer_in_the_log_are_told(tmp_path: Path) -> None:
    for start in range(4):
        append(tmp_path, [start])
    DeltaTable(tmp_path).create_checkpoint()
    for version in (0, 1, 2):
        (tmp_path / "_delta_log" / f"{version:020d}.json").unlink()
    with pytest.raises(InputError, match=r"has version 3, but no longer version 1(.|\n)*logRetentionDuration"):
        drain(delta(tmp_path, after=0))
    assert drain(delta(tmp_path))[0]["at"].sort().to_list() == [0, 1, 2, 3]


def test_columns_that_came_later_are_null_before(tmp_path: Path) -> None:
    append(tmp_path, [1])
    write_deltalake(tmp_path, rows([2]).with_columns(more=pl.lit("x")), mode="append", schema_mode="merge")
    found, _ = drain(delta(tmp_path))
    assert found.sort("at")["more"].to_list() == [None, "x"]
    narrow, _ = drain(delta(tmp_path, schema={"more": pl.String}))
    assert sorted(narrow["more"].to_list(), key=str) == [None, "x"]


def test_a_table_that_is_not_there_is_waited_for_or_told(tmp_path: Path) -> None:
    with pytest.raises(DeclarationError, match=r"no Delta table in .* to take the schema from"):
        delta(tmp_path / "t")
    source = delta(tmp_path / "t", schema=SCHEMA)
    assert not source.take(source.start(), 10, 1).slices
    assert "no Delta table" in source.notices(source.start())[0]
    append(tmp_path / "t", range(3))
    assert drain(source)[0].height == 3
    ended = delta(tmp_path / "nowhere", schema=SCHEMA, grow=False)
    with pytest.raises(InputError, match="no Delta table"):
        ended.take(ended.start(), 1, 1)
    with pytest.raises(DeclarationError, match="unknown changes"):
        delta(tmp_path / "t", changes="ignore")  # type: ignore[arg-type]


def test_a_pipeline_from_table_to_table_reads_what_it_needs(tmp_path: Path) -> None:
    """Files of a version overlap in time, and none of their rows is late."""
    table = tmp_path / "in"
    for start in range(0, 300, 100):
        write_deltalake(table, rows(range(start, start + 100)), mode="append", partition_by=["day"])

    def declare(home: Path) -> hf.Pipeline:
        pipeline = hf.Pipeline("days")
        source = pipeline.source("rows", delta(table, grow=False), event_time="at", time_unit="s")
        kept = source.filter(pl.col("v") > 5)
        sums = kept.key_by("day").window(hf.window.tumbling("50s")).agg(n=hf.count(), total=hf.sum("v"))
        sums.sink("out", hf.sink.delta(home / "out"))
        return pipeline

    everything = rows(range(300)).filter(pl.col("v") > 5)
    expected = everything.group_by("day", window_start=pl.col("at") // 50 * 50).agg(
        n=pl.len().cast(pl.Int64), total=pl.sum("v")
    )
    for cut in (Cut(), Cut(rows=40, tasks=2, partitions=2)):
        home = tmp_path / str(cut.rows)
        run_in(home / "store", declare(home), cut)
        found = pl.read_delta(str(home / "out")).select(expected.columns)
        assert_frame_equal(found, expected, check_row_order=False)
        shutil.rmtree(home)


def test_values_of_partition_columns_come_back_in_their_types(tmp_path: Path) -> None:
    frame = pl.DataFrame(
        {
            "k": [1, 2],
            "i": [7, None],
            "b": [True, False],
            "n": pl.Series([datetime(2026, 1, 2, 3, 4, 5, 678901), None], dtype=pl.Datetime("us")),
            "z": pl.Series([datetime(2026, 1, 2), datetime(2026, 7, 2, 1)]).dt.replace_time_zone("UTC"),
            "m": pl.Series(["1.10", "2.25"]).cast(pl.Decimal(10, 2)),
            "t": ["a=b/ü%", " "],
        }
    )
    write_deltalake(tmp_path / "theirs", frame, partition_by=["i", "b", "n", "z", "t"])
    sink = hf.sink.delta(tmp_path / "ours", partition_by=["i", "b", "n", "z", "m", "t"])
    sink.attach(hf.sink.Owner("store", "pipeline", "out"))
    sink.bind(frame.schema)
    sink.publish(1, [sink.prepare(frame, epoch=1, part="0", attempt="a")])
    for table in ("theirs", "ours"):
        assert_frame_equal(drain(delta(tmp_path / table))[0], frame, check_row_order=False)
