"""Watermarks: what each task, operator and row knows of event time."""

from __future__ import annotations

import polars as pl
import pytest

import holdfast as hf
from holdfast.connect.time_range import END_OF_TIME
from holdfast.plan.program import compile_program
from holdfast.plan.watermarks import SourceTimes, greatest_after, operator_watermark
from holdfast.pstream.times import Times, row_bounds, times_of
from holdfast.sink import collect
from holdfast.source import memory

FRAME = pl.DataFrame({"ts": [1], "k": [1]})


@pytest.fixture
def program():
    pipeline = hf.Pipeline("test")
    left = pipeline.source("left", memory(FRAME), event_time="ts", time_unit="s", lateness=2)
    right = pipeline.source("right", memory(FRAME), event_time="ts", time_unit="s")
    both = left.union(right).key_by("k").window(hf.window.tumbling(10), name="both").agg(n=hf.count())
    both.sink("out", collect())
    left.key_by("k").window(hf.window.tumbling(10), name="alone").agg(n=hf.count()).sink("more", collect())
    return compile_program(pipeline)


@pytest.mark.parametrize(
    ("greatest", "done", "mark"),
    [
        ({}, {}, None),
        ({"left": 10}, {}, None),
        ({"left": 10, "right": 20}, {}, 8),
        ({"left": 30, "right": 20}, {}, 20),
        ({"left": 10, "right": 20}, {"left": True}, 20),
        ({"left": 10}, {"right": True}, 8),
        ({}, {"left": True, "right": True}, END_OF_TIME),
    ],
)
def test_an_operator_has_the_least_watermark_of_its_sources(program, greatest, done, mark):
    assert operator_watermark(program, "both", greatest, done) == mark


def test_a_task_begins_where_the_tasks_before_it_have_come(program):
    times = SourceTimes()
    times.add(2, {"left": 100})
    times.add(0, {"left": 40, "right": 7})
    times.add(1, {"right": 9})
    times.begin({"left": 50, "right": None}, {}, {"right": True}, {}, {})
    left, right = program.sources
    assert [times.bound_before(left, task) for task in range(4)] == [48, 48, 48, 98]
    assert [times.bound_before(right, task) for task in range(3)] == [None, 7, 9]
    assert times.watermarks(program, "both") == (None, 98)
    assert times.watermarks(program, "alone") == (48, 98)
    assert times.farthest(program, "both") == 98


def test_times_that_are_pending_move_no_watermark():
    assert greatest_after({"a": 5}, {}, [{"a": 9, "b": 1}, {"a": 7}], {"a": True}) == ({"a": 5, "b": 1}, {"a": 9})
    assert greatest_after({"a": 5}, {"a": 9}, [], {"a": True}) == ({"a": 5}, {"a": 9})
    assert greatest_after({"a": 5}, {"a": 9}, [{"a": 8}], {}) == ({"a": 9}, {})
    assert greatest_after({"a": None}, {}, [{"a": 3}], {"a": False}) == ({"a": 3}, {})


def test_rows_behind_the_watermark_carry_it():
    times = pl.Series([5, 3, 9, 6, 7, 9, 1])

    def bounds(known, lateness):
        seen = times_of(times)
        assert seen == Times(1, 9, ordered=False)
        return row_bounds(times, seen, known, lateness).to_list()

    assert bounds(None, 0) == [None, 5, None, 9, 9, None, 9]
    assert bounds(None, 2) == [None, None, None, 7, None, None, 7]
    assert bounds(8, 0) == [8, 8, None, 9, 9, None, 9]
    assert row_bounds(pl.Series([1, 2, 2]), Times(1, 2, ordered=True), 1, 0) is None
