"""An Iceberg table as a source: the rows that are there, then those that each snapshot adds, always the same."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import polars as pl
import pytest
from drain import drain
from polars.testing import assert_frame_equal
from pyiceberg.catalog import load_catalog
from pyiceberg.table import Table

import holdfast as hf
from harness import Cut, run_in
from holdfast.connect.sources import iceberg_source
from holdfast.errors import DeclarationError, InputError
from holdfast.source import iceberg

SCHEMA = pl.Schema({"at": pl.Int64, "shop": pl.String, "v": pl.Float64})


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(iceberg_source, "_LOOK_SECONDS", 0.0)


@pytest.fixture
def catalog(tmp_path: Path) -> Iterator[dict[str, str]]:
    return {"type": "sql", "uri": f"sqlite:///{tmp_path / 'c.db'}", "warehouse": f"file://{tmp_path / 'w'}"}


def rows(keys: Sequence[int]) -> pl.DataFrame:
    return pl.DataFrame({"at": keys, "shop": [f"s{k % 3}" for k in keys], "v": [k / 2 for k in keys]}, schema=SCHEMA)


def table(catalog: dict[str, str]) -> Table:
    opened = load_catalog("default", **catalog)
    opened.create_namespace_if_not_exists("db")
    arrow = rows([]).to_arrow(compat_level=pl.CompatLevel.oldest()).schema
    return opened.create_table_if_not_exists("db.t", schema=arrow)


def append(catalog: dict[str, str], keys: Sequence[int]) -> Table:
    found = table(catalog)
    found.append(rows(keys).to_arrow(compat_level=pl.CompatLevel.oldest()))
    return found


@pytest.mark.parametrize(("count", "pieces"), [(10_000, 1), (7, 3)])
def test_the_contract_is_kept_however_the_table_is_cut(catalog: dict[str, str], count: int, pieces: int) -> None:
    table(catalog)
    source = iceberg("db.t", catalog)
    assert not source.take(source.start(), 10, 1).slices
    for start in (0, 50):
        append(catalog, range(start, start + 50))
    seen, position = drain(source, rows=count, pieces=pieces)
    assert_frame_equal(seen, rows(range(100)), check_row_order=False)
    assert source.settled(position)
    append(catalog, range(100, 120))
    append(catalog, range(120, 130))
    more, _ = drain(source, rows=count, pieces=pieces, position=position)
    assert_frame_equal(more, rows(range(100, 130)))


def test_an_epoch_has_rows_of_one_snapshot_or_of_many_as_the_order_says(catalog: dict[str, str]) -> None:
    first = append(catalog, range(10)).current_snapshot()
    assert first is not None
    for start in (10, 20):
        append(catalog, range(start, start + 10))
    source = iceberg("db.t", catalog, after=first.snapshot_id)
    assert source.take(source.start(), 1000, 1).slices[0].rows == 10
    ordered = iceberg("db.t", catalog, after=first.snapshot_id, order="file")
    assert ordered.take(ordered.start(), 1000, 1).slices[0].rows == 20


def test_a_table_that_does_not_grow_ends_at_the_snapshot_it_had(catalog: dict[str, str]) -> None:
    append(catalog, range(10))
    source = iceberg("db.t", catalog, grow=False)
    take = source.take(source.start(), 4, 1)
    append(catalog, range(10, 20))
    rest, position = drain(source, rows=4, position=take.position)
    assert rest.height == 6
    assert source.take(position, 1, 1).done


def test_a_snapshot_that_changes_rows_is_told_or_passed_over(catalog: dict[str, str]) -> None:
    first = append(catalog, range(10)).current_snapshot()
    assert first is not None
    append(catalog, range(10, 20))
    table(catalog).delete("at < 5")
    append(catalog, range(20, 30))
    with pytest.raises(InputError, match=r"snapshot \d+ .*deletes or changes"):
        drain(iceberg("db.t", catalog, after=first.snapshot_id))
    assert drain(iceberg("db.t", catalog, after=first.snapshot_id, changes="skip"))[0].equals(rows(range(10, 30)))
    assert drain(iceberg("db.t", catalog))[0].sort("at").equals(rows(range(5, 30)))


def test_snapshots_that_were_expired_before_they_were_read_are_told(catalog: dict[str, str]) -> None:
    first = append(catalog, range(10)).current_snapshot()
    assert first is not None
    found = append(catalog, range(10, 20))
    time.sleep(0.01)
    found.maintenance.expire_snapshots().by_id(first.snapshot_id).commit()
    with pytest.raises(
        InputError, match=r"which was read last, is not an ancestor of the current one(.|\n)*keep snapshots for longer"
    ):
        drain(iceberg("db.t", catalog, after=first.snapshot_id))
    source = iceberg("db.t", catalog)
    take = source.take(source.start(), 1, 1)
    Path(take.slices[0].where["parts"][0]["path"].removeprefix("file://")).unlink()
    with pytest.raises(InputError, match="is gone"):
        list(source.read(take.slices[0]))


def test_columns_that_came_later_or_were_renamed_are_found(catalog: dict[str, str]) -> None:
    append(catalog, [1])
    with table(catalog).update_schema() as update:
        update.rename_column("shop", "store")
        update.union_by_name(pl.DataFrame({"more": ["x"]}).to_arrow(compat_level=pl.CompatLevel.oldest()).schema)
    found = table(catalog)
    more = rows([2]).rename({"shop": "store"}).with_columns(more=pl.lit("x"))
    found.append(more.to_arrow(compat_level=pl.CompatLevel.oldest()))
    seen = drain(iceberg("db.t", catalog))[0].sort("at")
    assert seen.select("at", "store", "more").rows() == [(1, "s1", None), (2, "s2", "x")]


def test_what_is_not_there_is_told_at_declaration(catalog: dict[str, str]) -> None:
    with pytest.raises(InputError, match=r"cannot read the Iceberg table db\.t"):
        iceberg("db.t", catalog)
    with pytest.raises(DeclarationError, match="unknown order"):
        iceberg("db.t", catalog, order="version")  # type: ignore[arg-type]


def test_a_pipeline_from_table_to_table(catalog: dict[str, str], tmp_path: Path) -> None:
    for start in range(0, 300, 100):
        append(catalog, range(start, start + 100))
    pipeline = hf.Pipeline("sales")
    source = pipeline.source("rows", iceberg("db.t", catalog, grow=False), event_time="at", time_unit="s")
    kept = source.filter(pl.col("v") > 5)
    sums = kept.key_by("shop").window(hf.window.tumbling("50s")).agg(n=hf.count(), total=hf.sum("v"))
    sums.sink("out", hf.sink.iceberg("db.out", catalog, partition_by="shop"))
    run_in(tmp_path / "store", pipeline, Cut(rows=40, tasks=2, partitions=2))
    expected = rows(range(300)).filter(pl.col("v") > 5).group_by("shop", window_start=pl.col("at") // 50 * 50).agg(
        n=pl.len().cast(pl.Int64), total=pl.sum("v")
    )  # fmt: skip
    assert_frame_equal(drain(iceberg("db.out", catalog))[0].select(expected.columns), expected, check_row_order=False)
