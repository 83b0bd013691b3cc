"""The load of key intervals: what is counted, which keys are named, and how loads are put together."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.hidden_columns import POSITION
from holdfast.state.key_load import KeyLoad, measure, merged
from holdfast.state.manifest import FULL_INTERVAL, Interval
from holdfast.state.position import key_positions
from holdfast.state.routing import Routing
from holdfast.stored_json import JsonForm

END = 1 << 64


def arrivals(keys: list[int]) -> pl.DataFrame:
    column = pl.Series("k", keys, dtype=pl.Int64)
    return pl.DataFrame([column, pl.Series(POSITION, key_positions([column]))])


def by_partition(keys: list[int], routing: Routing) -> list[KeyLoad]:
    frame = arrivals(keys)
    parts = routing.assign(frame[POSITION].to_numpy())
    return [measure([frame.filter(parts == n)], ["k"], routing.interval(n)) for n in range(routing.partitions)]


@given(st.lists(st.integers(0, 300), max_size=400), st.integers(1, 7))
def test_every_row_is_counted_once_wherever_it_arrives(keys: list[int], partitions: int) -> None:
    loads = by_partition(keys, Routing.even(partitions))
    assert sum(load.rows for load in loads) == len(keys)
    assert [sum(load.buckets) for load in loads] == [load.rows for load in loads]
    profile = merged(loads)
    assert profile.rows == pytest.approx(len(keys))
    assert profile.within(FULL_INTERVAL) == pytest.approx(len(keys))
    assert profile.cells[0].lo == 0
    assert profile.cells[-1].hi == END
    assert all(one.hi == other.lo for one, other in pairwise(profile.cells))


def test_a_load_survives_json() -> None:
    load = measure([arrivals([7] * 50 + list(range(100)))], ["k"], FULL_INTERVAL)
    assert load.heavy
    assert JsonForm(KeyLoad, "a load").decode(JsonForm(KeyLoad, "a load").encode(load)) == load


@pytest.mark.parametrize("rows", [1_000, 200_000])
def test_a_hot_key_is_named_with_its_rows(rows: int) -> None:
    keys = [7 if i % 5 else i for i in range(rows)]
    frame = arrivals(keys)
    load = measure([frame[: rows // 3], frame[:0], frame[rows // 3 :]], ["k"], FULL_INTERVAL)
    [heavy] = load.heavy
    assert heavy.key == "k=7"
    assert heavy.rows == keys.count(7)
    assert heavy.position == key_positions([pl.Series([7])])[0]


def test_keys_that_come_in_turns_are_found() -> None:
    load = measure([arrivals([i % 5 for i in range(100_000)])], ["k"], FULL_INTERVAL)
    assert [heavy.rows for heavy in load.heavy] == [20_000] * 3


def test_many_even_keys_have_no_hot_one() -> None:
    load = measure([arrivals(list(range(5_000)) * 4)], ["k"], FULL_INTERVAL)
    assert not load.heavy
    assert len(load.buckets) == 64
    assert max(load.buckets) < 2 * min(load.buckets)


def test_several_key_columns_and_long_keys_are_readable() -> None:
    frame = pl.DataFrame({"user": ["ann"] * 20, "page": ["x" * 200] * 20, POSITION: np.full(20, 9, dtype=np.uint64)})
    [heavy] = measure([frame], ["user", "page"], FULL_INTERVAL).heavy
    assert heavy.key.startswith("user='ann', page='xxx")
    assert len(heavy.key) <= 80


@pytest.mark.parametrize("interval", [Interval(9, 10), Interval(5, 12), Interval(0, 64), Interval(9, END)])
def test_short_and_uneven_intervals_have_buckets_of_their_own(interval: Interval) -> None:
    frame = pl.DataFrame({"k": [1] * 20, POSITION: np.full(20, 9, dtype=np.uint64)})
    load = measure([frame], ["k"], interval)
    profile = merged([load])
    assert [(heavy.position, heavy.rows) for heavy in profile.heavy] == [(9, 20)]
    assert profile.rows == 20
    assert profile.within(Interval(9, 10)) == 20


def test_loads_of_different_routings_add_up() -> None:
    keys = list(range(4_000))
    before, after = by_partition(keys, Routing.even(2)), by_partition(keys, Routing((0, 1 << 62, 3 << 62)))
    profile = merged([*before, *after])
    assert profile.rows == pytest.approx(8_000)
    for number in range(4):
        quarter = Interval(number << 62, (number + 1) << 62)
        assert profile.within(quarter) == pytest.approx(2_000, rel=0.2)


def test_nothing_measured_is_no_load() -> None:
    assert merged([]).rows == 0
    assert merged([measure([arrivals([])], ["k"], FULL_INTERVAL)]).rows == 0
