"""Tumbling and sliding windows against the row-by-row oracle: the output depends on the stream alone, never on how
it was cut into epochs, tasks and partitions."""

from __future__ import annotations

import polars as pl
import polars.selectors as cs
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from oracles import (
    AGGREGATES,
    BOUND,
    VALUE_COLUMNS,
    assert_same_results,
    assert_same_rows,
    declared,
    extreme_row,
    group_windows,
    new_pipeline,
    results,
    seen_watermarks,
    source,
    to_sink,
)

import holdfast as hf
from harness import Cut, run
from holdfast.errors import BadRowError
from holdfast.source import memory
from strategies import SECONDS, Given, cuts, examples, streams, window_shapes

KEYS = st.sampled_from([("k",), ("k",), ("s",), ("k", "s"), ("g",), ("b", "k"), ()])
KERNEL_ONLY = ("n", "sum_v", "sum_e", "min_e", "max_f", "mean_x")
"""Aggregates of which every state column slides by an array kernel."""


def check_window(stream: Given, keys: tuple[str, ...], shape: tuple[int, int], names: list[str], cut: Cut) -> None:
    pipeline = new_pipeline()
    window = hf.window.sliding(stream.clock.ticks(shape[0]), stream.clock.ticks(shape[1]))
    rows = source(pipeline, stream)
    keyed = rows.key_by(*keys).window(window) if keys else rows.window(window)
    to_sink(keyed.agg(**declared(names)).named("windows"))
    groups, late = group_windows(seen_watermarks(stream), keys, *shape)
    outcome = run(pipeline, cut)
    assert_same_results(outcome.sinks["out"], results(groups, names), len(keys) + 2)
    assert outcome.totals["late"] == len(late)
    assert outcome.records[-1].state_rows() == 0, "state stays behind when all windows have closed"


@examples(50)
@given(
    stream=streams("k", "g", *VALUE_COLUMNS),
    keys=KEYS,
    shape=window_shapes,
    names=st.lists(st.sampled_from(sorted(AGGREGATES)), min_size=1, max_size=4, unique=True),
    cut=cuts,
)
def test_windows_do_not_depend_on_the_cut(stream, keys, shape, names, cut):
    check_window(stream, keys, shape, names, cut)


@examples(25)
@given(
    stream=streams("k", "v", "e", "f", "x", most=60),
    shape=window_shapes,
    names=st.lists(st.sampled_from(KERNEL_ONLY), min_size=1, unique=True),
    cut=cuts,
)
def test_windows_by_array_kernels(stream, shape, names, cut):
    check_window(stream, ("k",), shape, names, cut)


@pytest.mark.parametrize("name", sorted(AGGREGATES))
@examples(3)
@given(stream=streams("k", *VALUE_COLUMNS), shape=st.sampled_from([(10, 10), (10, 4), (9, 3)]), cut=cuts)
def test_every_aggregate(name, stream, shape, cut):
    check_window(stream, ("k",), shape, [name], cut)


@examples(8)
@given(stream=streams("k", *VALUE_COLUMNS, clocks=(SECONDS,)), shape=window_shapes, cut=cuts)
def test_the_row_with_the_greatest_value_comes_whole(stream, shape, cut):
    pipeline = new_pipeline()
    window = hf.window.sliding(*shape)
    to_sink(source(pipeline, stream).key_by("k").window(window).agg(best=hf.arg_max("v"), least=hf.arg_min("f")))
    groups, _ = group_windows(seen_watermarks(stream), ("k",), *shape)

    def whole(rows, by, greatest):
        row = extreme_row(rows, by, greatest)
        return None if row is None else {name: value for name, value in row.items() if name != BOUND}

    expected = [(*group, whole(rows, "v", True), whole(rows, "f", False)) for group, rows in groups.items()]
    assert_same_rows(run(pipeline, cut).sinks["out"], expected)


@examples(20)
@given(stream=streams("k", "v"), shape=window_shapes, cut=cuts)
@example(
    stream=Given(
        [{"ts": t, "k": 0, "v": 1} for t in (30, 21, 5, 29)],
        {"ts": pl.Int64(), "k": pl.Int64(), "v": pl.Int64()},
    ),
    shape=(10, 5),
    cut=Cut(1, 1, 1),
)
def test_late_rows_go_to_the_side_output_whole(stream, shape, cut):
    pipeline = new_pipeline()
    ticks = stream.clock.ticks
    windows = source(pipeline, stream).key_by("k").window(hf.window.sliding(ticks(shape[0]), ticks(shape[1])))
    counted = windows.agg(n=hf.count(), sum_v=hf.sum("v"), first=hf.first("v"))
    to_sink(counted)
    to_sink(counted.late, "late")
    groups, late = group_windows(seen_watermarks(stream), ("k",), *shape)
    outcome = run(pipeline, cut)
    names = ["n", "sum_v"]
    assert_same_results(outcome.sinks["out"].drop("first"), results(groups, names), 3)
    assert_same_rows(outcome.sinks["late"], [[v for c, v in row.items() if c != BOUND] for row in late])
    assert outcome.totals["late"] == len(late)


