"""A pipeline that p-streams cut gives what it gives in one piece, wherever it is cut and however its parts run."""

from __future__ import annotations

import random

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from oracles import new_pipeline, source, to_sink

import holdfast as hf
from harness import WHOLE, Cut, plain_rows, run, run_fragments
from holdfast.errors import DeclarationError, UnknownColumnError, WrongTypeError
from holdfast.plan.places import cuts_of, places_of
from holdfast.pstream.description import Placement
from strategies import SECONDS, cuts, examples, long_cases, streams, window_shapes

rows = streams("k", "s", "v", clocks=(SECONDS,), most=40)


def place(number: int):
    """The placements that put every cut at its `number`-th place, or at its last one."""

    def chosen(pipeline):
        made = {}
        for cut in cuts_of(pipeline.nodes):
            places = places_of(pipeline.nodes, cut)
            made[cut.name] = Placement(places[min(number, len(places) - 1)], "for the test")
        return made

    return chosen


def sorted_rows(frame: pl.DataFrame) -> list[tuple[object, ...]]:
    return sorted(plain_rows(frame), key=repr)


def same_with_and_without(build, cut, other, number, order=False) -> None:
    expected = run(build(False), WHOLE)
    pipeline = build(True)
    outcomes = run_fragments(pipeline, cut, other, placements=place(number)(pipeline))
    seen = {name: frame for outcome in outcomes.values() for name, frame in outcome.sinks.items()}
    for name, frame in expected.sinks.items():
        assert (plain_rows if order else sorted_rows)(seen[name]) == (plain_rows if order else sorted_rows)(frame)
    late = sum(sum(outcome.late.values()) for outcome in outcomes.values())
    assert late == sum(expected.late.values())


@examples(60)
@given(stream=rows, shape=window_shapes, cut=cuts, other=cuts, number=st.integers(0, 5))
def test_windows_see_the_same_late_rows_behind_a_cut(stream, shape, cut, other, number):
    def build(persisted):
        pipeline = new_pipeline()
        given_rows = source(pipeline, stream)
        if persisted:
            given_rows = given_rows.persist("kept")
        made = given_rows.filter(pl.col("v").is_not_null()).with_columns(w=pl.col("v") * 2)
        to_sink(made.key_by("k").window(hf.window.sliding(*shape)).agg(n=hf.count(), w=hf.sum("w"), last=hf.last("s")))
        return pipeline

    same_with_and_without(build, cut, other, number)


@examples(15)
@given(stream=rows, first=window_shapes, second=window_shapes, cut=cuts, other=cuts)
def test_windows_over_the_results_of_windows_behind_a_cut(stream, first, second, cut, other):
    def build(persisted):
        pipeline = new_pipeline()
        counts = (
            source(pipeline, stream).key_by("k", "s").window(hf.window.sliding(*first)).agg(n=hf.count(), v=hf.sum("v"))
        )
        if persisted:
            counts = counts.persist("counts")
        to_sink(counts.key_by("k").window(hf.window.sliding(*second)).agg(m=hf.max("n"), total=hf.sum("v")))
        return pipeline

    same_with_and_without(build, cut, other, 0)
    same_with_and_without(build, cut, other, 9)


@examples(15)
@given(stream=rows, cut=cuts, other=cuts, number=st.integers(0, 3))
def test_the_order_of_rows_is_kept(stream, cut, other, number):
    def build(persisted):
        pipeline = new_pipeline()
        given_rows = source(pipeline, stream)
        if persisted:
            given_rows = given_rows.persist("kept")
        filtered = given_rows.filter(pl.col("k").is_not_null())
        to_sink(filtered.key_by("k").window(hf.window.count(3, 2)).agg(first=hf.first("v"), last=hf.last("v")))
        return pipeline

    same_with_and_without(build, cut, other, number)


