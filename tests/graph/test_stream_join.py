"""Windowed joins of two streams against a nested loop."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from oracles import assert_same_rows, new_pipeline, open_windows, seen_watermarks, source, to_sink

import holdfast as hf
from harness import run
from strategies import SECONDS, cuts, examples, streams, window_shapes


def joined(left, right, keys, shape, how):
    """Rows with equal keys in the same window, as (ts, k, s, v, ts_right, [k_right], x, start, end)."""

    def spread(rows):
        return [(row, window) for row in seen_watermarks(rows) for window in open_windows(row, *shape)]

    lefts, rights = spread(left), spread(right)
    out = []
    taken = set()
    for row, window in lefts:
        matches = [
            index
            for index, (other, its) in enumerate(rights)
            if its == window and all(row[key] is not None and row[key] == other[key] for key in keys)
        ]
        taken.update(matches)
        out += [line(row, rights[index][0], keys, window) for index in matches]
        if not matches and how in ("left", "full"):
            out.append(line(row, None, keys, window))
    if how == "full":
        out += [line(None, row, keys, window) for index, (row, window) in enumerate(rights) if index not in taken]
    return out


def line(left, right, keys, window):
    row = {name: None if left is None else left[name] for name in ("ts", "k", "s", "v")}
    its = {name: None if right is None else right[name] for name in ("ts", "k", "s", "x")}
    for key in keys:
        row[key] = its[key] if left is None else row[key]
    behind = {f"{name}_right" if name in row else name: value for name, value in its.items() if name not in keys}
    return (*row.values(), *behind.values(), *window)


@pytest.mark.parametrize("how", ["inner", "left", "full"])
@examples(8)
@given(
    left=streams("k", "s", "v", most=20, clocks=(SECONDS,)),
    right=streams("k", "s", "x", most=20, clocks=(SECONDS,)),
    keys=st.sampled_from([("k",), ("s",), ("k", "s")]),
    shape=window_shapes,
    cut=cuts,
)
def test_joins_do_not_depend_on_the_cut(how, left, right, keys, shape, cut):
    pipeline = new_pipeline()
    ours, theirs = source(pipeline, left, "left"), source(pipeline, right, "right")
    to_sink(ours.join(theirs, on=list(keys), window=hf.window.sliding(*shape), how=how))
    outcome = run(pipeline, cut)
    assert_same_rows(outcome.sinks["out"], joined(left, right, keys, shape, how))
    late = sum(1 for side in (left, right) for row in seen_watermarks(side) if not open_windows(row, *shape))
    assert outcome.totals["late"] == late
    assert outcome.records[-1].state_rows() == 0


@examples(8)
@given(stream=streams("k", "s", "v", most=15, clocks=(SECONDS,)), shape=window_shapes, cut=cuts)
def test_a_stream_can_be_joined_with_itself(stream, shape, cut):
    pipeline = new_pipeline()
    rows = source(pipeline, stream)
    to_sink(rows.join(rows.select("ts", "k", w="v"), on="k", window=hf.window.sliding(*shape)))
    expected = [
        (a["ts"], a["k"], a["s"], a["v"], b["ts"], b["v"], *window)
        for a in seen_watermarks(stream)
        for window in open_windows(a, *shape)
        for b in seen_watermarks(stream)
        if a["k"] is not None and a["k"] == b["k"] and window in open_windows(b, *shape)
    ]
    assert_same_rows(run(pipeline, cut).sinks["out"], expected)