def test_nothing_is_allocated_for_empty_windows():
    rows = [{"ts": t * 10**15, "k": t % 3, "v": t} for t in range(-4, 5)]
    stream = Given(rows, {"ts": pl.Int64(), "k": pl.Int64(), "v": pl.Int64()})
    for shape in [(10, 10), (10, 3), (60, 1)]:
        check_window(stream, ("k",), shape, ["n", "sum_v", "last_e"][:2], Cut(3, 2, 2))


@pytest.mark.parametrize("dtype", [pl.Int32(), pl.UInt32(), pl.UInt64(), pl.Int16()])
def test_narrow_and_unsigned_time_columns_have_windows_beyond_their_range(dtype):
    top = 2**15 - 1 if dtype == pl.Int16 else 2**31 - 1
    rows = [{"ts": t, "k": 0, "v": 1} for t in (0, 3, 17, top)]
    stream = Given(rows, {"ts": dtype, "k": pl.Int64(), "v": pl.Int64()})
    check_window(stream, ("k",), (10, 5), ["n", "sum_v"], Cut(2, 1, 1))


def test_a_stream_without_rows_has_no_windows():
    stream = Given([], {"ts": pl.Int64(), "k": pl.Int64(), "v": pl.Int64()}, SECONDS)
    check_window(stream, ("k",), (10, 5), ["n", "sum_v"], Cut(3, 2, 2))


def test_a_row_without_event_time_is_an_error_that_names_the_source():
    pipeline = new_pipeline()
    frame = pl.DataFrame({"ts": [1, None], "k": [1, 2]})
    rows = pipeline.source("clicks", hf_memory(frame), event_time="ts", time_unit="s")
    to_sink(rows.key_by("k").window(hf.window.tumbling(10)).agg(n=hf.count()))
    with pytest.raises(BadRowError, match="no event time") as caught:
        run(pipeline)
    assert caught.value.operator == "clicks"
    assert caught.value.epoch == 1


def hf_memory(frame: pl.DataFrame):
    return memory(frame)


@pytest.mark.parametrize("distinct", [10, 1_000, 50_000])
def test_approx_distinct_is_within_its_error(distinct):
    frame = pl.DataFrame(
        {"ts": [i % 100 for i in range(2 * distinct)], "id": [i % distinct for i in range(2 * distinct)]}
    )
    pipeline = new_pipeline()
    rows = pipeline.source("in", hf_memory(frame), event_time="ts", time_unit="s", lateness=200)
    to_sink(rows.window(hf.window.tumbling(100)).agg(n=hf.approx_distinct("id")))
    (row,) = run(pipeline, Cut(distinct, 3, 2)).rows()
    assert abs(row[-1] - distinct) <= max(1, 0.05 * distinct)


@examples(15)
@given(stream=streams("k", "v"), shape=window_shapes, cut=cuts)
def test_operators_before_a_window_keep_what_is_known_of_lateness(stream, shape, cut):
    pipeline = new_pipeline()
    ticks = stream.clock.ticks
    rows = source(pipeline, stream).select(pl.all()).filter(pl.col("v").is_not_null())
    rows = rows.with_columns(cs.by_name("v") + 1).filter(pl.all_horizontal(pl.exclude("k").is_not_null()))
    rows = rows.map_batches(lambda frame: frame.with_columns(pl.col("v") - 1))
    to_sink(
        rows.key_by("k")
        .window(hf.window.sliding(ticks(shape[0]), ticks(shape[1])))
        .agg(n=hf.count(), sum_v=hf.sum("v"))
    )
    kept = [row for row in seen_watermarks(stream) if row["v"] is not None]
    groups, late = group_windows(kept, ("k",), *shape)
    outcome = run(pipeline, cut)
    assert_same_results(outcome.sinks["out"], results(groups, ["n", "sum_v"]), 3)
    assert outcome.totals["late"] == len(late)