@examples(12)
@given(stream=rows, shape=window_shapes, cut=cuts, other=cuts, third=cuts)
def test_several_cuts_and_several_readers(stream, shape, cut, other, third):
    def build(persisted):
        pipeline = new_pipeline()
        given_rows = source(pipeline, stream)
        if persisted:
            given_rows = given_rows.persist("raw")
        kept = given_rows.filter(pl.col("v").is_not_null())
        if persisted:
            kept = kept.persist("kept")
        kept.select("ts", "k", "v").sink("copy", hf.sink.collect())
        to_sink(kept.key_by("k").window(hf.window.sliding(*shape)).agg(n=hf.count(), v=hf.sum("v")))
        return pipeline

    same_with_and_without(build, cut, other, 1)
    pipeline = build(True)
    outcomes = run_fragments(pipeline, cut, other, third)
    assert set(outcomes) == {f"{pipeline.name}.{name}" for name in ("raw", "kept", "copy", "out")}


@examples(12)
@given(one=rows, two=rows, shape=window_shapes, cut=cuts, other=cuts)
def test_a_union_of_sources_keeps_a_watermark_of_each(one, two, shape, cut, other):
    def build(persisted):
        pipeline = new_pipeline()
        both = source(pipeline, one, "one").union(source(pipeline, two, "two"))
        if persisted:
            both = both.persist("both", push_up=False)
        to_sink(both.key_by("k").window(hf.window.sliding(*shape)).agg(n=hf.count(), v=hf.sum("v")))
        return pipeline

    same_with_and_without(build, cut, other, 0)


def numbers(count: int = 1_000) -> pl.DataFrame:
    return pl.DataFrame(
        {
            "ts": range(count),
            "k": [i % 3 for i in range(count)],
            "v": [float(i) for i in range(count)],
            "x": [0] * count,
        }
    )


def counted(persisted=True, **options):
    pipeline = hf.Pipeline("counted")
    given_rows = pipeline.source("in", hf.source.memory(numbers()), event_time="ts", time_unit="s")
    kept = given_rows.persist("kept", **options) if persisted else given_rows
    kept.key_by("k").window(hf.window.tumbling("100s")).agg(v=hf.sum("v")).sink("out", hf.sink.collect())
    return pipeline


def test_columns_that_nobody_reads_are_not_kept():
    pipeline = counted()
    [cut] = cuts_of(pipeline.nodes)
    assert [p.columns for p in places_of(pipeline.nodes, cut)][:2] == [("ts", "k", "v", "x"), ("ts", "k", "v")]


def test_all_columns_are_kept_where_an_expression_reads_all_that_match():
    pipeline = hf.Pipeline("all")
    kept = pipeline.source("in", hf.source.memory(numbers()), event_time="ts", time_unit="s").persist("kept")
    kept.filter(pl.all_horizontal(pl.all() >= 0)).select("ts", "k").sink("out", hf.sink.collect())
    [cut] = cuts_of(pipeline.nodes)
    assert [len(p.columns) for p in places_of(pipeline.nodes, cut)] == [4, 2, 2]


def test_nothing_moves_where_the_user_says_so():
    pipeline = counted(push_up=False)
    [cut] = cuts_of(pipeline.nodes)
    assert [p.after for p in places_of(pipeline.nodes, cut)] == ["in"]


def test_a_cut_that_does_not_part_the_pipeline_is_refused():
    pipeline = hf.Pipeline("loop")
    given_rows = pipeline.source("in", hf.source.memory(numbers()), event_time="ts", time_unit="s")
    kept = given_rows.persist("kept", push_up=False)
    kept.join(given_rows.select("ts", "k"), on="k", window=hf.window.tumbling("10s")).sink("out", hf.sink.collect())
    with pytest.raises(DeclarationError, match="persist the other path, too"):
        run_fragments(pipeline, WHOLE)


def test_lossy_columns_are_checked_where_they_are_declared():
    stream = hf.Pipeline("p").source("in", hf.source.memory(numbers()))
    with pytest.raises(UnknownColumnError, match="nothing"):
        stream.persist("a", lossy={"nothing": 0.1})
    with pytest.raises(WrongTypeError, match="'k' is Int64"):
        stream.persist("b", lossy={"k": 0.1})
    with pytest.raises(WrongTypeError, match="size"):
        stream.persist("c", budget="much")


def test_lossy_columns_lose_no_more_than_allowed():
    generator = random.Random(7)
    data = pl.DataFrame({"ts": range(5_000), "v": [generator.gauss(100, 20) for _ in range(5_000)]})
    pipeline = hf.Pipeline("lossy")
    kept = pipeline.source("in", hf.source.memory(data), event_time="ts", time_unit="s").persist(
        "kept", lossy={"v": 0.005}
    )
    kept.sink("out", hf.sink.collect())
    outcomes = run_fragments(pipeline, Cut(1_000, 1, 1))
    seen = outcomes["lossy.out"].sinks["out"]
    worst = (seen["v"] - data["v"]).abs().max()
    assert worst <= 0.005


