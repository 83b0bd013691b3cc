"""Joins within an interval of event time against a nested loop."""

from __future__ import annotations

import polars as pl
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from oracles import BOUND, assert_same_results, assert_same_rows, new_pipeline, seen_watermarks, source, to_sink

import holdfast as hf
from harness import Cut, rerun, run
from holdfast.errors import DeclarationError, PipelineChangedError, UnboundedStateError, WrongTypeError
from holdfast.plan.program import compile_program
from holdfast.plan.shape import check_shape, shape_of_program
from strategies import CLOCKS, SECONDS, Given, cuts, examples, streams

INTERVALS = st.sampled_from([(0, 0), (-5, 5), (-10, 3), (0, 7), (2, 9), (-9, -2), (-1_000, 1_000)])


def waits(interval):
    low, high = interval
    return max(high, 0), max(-low, 0)


def in_time(stream, wait):
    """The rows for which a pair can still come when they do, and the others."""
    rows = seen_watermarks(stream)
    late = [row for row in rows if row[BOUND] is not None and row["ts"] + wait < row[BOUND]]
    return [row for row in rows if row not in late], late


def pairs(lefts, rights, keys, interval):
    """The places of rows that go together, and the time of each pair: one that lies behind the watermark that either
    found does not count."""
    found = []
    for i, row in enumerate(lefts):
        for j, other in enumerate(rights):
            at = max(row["ts"], other["ts"])
            counts = all(r[BOUND] is None or at >= r[BOUND] for r in (row, other))
            near = interval[0] <= other["ts"] - row["ts"] <= interval[1]
            if counts and near and all(row[key] is not None and row[key] == other[key] for key in keys):
                found.append((i, j, at))
    return found


def line(left, right, keys, time):
    row = {name: None if left is None else left[name] for name in ("ts", "k", "s", "v")}
    its = {name: None if right is None else right[name] for name in ("ts", "k", "s", "x")}
    for key in keys:
        row[key] = its[key] if left is None else row[key]
    behind = {f"{name}_right" if name in row else name: value for name, value in its.items() if name not in keys}
    return (*row.values(), *behind.values(), time)


def joined(left, right, keys, interval, how):
    """All results, and the late rows of both sides as results by themselves."""
    wait = waits(interval)
    (lefts, late), (rights, late_too) = in_time(left, wait[0]), in_time(right, wait[1])
    found = pairs(lefts, rights, keys, interval)
    out = [line(lefts[i], rights[j], keys, at) for i, j, at in found]
    if how in ("left", "full"):
        met = {i for i, _, _ in found}
        out += [line(row, None, keys, row["ts"] + wait[0]) for i, row in enumerate(lefts) if i not in met]
    if how in ("right", "full"):
        met = {j for _, j, _ in found}
        out += [line(None, row, keys, row["ts"] + wait[1]) for j, row in enumerate(rights) if j not in met]
    gone = [line(row, None, keys, row["ts"]) for row in late] + [line(None, row, keys, row["ts"]) for row in late_too]
    return out, gone


def declare(left, right, keys, interval, how):
    pipeline = new_pipeline()
    ours, theirs = source(pipeline, left, "left"), source(pipeline, right, "right")
    ticks = left.clock.ticks
    bounds = tuple(("-" if bound < 0 else "") + ticks(abs(bound)) for bound in interval)
    return pipeline, ours.join(theirs, on=list(keys), within=bounds, how=how)


def given_rows(*rows):
    return Given([{"ts": ts, "k": 0, "s": "a", "v": ts} for ts in rows], {
        "ts": pl.Int64(), "k": pl.Int64(), "s": pl.String(), "v": pl.Int64(),
    })  # fmt: skip


@pytest.mark.parametrize("how", ["inner", "left", "right", "full"])
@examples(5)
@given(
    clock=st.sampled_from(CLOCKS),
    left=streams("k", "s", "v", most=20, clocks=(SECONDS,)),
    right=streams("k", "s", "x", most=20, clocks=(SECONDS,)),
    keys=st.sampled_from([("k",), ("s",), ("k", "s")]),
    interval=INTERVALS,
    cut=cuts,
)
def test_joins_do_not_depend_on_the_cut(how, clock, left, right, keys, interval, cut):
    left, right = (Given(s.rows, {**s.schema, "ts": clock.dtype}, clock, s.lateness) for s in (left, right))
    pipeline, rows = declare(left, right, keys, interval, how)
    to_sink(rows)
    to_sink(rows.late, "late")
    expected, late = joined(left, right, keys, interval, how)
    outcome = run(pipeline, cut)
    assert_same_rows(outcome.sinks["out"], expected)
    assert_same_rows(outcome.sinks["late"], late)
    assert outcome.totals["late"] == len(late)
    assert outcome.records[-1].state_rows() == 0


