"""Datasets load with their types, in order of time, and generated ones are the same for the same seed."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

from holdfast.errors import CorruptFileError, HoldfastError
from holdfast_lab.workloads import DATASETS, dataset
from holdfast_lab.workloads.datasets import DATA_VARIABLE, smart_grid
from holdfast_lab.workloads.synthetic import (
    YSB_CAMPAIGNS,
    cec_items,
    keyed_events,
    nexmark_bids,
    sentences,
    ysb_ads,
    ysb_events,
)

WHOLE = Path(__file__).resolve().parents[4] / "shared" / "data"
"""The whole files, where they lie beside the project."""

REAL = {name: dataset for name, dataset in DATASETS.items() if dataset.real is not None}
GENERATED = {name: dataset for name, dataset in DATASETS.items() if dataset.generate is not None}


@pytest.fixture(autouse=True)
def _samples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(DATA_VARIABLE, raising=False)


@pytest.mark.parametrize("name", DATASETS)
def test_events_are_in_order_of_an_integer_time(name: str) -> None:
    data = DATASETS[name]
    frame = data.load()
    assert frame.height > 200
    assert frame.schema[data.event_time] == pl.Int64
    assert frame[data.event_time].is_sorted()
    assert frame.null_count().sum_horizontal().item() == 0


@pytest.mark.parametrize(("name", "rows"), [("cm", 16_385), ("sg", 33_628), ("lrb", 16_384), ("sm", 17_000)])
@pytest.mark.skipif(not WHOLE.is_dir(), reason="the whole files are not here")
def test_whole_files_load_from_a_directory(name: str, rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = DATASETS[name].load(directory=WHOLE)
    assert whole.height == rows
    assert whole.schema == DATASETS[name].load().schema
    assert whole[DATASETS[name].event_time].is_sorted()
    monkeypatch.setenv(DATA_VARIABLE, str(WHOLE))
    assert DATASETS[name].load().equals(whole)


@pytest.mark.parametrize(
    ("name", "bytes_"), [("cm", 64), ("sg", 32), ("lrb", 32), ("ysb", 128), ("nq", 128), ("sm", 64)]
)
def test_tuple_sizes_are_the_papers(name: str, bytes_: int) -> None:
    assert DATASETS[name].tuple_bytes == bytes_


def test_sensor_times_are_microseconds() -> None:
    frame = DATASETS["sm"].load(1)
    assert frame["timestamp"][0] == 1_329_929_188_967_032  # 2012-02-22T16:46:28.9670320


@pytest.mark.parametrize("name", REAL)
def test_replayed_rows_follow_the_rows_before(name: str) -> None:
    data = REAL[name]
    frame = data.load()
    second = {"s": 1, "ms": 1_000, "us": 1_000_000}[data.time_unit]
    period = data.period(frame)
    times = frame[data.event_time]
    assert period % second == 0
    assert times[0] + period > times[-1]


@pytest.mark.parametrize("name", GENERATED)
def test_generated_rows_depend_on_the_seed_only(name: str) -> None:
    data = GENERATED[name]
    assert data.load(500, seed=1).equals(data.load(500, seed=1))
    assert not data.load(500, seed=1).equals(data.load(500, seed=2))


def test_ad_events_go_round_their_types() -> None:
    frame = ysb_events(15)
    assert frame["event_type"].to_list() == [0, 1, 2] * 5
    assert frame["ad_type"].to_list() == [0, 1, 2, 3, 4] * 3
    assert len(frame.columns) == 7


def test_ads_are_spread_evenly_over_campaigns() -> None:
    sizes = ysb_ads().group_by("campaign_id").len()
    assert sizes.height == YSB_CAMPAIGNS
    assert sizes["len"].to_list() == [10] * YSB_CAMPAIGNS


def test_half_of_the_bids_go_to_hot_auctions() -> None:
    frame = nexmark_bids(10_000)
    top = frame["auction"].value_counts().sort("count", descending=True)
    assert top["count"][0] > 4_000
    assert len(frame.columns) == 9


def test_sentences_have_140_bytes_and_the_words_asked_for() -> None:
    frame = sentences(2_000, distinct_words=50)
    assert frame["text"].str.len_bytes().unique().to_list() == [140]
    assert frame["text"].str.strip_chars().str.split(" ").explode().n_unique() == 50


def test_items_and_keys_are_as_many_as_asked_for() -> None:
    items = cec_items(1_000, items=2)
    assert items["item_id"].unique().sort().to_list() == [0, 1]
    assert 8 * 3 + items["padding"].str.len_bytes()[0] == 100
    assert keyed_events(10_000, keys=10)["key"].n_unique() == 10


def test_missing_file_names_the_cure(tmp_path: Path) -> None:
    with pytest.raises(HoldfastError, match=DATA_VARIABLE):
        smart_grid(tmp_path)


def test_short_row_is_refused(tmp_path: Path) -> None:
    (tmp_path / "smart-grid.txt").write_text("1 2.0 0 1 1 1\n2 2.0\n")
    with pytest.raises(CorruptFileError, match="row 2"):
        smart_grid(tmp_path)


def test_rows_out_of_order_are_sorted_and_equal_times_keep_their_order(tmp_path: Path) -> None:
    (tmp_path / "smart-grid.txt").write_text("2 1.0 0 1 1 1\n1 2.0 0 1 1 1\n1 3.0 0 1 1 1\n")
    assert smart_grid(tmp_path)["value"].to_list() == [2.0, 3.0, 1.0]


def test_unknown_dataset_lists_the_names() -> None:
    with pytest.raises(HoldfastError, match="cm, sg, lrb"):
        dataset("weather")