def tied(count: int = 240) -> pl.DataFrame:
    """Rows whose windows close together, so that many results have the same time."""
    generator = random.Random(3)
    return pl.DataFrame(
        {
            "ts": range(count),
            "k": [generator.randrange(3) for _ in range(count)],
            "s": [generator.choice("abcdef") for _ in range(count)],
            "v": [generator.randrange(50) for _ in range(count)],
        }
    )


def pairs(rows, state, context):
    """Each value with the one before it of the same key: what a process puts out depends on the order of its rows."""
    known = rows.join(state.rename({"v": "known"}), on="k", how="left", maintain_order="left")
    before = pl.col("v").shift(1).over("k").fill_null(pl.col("known")).fill_null(-1)
    return hf.Step(
        output=known.select("k", "v", before=before),
        upserts=rows.group_by("k", maintain_order=True).agg(v=pl.col("v").last()),
    )


PAIRS = {"k": pl.Int64, "v": pl.Int64, "before": pl.Int64}
BEHIND = {
    "process": lambda s: s.key_by("k").process(pairs, state={"v": pl.Int64}, output=PAIRS, keep_forever=True),
    "count window": lambda s: s.key_by("k").window(hf.window.count(3, 2)).agg(a=hf.first("v"), b=hf.last("v")),
    "first and last": lambda s: s.key_by("k").window(hf.window.tumbling("20s")).agg(a=hf.first("v"), b=hf.last("s")),
}


@pytest.mark.parametrize("behind", BEHIND)
@pytest.mark.parametrize("number", [0, *long_cases(1), 9])
def test_results_of_equal_time_keep_their_order_behind_a_cut(behind, number):
    def build(persisted):
        pipeline = hf.Pipeline("tied")
        given_rows = pipeline.source("in", hf.source.memory(tied()), event_time="ts", time_unit="s")
        results = given_rows.key_by("k", "s").window(hf.window.tumbling("10s")).agg(n=hf.count(), v=hf.sum("v"))
        if persisted:
            results = results.persist("results")
        to_sink(BEHIND[behind](results))
        return pipeline

    for cut, other in [(WHOLE, WHOLE), (Cut(50, 2, 2), Cut(7, 2, 1)), (Cut(30, 1, 3), Cut(1_000, 2, 2))]:
        same_with_and_without(build, cut, other, number)


def test_a_lossy_column_is_rounded_only_while_it_is_what_was_declared():
    data = pl.DataFrame({"ts": range(4_000), "v": [float(i) * 1.37 for i in range(4_000)]})
    for number in range(6):
        pipeline = hf.Pipeline("lossy")
        kept = pipeline.source("in", hf.source.memory(data), event_time="ts", time_unit="s").persist(
            "kept", lossy={"v": 0.5}
        )
        kept.with_columns(v=pl.col("v") / 1_000).filter(pl.col("v") > 0.9).sink("out", hf.sink.collect())
        outcomes = run_fragments(pipeline, WHOLE, placements=place(number)(pipeline))
        seen = outcomes["lossy.out"].sinks["out"]
        exact = data.with_columns(v=pl.col("v") / 1_000)
        both = seen.join(exact, on="ts", suffix="_exact")
        assert both.height == seen.height
        assert (both["v"] - both["v_exact"]).abs().max() <= 0.0005 + 1e-12


def test_a_sample_that_an_operator_cannot_take_leaves_the_rules_to_decide():
    def fails(frame):
        if frame.height:
            raise ValueError("boom")
        return frame

    pipeline = hf.Pipeline("fails")
    kept = pipeline.source("in", hf.source.memory(numbers()), event_time="ts", time_unit="s").persist("kept")
    kept.filter(pl.col("k") > 0).map_batches(fails).sink("out", hf.sink.collect())
    text = hf.explain(pipeline)
    assert "the sample could not be measured, because an operator raised ValueError: boom" in text
    assert "placed after filter" in text
