"""Count windows against the oracle: windows of n rows of a key in order of arrival, whatever the cut."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from oracles import (
    AGGREGATES,
    VALUE_COLUMNS,
    assert_same_results,
    declared,
    group_counts,
    new_pipeline,
    results,
    source,
    to_sink,
)

import holdfast as hf
from harness import run
from holdfast.source import memory
from strategies import cuts, examples, streams

SHAPES = st.sampled_from([(1, 1), (2, 2), (3, 1), (4, 2), (5, 3), (7, 7), (6, 4)])


def check_counts(stream, keys, shape, names, cut, timed=True):
    pipeline = new_pipeline()
    rows = source(pipeline, stream) if timed else pipeline.source("in", memory(stream.frame()))
    window = hf.window.count(*shape)
    to_sink((rows.key_by(*keys).window(window) if keys else rows.window(window)).agg(**declared(names)))
    groups = group_counts(stream.rows, keys, *shape)
    assert_same_results(run(pipeline, cut).sinks["out"], results(groups, names), len(keys) + 1)


@examples(35)
@given(
    stream=streams("k", "g", *VALUE_COLUMNS),
    keys=st.sampled_from([("k",), ("k",), ("s",), ("k", "s"), ("g",), ()]),
    shape=SHAPES,
    names=st.lists(st.sampled_from(sorted(AGGREGATES)), min_size=1, max_size=3, unique=True),
    cut=cuts,
)
def test_count_windows_do_not_depend_on_the_cut(stream, keys, shape, names, cut):
    check_counts(stream, keys, shape, names, cut)


@pytest.mark.parametrize("name", sorted(AGGREGATES))
@examples(1)
@given(stream=streams("k", *VALUE_COLUMNS), shape=SHAPES, cut=cuts)
def test_every_aggregate_in_a_count_window(name, stream, shape, cut):
    check_counts(stream, ("k",), shape, [name], cut)


@examples(8)
@given(stream=streams("k", "v"), shape=SHAPES, cut=cuts)
def test_count_windows_need_no_event_time(stream, shape, cut):
    check_counts(stream, ("k",), shape, ["n", "sum_v", "spread"], cut, timed=False)
