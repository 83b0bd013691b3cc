"""The oracles on inputs small enough to work out by hand. Slides are the size or a fraction of it, for few windows."""

from __future__ import annotations

from typing import Any

import polars as pl
import pytest

from holdfast_lab.workloads import first_difference, oracle, query, same_rows


def events(name: str, **columns: list[Any]) -> pl.DataFrame:
    """Rows of the query's dataset with these columns; the others are zero or empty."""
    schema = query(name).dataset.load(1).schema
    rows = len(next(iter(columns.values())))
    blank = {c: [""] * rows if t == pl.String else [0] * rows for c, t in schema.items()}
    return pl.DataFrame({**blank, **columns}).select(schema.names()).cast(schema)  # type: ignore[arg-type]


def rows_of(name: str, frame: pl.DataFrame, slide: int | None = None) -> list[tuple[Any, ...]]:
    return sorted(oracle(name, frame, slide=slide).rows())


def test_cm1_sums_cpu_by_category_in_overlapping_windows() -> None:
    frame = events("CM1", timestamp=[10, 40, 70], category=[1, 1, 2], cpu=[0.5, 0.25, 0.75])
    assert rows_of("CM1", frame, 30) == [
        (1, -30, 30, 0.5),
        (1, 0, 60, 0.75),
        (1, 30, 90, 0.25),
        (2, 30, 90, 0.75),
        (2, 60, 120, 0.75),
    ]


def test_every_slide_with_a_row_in_the_window_gives_a_result() -> None:
    frame = events("CM1", timestamp=[100], category=[1], cpu=[0.5])
    assert [row[2] for row in rows_of("CM1", frame)] == list(range(101, 161))


def test_cm2_averages_cpu_of_failed_tasks_by_job() -> None:
    frame = events("CM2", timestamp=[1, 2, 3, 4], job_id=[7, 7, 7, 8], event_type=[3, 3, 1, 3], cpu=[0.5, 0.25, 9, 1])
    assert rows_of("CM2", frame, 60) == [(7, 0, 60, 0.375), (8, 0, 60, 1.0)]


def test_sg1_averages_everything() -> None:
    frame = events("SG1", timestamp=[0, 3599, 3600], value=[1, 3, 8])
    assert rows_of("SG1", frame, 3600) == [(0, 3600, 2.0), (3600, 7200, 8.0)]


def test_sg2_averages_by_plug() -> None:
    frame = events("SG2", timestamp=[0, 1, 2, 64], plug=[1, 1, 1, 1], household=[0, 0, 1, 0], value=[1, 2, 5, 6])
    assert rows_of("SG2", frame, 64) == [
        (1, 0, 0, -64, 64, 1.5),
        (1, 0, 0, 0, 128, 3.0),
        (1, 0, 0, 64, 192, 6.0),
        (1, 1, 0, -64, 64, 5.0),
        (1, 1, 0, 0, 128, 5.0),
    ]


def test_sg3_counts_plugs_above_the_mean_of_all_by_house() -> None:
    # Means of all up to an end: 16: (1+9)/2 = 5; 32 to 144: (1+9+2+8)/4 = 5. The plugs of house 1 have 9 and 8.
    frame = events("SG3", timestamp=[0, 0, 16, 16], house=[0, 1, 0, 1], plug=[0, 0, 1, 1], value=[1, 9, 2, 8])
    assert rows_of("SG3", frame, 16) == [
        (1, 0, 16, 1),
        *((1, end - 16, end, 2) for end in range(32, 144, 16)),
        (1, 128, 144, 1),  # the plug seen at 16 is alone in [16, 144), the mean of all still has all four
    ]


def test_lrb1_finds_segments_slower_than_40() -> None:
    frame = events("LRB1", timestamp=[0, 1, 2, 3], position=[0, 5279, 5280, 5281], speed=[30, 48, 40, 40])
    assert rows_of("LRB1", frame, 300) == [(0, 0, 0, 0, 300, 39.0)]


def test_lrb2_counts_reports_by_vehicle() -> None:
    frame = events("LRB2", timestamp=[0, 10, 20, 30], vehicle=[5, 5, 6, 5], position=[10, 20, 30, 40])
    assert rows_of("LRB2", frame, 30) == [(0, 0, 0, 5, 0, 30, 2), (0, 0, 0, 5, 30, 60, 1), (0, 0, 0, 6, 0, 30, 1)]