@examples(6)
@given(
    left=streams("k", "s", "v", most=20, clocks=(SECONDS,)),
    right=streams("k", "s", "x", most=20, clocks=(SECONDS,)),
    interval=INTERVALS,
    how=st.sampled_from(["inner", "left", "full"]),
    cut=cuts,
)
def test_no_result_is_late_for_a_window_behind_it(left, right, interval, how, cut):
    """Results come when the watermark has passed their time, as those of windows do."""
    pipeline, rows = declare(left, right, ("k",), interval, how)
    to_sink(rows.window(hf.window.tumbling(7)).agg(n=hf.count(), least=hf.min("joined_time")))
    groups = {}
    for *_, at in joined(left, right, ("k",), interval, how)[0]:
        groups.setdefault((at // 7 * 7, at // 7 * 7 + 7), []).append(at)
    assert_same_results(run(pipeline, cut).sinks["out"], [(*w, len(ts), min(ts)) for w, ts in groups.items()], 2)


@examples(6)
@given(stream=streams("k", "s", "v", most=15, clocks=(SECONDS,)), interval=INTERVALS, cut=cuts)
@example(stream=given_rows(5, 1, 9, 3), interval=(-5, 5), cut=Cut(1, 1, 2))
def test_a_stream_can_be_joined_with_itself(stream, interval, cut):
    pipeline = new_pipeline()
    rows = source(pipeline, stream)
    to_sink(rows.join(rows.select("ts", "k", w="v"), on="k", within=interval))
    wait = waits(interval)
    ours, theirs = in_time(stream, wait[0])[0], in_time(stream, wait[1])[0]
    expected = [
        (ours[i]["ts"], ours[i]["k"], ours[i]["s"], ours[i]["v"], theirs[j]["ts"], theirs[j]["v"], at)
        for i, j, at in pairs(ours, theirs, ("k",), interval)
    ]
    assert_same_rows(run(pipeline, cut).sinks["out"], expected)


def test_a_replay_from_empty_state_that_begins_early_enough_puts_out_the_same():
    rows = [{"ts": t, "k": t % 3, "s": "a", "v": t} for t in range(0, 120, 2)]
    left = Given(rows, {"ts": pl.Int64(), "k": pl.Int64(), "s": pl.String(), "v": pl.Int64()})
    right = Given(
        [{"ts": row["ts"] + 1, "k": row["k"], "s": "b", "x": 0.5} for row in rows],
        {"ts": pl.Int64(), "k": pl.Int64(), "s": pl.String(), "x": pl.Float64()},
    )
    pipeline, made = declare(left, right, ("k",), (-6, 4), "full")
    to_sink(made)
    outcome = run(pipeline, Cut(5))
    whole = pl.concat(outcome.frames["out"][-4:])
    assert whole.height
    again = rerun(pipeline, outcome, outcome.epochs - 8, after=outcome.epochs - 4)
    assert again.equals(whole.sort(whole.columns))


def test_mistakes_are_named():
    def side(name, unit="s", **columns):
        frame = pl.DataFrame({"ts": [1], "k": [1], **columns})
        return pipeline.source(name, hf.source.memory(frame), event_time="ts", time_unit=unit)

    pipeline = new_pipeline()
    left, right = side("left"), side("right", joined_time=[1])
    with pytest.raises(UnboundedStateError) as caught:
        left.join(right, on="k")
    assert "within=" in caught.value.cure
    with pytest.raises(DeclarationError, match="in a window and within an interval"):
        left.join(right, on="k", within="1s", window=hf.window.tumbling("1s"))
    with pytest.raises(WrongTypeError, match="is an empty interval"):
        left.join(right, on="k", within=("5s", "-5s"))
    with pytest.raises(WrongTypeError, match="'soon' is not a duration"):
        left.join(right, on="k", within=("-1s", "soon"))
    with pytest.raises(WrongTypeError, match="not a whole number of s"):
        left.join(right, on="k", within=("-1ms", "1s"))
    with pytest.raises(DeclarationError, match="a column is called 'joined_time'"):
        left.join(right, on="k", within="1s")
    with pytest.raises(WrongTypeError, match="how='outer'"):
        left.join(right.drop("joined_time"), on="k", within="1s", how="outer")
    with pytest.raises(WrongTypeError, match="event times are in s and ms"):
        left.join(side("fine", "ms"), on="k", within="1s")
    with pytest.raises(WrongTypeError, match="how='right' in a window"):
        left.join(right, on="k", window=hf.window.tumbling("1s"), how="right")


def test_it_is_explained_and_its_interval_is_part_of_its_state():
    def program(within):
        stream = given_rows(1)
        pipeline = new_pipeline()
        rows = source(pipeline, stream, "left").join(source(pipeline, stream, "right"), on="k", within=within)
        to_sink(rows)
        return pipeline

    text = hf.explain(program(("-10 min", "5 min")))
    assert "inner join on k of rows from -600 to 300 ticks apart" in text
    assert "rows wait as state for 900 ticks behind the watermark" in text
    shape = shape_of_program(compile_program(program("1s")))
    with pytest.raises(PipelineChangedError, match="was from -1 to 1, now it is from -2 to 2"):
        check_shape("test", shape, shape_of_program(compile_program(program("2s"))))
