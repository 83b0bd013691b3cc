"""Event times at the edges of what is allowed: windows there are those of plain arithmetic, what lies beyond is a bad
row, and so is a row without a time. Which rows these are does not depend on the cut."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from oracles import (
    assert_same_results,
    assert_same_rows,
    declared,
    group_sessions,
    group_windows,
    new_pipeline,
    results,
    seen_watermarks,
    source,
    to_sink,
)

import holdfast as hf
from harness import WHOLE, Cut, run
from holdfast.connect.time_range import EARLIEST, LATEST, LONGEST
from holdfast.errors import BadRowError, OperatorError, WrongTypeError
from strategies import SECONDS, Clock, Given, cuts, examples, streams

EDGES = (EARLIEST, -(1 << 61), -1, 0, 1 << 61, LATEST)
SIZES = (1, 10, 1 << 40, LONGEST // 3)
INTEGERS = (SECONDS, Clock(pl.Int64(), "ns"), Clock(pl.Int64(), "ms"))


@st.composite
def edge_streams(draw: st.DrawFn) -> Given:
    """Times within a few ticks of an edge, in any order, so that neighbours may lie 2⁶³ ticks apart."""
    stream = draw(streams("k", "v", most=12, clocks=INTEGERS, lateness=False))
    near = st.builds(lambda edge, by: min(max(edge + by, EARLIEST), LATEST), st.sampled_from(EDGES), st.integers(-3, 3))
    rows = [{**row, "ts": draw(near)} for row in stream.rows]
    late = draw(st.sampled_from([0, 5, 1 << 50, LONGEST // 4, 1 << 62]))
    return replace(stream, rows=rows, lateness=min(late, LONGEST // 4))


@examples(30)
@given(stream=edge_streams(), size=st.sampled_from(SIZES), parts=st.sampled_from([1, 2]), cut=cuts)
def test_windows_at_the_edges_are_those_of_plain_arithmetic(stream, size, parts, cut):
    pipeline = new_pipeline()
    slide = max(1, size // parts)
    window = hf.window.sliding(stream.clock.ticks(size), stream.clock.ticks(slide))
    to_sink(source(pipeline, stream).key_by("k").window(window).agg(**declared(["n", "sum_v"])))
    groups, late = group_windows(seen_watermarks(stream), ("k",), size, slide)
    outcome = run(pipeline, cut)
    assert_same_results(outcome.sinks["out"], results(groups, ["n", "sum_v"]), 3)
    assert outcome.totals["late"] == len(late)
    assert outcome.records[-1].state_rows() == 0


@examples(20)
@given(stream=edge_streams(), gap=st.sampled_from(SIZES), cut=cuts)
def test_sessions_at_the_edges_are_those_of_plain_arithmetic(stream, gap, cut):
    pipeline = new_pipeline()
    to_sink(
        source(pipeline, stream).key_by("k").window(hf.window.session(stream.clock.ticks(gap))).agg(**declared(["n"]))
    )
    groups, late = group_sessions(seen_watermarks(stream), ("k",), gap)
    outcome = run(pipeline, cut)
    assert_same_results(outcome.sinks["out"], results(groups, ["n"]), 3)
    assert outcome.totals["late"] == len(late)


@examples(10)
@given(stream=edge_streams(), size=st.sampled_from(SIZES), cut=cuts)
def test_joins_and_windows_of_windows_at_the_edges(stream, size, cut):
    def declare() -> hf.Pipeline:
        pipeline = new_pipeline()
        rows = source(pipeline, stream)
        window = hf.window.tumbling(stream.clock.ticks(size))
        counts = rows.key_by("k").window(window).agg(n=hf.count())
        to_sink(counts.key_by("k").window(window).agg(n=hf.sum("n")), "again")
        to_sink(rows.join(rows.select("ts", "k"), on="k", window=window), "joined")
        return pipeline

    whole, other = run(declare()), run(declare(), cut)
    counted = group_windows(seen_watermarks(stream), ("k",), size, size)[0]
    ends = {(key, end): len(rows) for (key, _, end), rows in counted.items()}
    assert_same_rows(whole.sinks["again"], [(key, end - size, end, n) for (key, end), n in ends.items()])
    for sink in ("again", "joined"):
        assert_same_rows(other.sinks[sink], whole.sinks[sink].rows())


def test_a_window_at_the_end_of_time_is_put_out_once():
    def declare(times: list[int]) -> hf.Pipeline:
        pipeline = new_pipeline()
        rows = pipeline.source(
            "in", hf.source.memory(pl.DataFrame({"ts": times}), bad_rows="skip"), event_time="ts", time_unit="ns"
        )
        to_sink(rows.window(hf.window.tumbling("10ns")).agg(n=hf.count()))
        return pipeline

    outcome = run(declare([0, 1 << 62, 3 << 61, (1 << 63) - 1, 5, 11, 25]), Cut(rows=1))
    assert outcome.rows() == [(0, 10, 2), (10, 20, 1), (20, 30, 1)]
    assert outcome.totals["bad"] == 3
    outcome = run(declare([LATEST, 5]), Cut(rows=1))
    [(start, end, n)] = outcome.rows()
    assert (start <= LATEST < end, n) == (True, 1)


BAD_TIMES = [None, 7, LATEST + 1, 12, EARLIEST - 1, -(1 << 63), 9, (1 << 63) - 1, 31]


def timed(bad_rows: str, times: list[int | None] = BAD_TIMES) -> hf.Pipeline:
    pipeline = new_pipeline()
    frame = pl.DataFrame({"ts": times, "k": list(range(len(times)))}, schema={"ts": pl.Int64, "k": pl.Int64})
    rows = pipeline.source(
        "in", hf.source.memory(frame, bad_rows=bad_rows), event_time="ts", time_unit="ms", lateness="2ms"
    )
    to_sink(rows.window(hf.window.tumbling("10ms"), name="windows").agg(n=hf.count()))
    if bad_rows == "dead_letter":
        to_sink(rows.dead_letters, "dead")
    return pipeline


@pytest.mark.parametrize("cut", [WHOLE, Cut(rows=1), Cut(rows=2, tasks=2), Cut(rows=5, tasks=3, partitions=2)])
def test_rows_without_an_allowed_time_go_the_way_of_bad_rows(cut):
    expected = [(0, 10, 1), (10, 20, 1), (30, 40, 1)]
    skipped = run(timed("skip"), cut)
    assert sorted(skipped.rows()) == expected
    assert (skipped.totals["bad"], skipped.totals["read"], skipped.totals["late"]) == (5, 4, 1)
    kept = run(timed("dead_letter"), cut)
    assert sorted(kept.rows()) == expected
    letters = kept.sinks["dead"].sort("row")
    assert sorted(letters["row"].str.json_path_match("$.k")) == ["0", "2", "4", "5", "7"]
    reasons = " ".join(letters["reason"].unique().sort())
    assert "'ts' is null" in reasons
    assert f"{LATEST + 1} is outside the allowed range" in reasons


@pytest.mark.parametrize("bad", [None, LATEST + 1, EARLIEST - 1])
def test_a_bad_time_stops_the_run_unless_declared_otherwise(bad):
    with pytest.raises(BadRowError, match=r"event time.*the row is: \{.*\"k\": 1\}") as caught:
        run(timed("fail", [5, bad]))
    assert caught.value.operator == "in"
    assert "bad_rows='skip'" in caught.value.cure


@pytest.mark.parametrize("dtype", [pl.UInt64, pl.Int128])
def test_integers_that_do_not_fit_64_bits_are_bad_times(dtype):
    pipeline = new_pipeline()
    frame = pl.DataFrame({"ts": pl.Series([3, (1 << 63) + 1, 4], dtype=dtype)})
    rows = pipeline.source("in", hf.source.memory(frame, bad_rows="skip"), event_time="ts", time_unit="s")
    to_sink(rows.window(hf.window.tumbling("10s")).agg(n=hf.count()))
    assert run(pipeline).rows() == [(0, 10, 2)]


@pytest.mark.parametrize("unit", ["ms", "us", "ns"])
def test_a_datetime_beyond_the_calendar_is_a_bad_time(unit):
    pipeline = new_pipeline()
    times = pl.Series([datetime(2026, 1, 1), None, datetime(2026, 1, 1)]).cast(pl.Datetime(unit))
    odd = pl.Series([1 << 61 if unit != "ns" else 1 << 62], dtype=pl.Int64).cast(pl.Datetime(unit))
    frame = pl.DataFrame({"ts": pl.concat([times, odd])})
    rows = pipeline.source("in", hf.source.memory(frame, bad_rows="dead_letter"), event_time="ts")
    to_sink(rows.window(hf.window.tumbling("10s")).agg(n=hf.count()))
    to_sink(rows.dead_letters, "dead")
    outcome = run(pipeline)
    assert outcome.sinks["out"].rows() == [(datetime(2026, 1, 1), datetime(2026, 1, 1, 0, 0, 10), 2)]
    assert outcome.sinks["dead"]["row"].to_list() == ['{"ts": null}', f'{{"ts": "{odd.to_physical()[0]}"}}']


def test_rows_too_far_ahead_of_the_clock_are_bad_rows_and_make_nothing_late():
    def declare(max_ahead: str | None) -> hf.Pipeline:
        pipeline = new_pipeline()
        frame = pl.DataFrame({"ts": [1000, 10_000_000, 1001, 1060, 1061, 1002]})
        rows = pipeline.source(
            "in",
            hf.source.memory(frame, bad_rows="skip"),
            event_time="ts",
            time_unit="s",
            lateness="1h",
            max_ahead=max_ahead,
        )
        to_sink(rows.window(hf.window.tumbling("100s"), name="windows").agg(n=hf.count()))
        return pipeline

    loose = run(declare(None), now=1000.5)
    assert (loose.totals["late"], loose.totals["bad"]) == (4, 0)
    for cut in (WHOLE, Cut(rows=1), Cut(rows=3, tasks=2)):
        outcome = run(declare("1 min"), cut, now=1000.5)
        assert outcome.rows() == [(1000, 1100, 4)]
        assert (outcome.totals["late"], outcome.totals["bad"]) == (0, 2)


def test_how_far_ahead_is_decided_by_the_clock_at_planning_and_kept_in_the_plan():
    pipeline = new_pipeline()
    frame = pl.DataFrame({"ts": [1000, 1100, 1200]})
    rows = pipeline.source(
        "in", hf.source.memory(frame, bad_rows="skip"), event_time="ts", time_unit="s", max_ahead="60s"
    )
    to_sink(rows.window(hf.window.tumbling("100s")).agg(n=hf.count()))
    outcome = run(pipeline, Cut(rows=1), now=1045.0)
    assert [plan.now for plan in outcome.plans] == [1045.0] * 3
    assert outcome.rows() == [(1000, 1100, 1), (1100, 1200, 1)]


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
def test_spans_that_could_overflow_are_refused_when_the_pipeline_is_checked(unit):
    def declare(lateness: int, size: int, again: int) -> hf.Pipeline:
        pipeline = new_pipeline()
        frame = pl.DataFrame({"ts": [0]})
        rows = pipeline.source(
            "in", hf.source.memory(frame), event_time="ts", time_unit=unit, lateness=f"{lateness}{unit}"
        )
        counts = rows.window(hf.window.tumbling(f"{size}{unit}"), name="first").agg(n=hf.count())
        to_sink(counts.window(hf.window.session(f"{again}{unit}"), name="second").agg(n=hf.sum("n")))
        return pipeline

    third = LONGEST // 3
    declare(third, third, third).check()
    with pytest.raises(WrongTypeError, match="add up to") as caught:
        declare(third, third, third + 2).check()
    assert caught.value.operator == "second"
    with pytest.raises(WrongTypeError, match="add up to") as caught:
        declare(LONGEST + 1, 1, 1).check()
    assert caught.value.operator == "in"


def test_a_timer_outside_of_time_is_refused():
    def forever(rows: pl.DataFrame, state: pl.DataFrame, context: hf.ProcessContext) -> hf.Step:
        keys = rows.select("k").unique()
        timers = keys.with_columns(at=pl.lit((1 << 63) - 1, pl.Int64))
        return hf.Step(upserts=keys.with_columns(n=pl.lit(1)), timers=timers)

    pipeline = new_pipeline()
    frame = pl.DataFrame({"ts": [0], "k": [0]})
    rows = pipeline.source("in", hf.source.memory(frame), event_time="ts", time_unit="s")
    to_sink(
        rows.key_by("k").process(forever, state={"n": pl.Int32}, output={"k": pl.Int64}, keep_forever=True, timers=True)
    )
    with pytest.raises(OperatorError, match="timer") as caught:
        run(pipeline)
    assert "null" in caught.value.cure


def test_a_key_that_waits_for_a_timer_keeps_its_state_late_in_time():
    """In nanoseconds the year 2043 is 2⁶¹."""

    def count(rows: pl.DataFrame, state: pl.DataFrame, context: hf.ProcessContext) -> hf.Step:
        known = state["n"][0] if state.height else 0
        upserts = pl.DataFrame({"k": [0], "n": [known + rows.height]}, schema={"k": pl.Int64, "n": pl.Int64})
        timers = pl.DataFrame({"k": [0], "at": [LATEST]}, schema={"k": pl.Int64, "at": pl.Int64})
        if not rows.height:
            return hf.Step(output=state.select("k", "n"))
        return hf.Step(upserts=upserts, timers=timers)

    pipeline = new_pipeline()
    frame = pl.DataFrame({"ts": [(1 << 61) + 10, (1 << 61) + 1000, (1 << 61) + 2000], "k": [0, 0, 0]})
    rows = pipeline.source("in", hf.source.memory(frame), event_time="ts", time_unit="ns")
    output = {"k": pl.Int64, "n": pl.Int64}
    to_sink(rows.key_by("k").process(count, state={"n": pl.Int64}, output=output, ttl="5ns", timers=True))
    for cut in (WHOLE, Cut(rows=1)):
        assert run(pipeline, cut).rows() == [(0, 3)]