def test_lrb3_counts_vehicles_by_segment_in_each_result_of_lrb2() -> None:
    frame = events("LRB3", timestamp=[0, 10, 20, 30], vehicle=[5, 5, 6, 5], position=[10, 20, 30, 40])
    assert rows_of("LRB3", frame, 15) == [
        (0, 0, 0, 0, 15, 1),  # of window [-15, 15): vehicle 5
        (0, 0, 0, 15, 30, 2),  # of window [0, 30): 5 and 6
        (0, 0, 0, 30, 45, 2),  # of window [15, 45): 6 and 5
        (0, 0, 0, 45, 60, 1),  # of window [30, 60): 5
    ]


def test_ysb_counts_views_by_campaign() -> None:
    frame = events("YSB", event_time=[0, 9_999, 10_000, 3], ad_id=[0, 9, 0, 10], event_type=[0, 0, 0, 1])
    assert rows_of("YSB", frame) == [(0, 0, 10_000, 2, 9_999), (0, 10_000, 20_000, 1, 10_000)]


def test_nq_keeps_all_auctions_with_the_most_bids() -> None:
    frame = events("NQ", date_time=[0, 1, 2, 3, 4, 60_000], auction=[1, 2, 1, 2, 3, 3])
    assert rows_of("NQ", frame, 60) == [(1, 60_000, 2), (2, 60_000, 2), (3, 120_000, 1)]


def test_sm_averages_three_readings() -> None:
    frame = events("SM", timestamp=[0, 59_999_999, 60_000_000], mf01=[1, 2, 7], mf02=[3, 5, 7], mf03=[0, 0, 1])
    assert rows_of("SM", frame, 60) == [(0, 60_000_000, 1.5, 4.0, 0.0), (60_000_000, 120_000_000, 7.0, 7.0, 1.0)]


def test_words_are_counted() -> None:
    frame = events("words", time=[0, 29_999, 30_000], text=["to be or not ", "to be ", "be "])
    assert rows_of("words", frame) == [
        ("be", 0, 30_000, 2),
        ("be", 30_000, 60_000, 1),
        ("not", 0, 30_000, 1),
        ("or", 0, 30_000, 1),
        ("to", 0, 30_000, 2),
    ]


def test_languages_are_ranked_and_equal_ones_ordered_by_name() -> None:
    frame = events("topk", view_time=[0, 1, 2, 3], language=["de", "en", "en", "fr"])
    assert rows_of("topk", frame) == [(0, 30_000, ["en", "fr", "de"], [2, 1, 1])]


def test_count_windows_that_are_not_full_give_nothing() -> None:
    frame = events("cec", item_time=list(range(25)), item_id=[4] * 25, item_price=list(range(25)))
    assert rows_of("cec", frame) == [(4, 0, 4.5), (4, 1, 14.5)]


def test_running_totals_come_at_every_tenth_row_of_a_key() -> None:
    frame = events("keyed", event_time=list(range(22)), key=[0, 1] * 11, value=[1, 5] * 11)
    assert rows_of("keyed", frame) == [(0, 18, 10, 10), (1, 19, 10, 50)]


@pytest.mark.parametrize("name", ["CM1", "SG1", "SG3", "YSB", "NQ", "topk", "cec"])
def test_no_input_gives_no_rows(name: str) -> None:
    blank = query(name).dataset.load(1).clear()
    assert oracle(name, blank).is_empty()


def test_same_rows_in_another_order_are_the_same() -> None:
    left = pl.DataFrame({"k": [1, 2], "x": [0.1 + 0.2, 1e12]})
    right = pl.DataFrame({"k": [2, 1], "x": [1e12 + 1, 0.3]})
    assert same_rows(left, right)
    assert not same_rows(left, right, 1e-15)


@pytest.mark.parametrize(
    ("actual", "told"),
    [
        ({"k": [1, 3], "x": [1.0, 2.0]}, "{'k': 3, 'x': 2.0}, expected {'k': 2, 'x': 2.0}"),
        ({"k": [1, 2], "x": [1.0, 2.1]}, "{'k': 2, 'x': 2.1}, expected {'k': 2, 'x': 2.0}"),
        ({"k": [1], "x": [1.0]}, "1 rows, expected 2; missing, from: {'k': 2"),
        ({"k": [1, 2, 2], "x": [1.0, 2.0, 2.0]}, "3 rows, expected 2; too much"),
        ({"k": [1, 2], "y": [1.0, 2.0]}, "columns are"),
        ({"k": [1, 2], "x": [1.0, None]}, "expected {'k': 2, 'x': 2.0}"),
    ],
)
def test_first_difference_is_told(actual: dict[str, list[Any]], told: str) -> None:
    difference = first_difference(pl.DataFrame(actual), pl.DataFrame({"k": [1, 2], "x": [1.0, 2.0]}))
    assert difference is not None
    assert told in difference
