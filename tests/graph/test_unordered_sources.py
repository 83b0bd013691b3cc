"""Sources whose rows come in groups without an order: a row is late by the groups before its own, and by nothing else.
So the output depends on the groups, and not on how they are cut into epochs, tasks and partitions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import polars as pl
from hypothesis import given
from hypothesis import strategies as st
from oracles import (
    BOUND,
    assert_same_results,
    assert_same_rows,
    declared,
    group_windows,
    new_pipeline,
    results,
    to_sink,
)

import holdfast as hf
from harness import Cut, run, run_fragments
from holdfast.connect.base import Take
from holdfast.connect.sources.memory import MemorySource
from strategies import SECONDS, Given, cuts, examples, streams, window_shapes


class Groups(MemorySource):
    """Each frame is a group of rows that have no order among each other."""

    in_order = False

    def take(self, position: Mapping[str, Any], rows: int, pieces: int) -> Take:
        item = self.items[position["item"]] if position["item"] < len(self.items) else None
        left = item.height - position["row"] if isinstance(item, pl.DataFrame) else rows
        return super().take(position, min(rows, left), pieces)

    def settled(self, position: Mapping[str, Any]) -> bool:
        return position["row"] == 0


@st.composite
def grouped(draw: st.DrawFn) -> tuple[Given, list[int]]:
    """A stream, and where its groups end."""
    stream = draw(streams("k", "v", clocks=(SECONDS,)))
    ends = draw(st.lists(st.integers(0, len(stream.rows)), max_size=4))
    return stream, sorted({*ends, len(stream.rows)})


def rows_of(stream: Given, ends: list[int]) -> tuple[Groups, list[dict[str, Any]]]:
    """The source, and its rows with the watermark that each of them finds."""
    frame, frames, rows = stream.frame(), [], []
    start, greatest = 0, None
    for end in ends:
        frames.append(frame.slice(start, end - start))
        bound = None if greatest is None else greatest - stream.lateness
        rows += [{**row, BOUND: bound} for row in stream.rows[start:end]]
        greatest = max([row["ts"] for row in stream.rows[:end]], default=None)
        start = end
    return Groups([frame for frame in frames if frame.height] or frames[:1], epochs=False), rows


@examples(25)
@given(drawn=grouped(), shape=window_shapes, cut=cuts)
def test_a_row_is_late_by_the_groups_before_its_own(drawn, shape, cut):
    stream, ends = drawn
    source, rows = rows_of(stream, ends)
    pipeline = new_pipeline()
    read = pipeline.source("in", source, event_time="ts", time_unit="s", lateness=f"{stream.lateness}s")
    to_sink(read.key_by("k").window(hf.window.sliding(f"{shape[0]}s", f"{shape[1]}s")).agg(**declared(["n", "sum_v"])))
    groups, late = group_windows(rows, ("k",), *shape)
    outcome = run(pipeline, cut)
    assert_same_results(outcome.sinks["out"], results(groups, ["n", "sum_v"]), 3)
    assert outcome.totals["late"] == len(late)
    assert outcome.records[-1].pending == {}


@examples(10)
@given(drawn=grouped(), cut=cuts, behind=cuts)
def test_behind_a_cut_the_same_rows_are_late(drawn, cut, behind):
    stream, ends = drawn
    source, rows = rows_of(stream, ends)
    pipeline = new_pipeline()
    read = pipeline.source("in", source, event_time="ts", time_unit="s", lateness=f"{stream.lateness}s")
    to_sink(read.persist("kept", push_up=False).key_by("k").window(hf.window.tumbling("10s")).agg(n=hf.count()))
    outcomes = run_fragments(pipeline, cut, behind)
    groups, late = group_windows(rows, ("k",), 10, 10)
    [ended] = [outcome for outcome in outcomes.values() if "out" in outcome.sinks]
    assert_same_rows(ended.sinks["out"], [(*group, len(found)) for group, found in groups.items()])
    assert ended.totals["late"] == len(late)


def test_the_watermark_moves_when_a_group_has_been_read():
    frames = [pl.DataFrame({"ts": times}) for times in ([30, 10, 20], [25, 40])]
    pipeline = new_pipeline()
    read = pipeline.source("in", Groups(frames, epochs=False), event_time="ts", time_unit="s", lateness="5s")
    to_sink(read.window(hf.window.tumbling("10s"), name="windows").agg(n=hf.count()))
    outcome = run(pipeline, Cut(rows=1))
    assert [outcome.watermark_after("windows", epoch) for epoch in range(5)] == [None, None, None, 25, 25]
    assert [record.pending for record in outcome.records[:5]] == [{}, {"in": 30}, {"in": 30}, {}, {"in": 25}]
    assert [record.seen() for record in outcome.records[:3]] == [{"in": None}, {"in": 30}, {"in": 30}]
