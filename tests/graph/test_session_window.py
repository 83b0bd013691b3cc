"""Session windows against the oracle: bursts of a key's rows, whatever the cut."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from oracles import (
    AGGREGATES,
    BOUND,
    VALUE_COLUMNS,
    assert_same_results,
    assert_same_rows,
    declared,
    group_sessions,
    new_pipeline,
    results,
    seen_watermarks,
    source,
    to_sink,
)

import holdfast as hf
from harness import run
from strategies import cuts, examples, streams

GAPS = st.sampled_from([1, 3, 10, 50])


def check_sessions(stream, keys, gap, names, cut, late=False):
    pipeline = new_pipeline()
    rows = source(pipeline, stream)
    window = hf.window.session(stream.clock.ticks(gap))
    sessions = (rows.key_by(*keys).window(window) if keys else rows.window(window)).agg(**declared(names))
    to_sink(sessions)
    if late:
        to_sink(sessions.late, "late")
    groups, behind = group_sessions(seen_watermarks(stream), keys, gap)
    outcome = run(pipeline, cut)
    assert_same_results(outcome.sinks["out"], results(groups, names), len(keys) + 2)
    assert outcome.totals["late"] == len(behind)
    if late:
        assert_same_rows(outcome.sinks["late"], [[v for c, v in row.items() if c != BOUND] for row in behind])


@examples(35)
@given(
    stream=streams("k", "g", *VALUE_COLUMNS),
    keys=st.sampled_from([("k",), ("k",), ("s",), ("k", "s"), ("g",), ()]),
    gap=GAPS,
    names=st.lists(st.sampled_from(sorted(AGGREGATES)), min_size=1, max_size=3, unique=True),
    cut=cuts,
)
def test_sessions_do_not_depend_on_the_cut(stream, keys, gap, names, cut):
    check_sessions(stream, keys, gap, names, cut)


@pytest.mark.parametrize("name", sorted(AGGREGATES))
@examples(1)
@given(stream=streams("k", *VALUE_COLUMNS), gap=GAPS, cut=cuts)
def test_every_aggregate_in_a_session(name, stream, gap, cut):
    check_sessions(stream, ("k",), gap, [name], cut)


@examples(12)
@given(stream=streams("k", "v"), gap=GAPS, cut=cuts)
def test_rows_behind_the_watermark_go_to_the_side_output(stream, gap, cut):
    check_sessions(stream, ("k",), gap, ["n", "sum_v"], cut, late=True)
