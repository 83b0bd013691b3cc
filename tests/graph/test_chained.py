"""Stateful operators behind one another, and pipelines with several sources."""

from __future__ import annotations

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from oracles import (
    BOUND,
    assert_same_results,
    assert_same_rows,
    declared,
    group_counts,
    group_sessions,
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
from strategies import SECONDS, Given, cuts, examples, streams, window_shapes


def first_windows(stream, keys, shape, names=("n", "sum_v")):
    """The rows a window operator puts out, as the next operator sees them: their time is the window's last tick."""
    groups, _ = group_windows(seen_watermarks(stream), keys, *shape)
    columns = [*keys, "window_start", "window_end", *names]
    rows = [dict(zip(columns, row, strict=True)) for row in results(groups, names)]
    return sorted(({**row, "ts": row["window_end"] - 1, BOUND: None} for row in rows), key=lambda row: row["ts"])


def windowed(rows, keys, shape, names=("n", "sum_v"), **options):
    keyed = rows.key_by(*keys) if keys else rows
    return keyed.window(hf.window.sliding(*shape), **options).agg(**declared(names))


plain = streams("k", "s", "v", clocks=(SECONDS,), most=25)


@examples(12)
@given(stream=plain, first=window_shapes, second=window_shapes, cut=cuts)
def test_a_window_over_the_results_of_a_window(stream, first, second, cut):
    pipeline = new_pipeline()
    counts = windowed(source(pipeline, stream), ("k", "s"), first)
    again = (
        counts.key_by("k")
        .window(hf.window.sliding(*second))
        .agg(keys=hf.count(), most=hf.max("n"), total=hf.sum("sum_v"))
    )
    to_sink(again)
    groups, _ = group_windows(first_windows(stream, ("k", "s"), first), ("k",), *second)
    expected = [
        (*name, len(rows), max(row["n"] for row in rows), sum(row["sum_v"] for row in rows))
        for name, rows in groups.items()
    ]
    outcome = run(pipeline, cut)
    assert_same_results(outcome.sinks["out"], expected, 3)
    assert outcome.records[-1].state_rows() == 0


@examples(10)
@given(stream=plain, shape=window_shapes, gap=st.sampled_from([2, 11, 40]), cut=cuts)
def test_a_session_over_the_results_of_a_window(stream, shape, gap, cut):
    pipeline = new_pipeline()
    counts = windowed(source(pipeline, stream), ("k",), shape)
    to_sink(counts.key_by("k").window(hf.window.session(gap)).agg(windows=hf.count(), rows=hf.sum("n")))
    groups, _ = group_sessions(first_windows(stream, ("k",), shape), ("k",), gap)
    expected = [(*name, len(rows), sum(row["n"] for row in rows)) for name, rows in groups.items()]
    assert_same_results(run(pipeline, cut).sinks["out"], expected, 3)


@examples(10)
@given(stream=plain, shape=window_shapes, size=st.sampled_from([(1, 1), (3, 3), (3, 2)]), cut=cuts)
def test_a_count_window_over_the_results_of_a_window(stream, shape, size, cut):
    pipeline = new_pipeline()
    counts = windowed(source(pipeline, stream), ("k",), shape)
    to_sink(counts.key_by("k").window(hf.window.count(*size)).agg(n=hf.sum("n"), first=hf.first("window_end")))
    groups = group_counts(first_windows(stream, ("k",), shape), ("k",), *size)
    expected = [(*name, sum(row["n"] for row in rows), rows[0]["window_end"]) for name, rows in groups.items()]
    assert_same_results(run(pipeline, cut).sinks["out"], expected, 2)


@examples(12)
@given(
    stream=plain, first=window_shapes, second=window_shapes, how=st.sampled_from(["inner", "left", "full"]), cut=cuts
)
def test_the_join_of_the_results_of_two_windows(stream, first, second, how, cut):
    """As in NEXMark's hot items: both sides close together, and are joined on the end of their windows."""
    pipeline = new_pipeline()
    rows = source(pipeline, stream)
    by_key = windowed(rows, ("k",), first, ("n",), name="by-key")
    overall = windowed(rows, (), second, ("sum_v",), name="overall")
    to_sink(by_key.join(overall, on="window_end", window=hf.window.tumbling(1), how=how))
    left = [(row["k"], row["window_end"], row["n"]) for row in first_windows(stream, ("k",), first)]
    right = {row["window_end"]: row["sum_v"] for row in first_windows(stream, (), second)}
    expected = [(*row, right[row[1]], row[1] - 1) for row in left if row[1] in right]
    if how != "inner":
        expected += [(*row, None, row[1] - 1) for row in left if row[1] not in right]
    if how == "full":
        ends = {row[1] for row in left}
        expected += [(None, end, None, total, end - 1) for end, total in right.items() if end not in ends]
    assert_same_rows(run(pipeline, cut).sinks["out"], expected)


@examples(12)
@given(first=plain, second=plain, shape=window_shapes, cut=cuts)
def test_windows_over_a_union_hold_rows_to_the_watermark_of_their_own_source(first, second, shape, cut):
    pipeline = new_pipeline()
    both = source(pipeline, first, "first").union(source(pipeline, second, "second"))
    names = ["n", "sum_v", "min_s", "top_s"]
    to_sink(windowed(both, ("k",), shape, names))
    groups, late = group_windows(seen_watermarks(first) + seen_watermarks(second), ("k",), *shape)
    outcome = run(pipeline, cut)
    assert_same_results(outcome.sinks["out"], results(groups, names), 3)
    assert outcome.totals["late"] == len(late)


crowded = st.builds(
    lambda rows: Given(rows, {"ts": pl.Int64(), "k": pl.Int64(), "v": pl.Int64()}, lateness=5),
    st.lists(st.fixed_dictionaries({"ts": st.integers(0, 2), "k": st.just(0), "v": st.integers(0, 99)}), max_size=12),
)
"""Many rows with few times."""


@examples(12)
@given(first=crowded, second=crowded, cut=cuts)
def test_first_and_last_over_a_union_do_not_depend_on_the_cut(first, second, cut):
    """Between rows of the same time, the order of the sources in the union decides."""
    pipeline = new_pipeline()
    both = source(pipeline, first, "first").union(source(pipeline, second, "second"))
    to_sink(both.key_by("k").window(hf.window.tumbling(10)).agg(first=hf.first("v"), last=hf.last("v"), n=hf.count()))
    groups, _ = group_windows(seen_watermarks(first) + seen_watermarks(second), ("k",), 10, 10)
    expected = []
    for name, rows in groups.items():
        order = sorted(rows, key=lambda row: row["ts"])
        expected.append((*name, order[0]["v"], order[-1]["v"], len(rows)))
    assert_same_results(run(pipeline, cut).sinks["out"], expected, 3)


@examples(12)
@given(stream=plain, shape=window_shapes, cut=cuts, session=st.booleans())
def test_first_and_last_over_results_that_end_together_do_not_depend_on_the_cut(stream, shape, cut, session):
    def declare():
        pipeline = new_pipeline()
        counts = windowed(source(pipeline, stream), ("k", "s"), shape)
        window = hf.window.session(8) if session else hf.window.tumbling(20)
        to_sink(counts.window(window).agg(first=hf.first("s"), last=hf.last("k"), n=hf.count()))
        return pipeline

    assert_same_rows(run(declare(), cut).sinks["out"], run(declare()).rows())


@examples(10)
@given(first=plain, second=plain, gap=st.sampled_from([3, 20]), cut=cuts)
def test_sessions_over_a_union(first, second, gap, cut):
    pipeline = new_pipeline()
    both = source(pipeline, first, "first").union(source(pipeline, second, "second"))
    to_sink(both.key_by("k").window(hf.window.session(gap)).agg(**declared(["n", "sum_v"])))
    groups, late = group_sessions(seen_watermarks(first) + seen_watermarks(second), ("k",), gap)
    outcome = run(pipeline, cut)
    assert_same_results(outcome.sinks["out"], results(groups, ["n", "sum_v"]), 3)
    assert outcome.totals["late"] == len(late)


def running(rows, state, context):
    known = dict(state.rows())
    out = []
    for key, end, n in rows.select("k", "window_end", "n").rows():
        known[key] = known.get(key, 0) * 3 + n
        out.append((key, end, known[key] % 1_000_003))
        known[key] %= 1_000_003
    return hf.Step(
        output=pl.DataFrame(out, schema={"k": pl.Int64, "end": pl.Int64, "hash": pl.Int64}, orient="row"),
        upserts=pl.DataFrame(list(known.items()), schema={"k": pl.Int64, "hash": pl.Int64}, orient="row"),
    )


@examples(12)
@given(stream=plain, shape=window_shapes, cut=cuts)
def test_a_process_behind_a_window_gets_windows_in_the_order_of_time(stream, shape, cut):
    pipeline = new_pipeline()
    counts = windowed(source(pipeline, stream), ("k",), shape, ("n",))
    output = {"k": pl.Int64, "end": pl.Int64, "hash": pl.Int64}
    to_sink(counts.key_by("k").process(running, state={"hash": pl.Int64}, output=output, keep_forever=True))
    known: dict[object, int] = {}
    expected = []
    for row in first_windows(stream, ("k",), shape, ("n",)):
        known[row["k"]] = (known.get(row["k"], 0) * 3 + row["n"]) % 1_000_003
        expected.append((row["k"], row["window_end"], known[row["k"]]))
    assert_same_rows(run(pipeline, cut).sinks["out"], expected)


@examples(10)
@given(stream=plain, shape=window_shapes, cut=cuts)
def test_a_process_behind_a_window_sees_ties_in_one_order(stream, shape, cut):
    """Several windows of one key end at once here; their order may be any, but the same in every run."""

    def declare():
        pipeline = new_pipeline()
        counts = windowed(source(pipeline, stream), ("k", "s"), shape, ("n",))
        output = {"k": pl.Int64, "end": pl.Int64, "hash": pl.Int64}
        to_sink(counts.key_by("k").process(running, state={"hash": pl.Int64}, output=output, keep_forever=True))
        return pipeline

    assert_same_rows(run(declare(), cut).sinks["out"], run(declare()).rows())


@examples(10)
@given(stream=plain, cut=cuts)
def test_one_stream_with_many_readers(stream, cut):
    pipeline = new_pipeline()
    rows = source(pipeline, stream)
    positive = rows.filter(pl.col("v") > 0)
    to_sink(positive, "positive")
    to_sink(windowed(positive, ("k",), (10, 5)), "windows")
    to_sink(positive.key_by("s").window(hf.window.session(5)).agg(n=hf.count()), "sessions")
    to_sink(rows.select("v"), "values")
    outcome = run(pipeline, cut)
    kept = [row for row in seen_watermarks(stream) if row["v"] is not None and row["v"] > 0]
    assert_same_rows(outcome.sinks["positive"], [[v for c, v in row.items() if c != BOUND] for row in kept])
    assert_same_rows(outcome.sinks["values"], [(row["v"],) for row in stream.rows])
    windows, _ = group_windows(kept, ("k",), 10, 5)
    assert_same_results(outcome.sinks["windows"], results(windows, ["n", "sum_v"]), 3)
    sessions, _ = group_sessions(kept, ("s",), 5)
    assert_same_results(outcome.sinks["sessions"], results(sessions, ["n"]), 3)


def test_an_ended_source_does_not_hold_the_others_back():
    schema = {"ts": pl.Int64(), "k": pl.Int64(), "v": pl.Int64()}
    short = Given([{"ts": 1, "k": 0, "v": 1}], schema)
    long = Given([{"ts": t, "k": 0, "v": 1} for t in range(0, 100, 5)], schema)
    pipeline = new_pipeline()
    both = source(pipeline, short, "short").union(source(pipeline, long, "long"))
    to_sink(windowed(both, ("k",), (10, 10)))
    outcome = run(pipeline, Cut(1, 1, 1))
    marks = [outcome.watermark_after("window", epoch) for epoch in range(outcome.epochs)]
    assert marks[:3] == [None, 0, 5]


@pytest.mark.parametrize("window", [hf.window.tumbling(10), hf.window.session(10)], ids=["time", "session"])
def test_results_without_event_time_are_not_dropped_in_silence(window):
    def function(rows, state, context):
        return hf.Step(output=rows.select("k", at=pl.when(pl.col("v") > 1).then("ts")))

    schema = {"ts": pl.Int64(), "k": pl.Int64(), "v": pl.Int64()}
    stream = Given([{"ts": t, "k": 0, "v": t} for t in range(5)], schema)
    pipeline = new_pipeline()
    output = {"k": pl.Int64, "at": pl.Int64}
    timed = (
        source(pipeline, stream)
        .key_by("k")
        .process(function, state={}, output=output, ttl=9, event_time="at", name="timing")
    )
    to_sink(timed.key_by("k").window(window).agg(n=hf.count()))
    with pytest.raises(BadRowError, match="no event time") as caught:
        run(pipeline)
    assert caught.value.operator == "timing"
