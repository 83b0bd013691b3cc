"""Rows that repeat, against plain Python: which are left out depends on the stream alone, or on the clock of plans."""

from __future__ import annotations

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from oracles import (
    BOUND,
    assert_same_results,
    assert_same_rows,
    canonical,
    group_windows,
    new_pipeline,
    results,
    seen_watermarks,
    source,
    to_sink,
)

import holdfast as hf
from harness import Cut, Stepping, run
from holdfast.errors import DeclarationError, PipelineChangedError, UnboundedStateError, WrongTypeError
from holdfast.plan.program import compile_program
from holdfast.plan.shape import check_shape, shape_of_program
from holdfast.testkit.quick_store import quick_store
from strategies import SECONDS, Given, cuts, examples, streams

WITHIN = st.sampled_from([0, 1, 5, 30])


def first_rows(given, keys, within):
    """Row by row: one is left out if its time lies at most `within` after that of the row that was put out."""
    met = {}
    found = []
    for row in seen_watermarks(given):
        key = tuple(canonical(row[name]) for name in keys)
        now = row["ts"] if row[BOUND] is None else max(row["ts"], row[BOUND])
        if key not in met or (within is not None and now > met[key] + within):
            met[key] = now
            found.append(row)
    return found


def plain(rows):
    return [[value for name, value in row.items() if name != BOUND] for row in rows]


@examples(12)
@given(
    stream=streams("k", "s", "g", "v"),
    keys=st.sampled_from([("k",), ("s",), ("k", "s"), ("g",)]),
    within=WITHIN,
    cut=cuts,
)
def test_which_rows_are_left_out_does_not_depend_on_the_cut(stream, keys, within, cut):
    pipeline = new_pipeline()
    to_sink(source(pipeline, stream).deduplicate(*keys, within=stream.clock.ticks(within)))
    assert_same_rows(run(pipeline, cut).sinks["out"], plain(first_rows(stream, keys, within)))


@examples(8)
@given(stream=streams("k", "v"), cut=cuts)
def test_keys_may_be_kept_for_ever(stream, cut):
    pipeline = new_pipeline()
    to_sink(source(pipeline, stream).deduplicate("k", keep_forever=True))
    assert_same_rows(run(pipeline, cut).sinks["out"], plain(first_rows(stream, ("k",), None)))


@examples(8)
@given(stream=streams("k", "v", clocks=(SECONDS,)), within=WITHIN, shape=st.sampled_from([(10, 10), (10, 4)]), cut=cuts)
def test_windows_behind_it_count_first_rows_and_know_which_are_late(stream, within, shape, cut):
    pipeline = new_pipeline()
    rows = source(pipeline, stream).deduplicate("k", "v", within=within)
    to_sink(rows.key_by("k").window(hf.window.sliding(*shape)).agg(n=hf.count(), sum_v=hf.sum("v")))
    groups, late = group_windows(first_rows(stream, ("k", "v"), within), ("k",), *shape)
    outcome = run(pipeline, cut)
    assert_same_results(outcome.sinks["out"], results(groups, ["n", "sum_v"]), 3)
    assert outcome.totals["late"] == len(late)


@examples(6)
@given(stream=streams("k", "v", clocks=(SECONDS,)), within=WITHIN, cut=cuts)
def test_results_of_windows_can_be_deduplicated(stream, within, cut):
    def outcome(cut):
        pipeline = new_pipeline()
        counted = source(pipeline, stream).key_by("k").window(hf.window.tumbling(5)).agg(n=hf.count())
        to_sink(counted.deduplicate("n", within=within))
        return run(pipeline, cut)

    assert_same_rows(outcome(cut).sinks["out"], outcome(Cut()).rows())


@examples(12)
@given(
    keys=st.lists(st.none() | st.integers(0, 3), max_size=30),
    steps=st.lists(st.sampled_from([-30.0, 0.0, 0.5, 1.0, 4.0]), min_size=1, max_size=12),
    rows=st.integers(1, 4),
    cut=cuts,
)
def test_by_the_clock_a_row_has_the_time_of_its_plan(keys, steps, rows, cut):
    """A clock that is set back stands still."""
    frame = pl.DataFrame({"k": pl.Series(keys, dtype=pl.Int64)}).with_row_index("i")
    pipeline = new_pipeline()
    to_sink(pipeline.source("in", hf.source.memory(frame)).deduplicate("k", ttl="2s"))
    now = [100.0]

    def passing(loop):
        now[0] += steps[loop.machine.planned % len(steps)] / 8

    cut = Cut(rows, cut.tasks, cut.partitions, cut.scales, cut.merges)
    with quick_store() as store:
        stepping = Stepping(store.root, pipeline, cut, clock=lambda: now[0], meta=store.meta(), follow=passing)
        outcome = stepping.to_the_end()
    met, expected, clocks = {}, [], [plan.now for plan in outcome.plans]
    assert clocks == sorted(clocks)
    assert [record.clock for record in outcome.records[1:]] == clocks
    left = list(enumerate(keys))
    for plan in outcome.plans:
        for number, key in left[: plan.rows_of("in")]:
            if key not in met or round(plan.now * 1e6) > met[key] + 2_000_000:
                met[key] = round(plan.now * 1e6)
                expected.append((number, key))
        left = left[plan.rows_of("in") :]
    assert_same_rows(outcome.sinks["out"], expected)


def test_merges_forget_keys_that_no_row_can_repeat():
    rows = [{"ts": t, "k": t} for t in range(400)]
    stream = Given(rows, {"ts": pl.Int64(), "k": pl.Int64()})
    pipeline = new_pipeline()
    to_sink(source(pipeline, stream).deduplicate("k", within=5))
    outcome = run(pipeline, Cut(10, merges=(1,)))
    assert outcome.records[-2].state_rows() < 200
    assert len(outcome.rows()) == 400


def rows_of(**options):
    return hf.Pipeline("p").source("in", hf.source.memory(pl.DataFrame({"ts": [1], "k": [1]})), **options)


def test_mistakes_are_named():
    timed = rows_of(event_time="ts", time_unit="s")
    with pytest.raises(UnboundedStateError, match="keep every key forever") as caught:
        timed.deduplicate("k")
    assert "within='10 min'" in caught.value.cure
    with pytest.raises(DeclarationError, match="several limits at once"):
        timed.deduplicate("k", within="1s", ttl="1s")
    with pytest.raises(DeclarationError, match="by no column"):
        timed.deduplicate(within="1s")
    with pytest.raises(WrongTypeError, match="'in' has no event time"):
        rows_of().deduplicate("k", within="1s")
    with pytest.raises(WrongTypeError, match="negative"):
        timed.deduplicate("k", within=-1)


def test_it_is_explained_and_its_state_keeps_its_meaning():
    def program(**kept):
        pipeline = hf.Pipeline("p")
        frame = pl.DataFrame({"ts": [1], "k": [1]})
        rows = pipeline.source("in", hf.source.memory(frame), event_time="ts", time_unit="s")
        rows.deduplicate("k", **kept).sink("out", hf.sink.collect())
        return pipeline

    assert "the first row by k; keys are kept 600 ticks of event time" in hf.explain(program(within="10 min"))
    assert "the first row by k; keys are kept 10 min 0 s of the clock" in hf.explain(program(ttl="10 min"))
    by_time = shape_of_program(compile_program(program(within="10 min")))
    check_shape("p", by_time, shape_of_program(compile_program(program(within="1 min"))))
    with pytest.raises(PipelineChangedError, match="window of 'deduplicate' was by event time"):
        check_shape("p", by_time, shape_of_program(compile_program(program(ttl="1 min"))))
