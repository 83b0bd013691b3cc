"""From where empty state leads to the right state: tried with the engine, on streams and windows of all kinds."""

from __future__ import annotations

import polars as pl
from hypothesis import given
from hypothesis import strategies as st

import holdfast as hf
from harness import Cut, Outcome, rerun, run
from holdfast.durability.empty_replay import can_start_empty, forgets
from holdfast.plan.program import compile_program
from holdfast.plan.watermarks import operator_watermark
from strategies import examples


def build(
    times: list[int], sizes: tuple[int, int], slides: tuple[int, int], lateness: int, chained: bool
) -> hf.Pipeline:
    frame = pl.DataFrame(
        {"ts": pl.Series(times, dtype=pl.Int64), "k": pl.Series([t % 3 for t in times], dtype=pl.Int64)}
    )
    pipeline = hf.Pipeline("p")
    events = pipeline.source("in", hf.source.memory(frame), event_time="ts", time_unit="s", lateness=lateness)
    stream = events.key_by("k").window(hf.window.sliding(sizes[0] * slides[0], slides[0]), name="one").agg(n=hf.count())
    if chained:
        stream = (
            stream.key_by("k").window(hf.window.sliding(sizes[1] * slides[1], slides[1]), name="two").agg(n=hf.sum("n"))
        )
    stream.sink("out", hf.sink.collect())
    return pipeline


@examples(16)
@given(
    st.lists(st.integers(-3, 9), min_size=8, max_size=60),
    st.tuples(st.integers(1, 4), st.integers(1, 3)),
    st.tuples(st.integers(1, 5), st.integers(1, 6)),
    st.integers(0, 6),
    st.booleans(),
    st.integers(1, 6),
    st.data(),
)
def test_a_replay_with_empty_state_comes_to_the_same_results(steps, sizes, slides, lateness, chained, rows, data):
    times = [max(0, sum(steps[:i])) for i in range(len(steps))]
    pipeline = build(times, sizes, slides, lateness, chained)
    outcome = run(pipeline, Cut(rows=rows))
    lost = data.draw(st.integers(1, outcome.epochs))
    starts = [epoch for epoch in range(1, lost + 1) if _may_start(outcome, epoch, lost)]
    expected = rerun(pipeline, outcome, 0, after=lost)
    for epoch in {*starts[-1:], *([data.draw(st.sampled_from(starts))] if starts else [])}:
        assert rerun(pipeline, outcome, epoch, after=lost).equals(expected)


def _may_start(outcome: Outcome, epoch: int, lost: int) -> bool:
    record = outcome.records[lost]
    marks = {
        node.name: operator_watermark(outcome.program, node.name, record.greatest, record.done)
        for node in outcome.program.stateful
    }
    return can_start_empty(outcome.program, outcome.records[epoch].greatest, marks)


def test_windows_forget_before_long():
    """Not only the last epoch: a window of four epochs can be replayed from five epochs back."""
    outcome = run(build(list(range(60)), (4, 1), (5, 5), 0, False), Cut(rows=5))
    found = [epoch for epoch in range(1, 11) if _may_start(outcome, epoch, 10)]
    assert found
    assert max(found) >= 5
    assert max(found) < 10


def test_what_forgets_nothing_is_known():
    frame = pl.DataFrame({"ts": [1], "k": [1]})
    windowed = build([1, 2], (1, 1), (1, 1), 0, True)
    assert forgets(compile_program(windowed))
    for change in (
        lambda events: events.key_by("k").window(hf.window.session("5s")).agg(n=hf.count()),
        lambda events: events.key_by("k").window(hf.window.count(3)).agg(n=hf.count()),
    ):
        pipeline = hf.Pipeline("p")
        events = pipeline.source("in", hf.source.memory(frame), event_time="ts", time_unit="s")
        change(events).sink("out", hf.sink.collect())
        assert not forgets(compile_program(pipeline))
