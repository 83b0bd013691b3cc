"""What a pipeline must keep is declared with it, and goes with each of its fragments."""

from __future__ import annotations

from typing import Any

import polars as pl
import pytest

import holdfast as hf
from holdfast.engine.options import RunOptions
from holdfast.errors import DeclarationError
from holdfast.graph.guarantee import Delivery
from holdfast.plan.cuts import cut_pipeline
from holdfast.plan.explain import explain
from holdfast.plan.program import compile_program
from holdfast.plan.source_sample import place_cuts


def declared(guarantee: hf.Guarantee | None = None, *, cut: bool = False) -> hf.Pipeline:
    pipeline = hf.Pipeline("kept", guarantee=guarantee)
    rows = pipeline.source("in", hf.source.memory(pl.DataFrame({"k": [1], "ts": [1]})), event_time="ts", time_unit="s")
    if cut:
        rows = rows.persist("cut", push_up=False)
    windows = rows.key_by("k").window(hf.window.count(10))
    windows.agg(n=hf.count()).named("counts").sink("out", hf.sink.collect())
    return pipeline


def test_fragments_keep_the_guarantee_of_their_pipeline():
    pipeline = declared(hf.Guarantee(recovery="2s"), cut=True)
    cuts = cut_pipeline(pipeline, place_cuts(pipeline, {}))
    assert [compile_program(fragment.pipeline).guarantee.recovery_seconds for fragment in cuts.fragments] == [2.0, 2.0]


def test_explain_says_what_is_guaranteed():
    assert "the cheapest policy, among those that restore lost state within 2 s" in explain(
        declared(hf.Guarantee(recovery="2s"))
    )
    assert "durability: the cheapest policy\n" in explain(declared())


def test_explain_says_where_footprints_go():
    pipeline = hf.Pipeline("kept")
    rows = pipeline.source("in", hf.source.memory(pl.DataFrame({"k": [1], "ts": [1]})), event_time="ts", time_unit="s")
    windows = rows.key_by("k").window(hf.window.count(10), name="counts", checkpoint=hf.checkpoint.eventual("2s"))
    windows.agg(n=hf.count()).sink("out", hf.sink.collect())
    assert "windows of counts write footprints to the p-stream kept.counts.footprints;" in explain(pipeline)


@pytest.mark.parametrize("time", ["0s", -1, "soon"])
def test_a_time_that_makes_no_sense_is_refused(time: str | int):
    with pytest.raises(DeclarationError) as caught:
        hf.Guarantee(recovery=time)
    assert caught.value.cure
    assert "a guarantee" in caught.value.problem, "whose time it is"
    with pytest.raises(DeclarationError):
        RunOptions(recovery=time)


@pytest.mark.parametrize(
    "wrong",
    [
        {"delivery": "at-most-once"},
        {"delivery": None},
        {"delivery": True},
        {"budget": -0.01},
        {"budget": float("nan")},
        {"budget": float("inf")},
        {"budget": True},
        {"budget": "5"},
    ],
)
def test_a_delivery_or_a_budget_that_makes_no_sense_is_refused(wrong: dict[str, Any]):
    with pytest.raises(DeclarationError) as caught:
        hf.Guarantee(recovery="2s", **wrong)
    [(name, value)] = wrong.items()
    assert name in caught.value.problem
    assert repr(value) in caught.value.problem
    assert caught.value.cure


def test_a_guarantee_for_replicas_is_told_in_figures():
    asked = hf.Guarantee(recovery="2 s", delivery="gap", budget=1)
    assert (asked.recovery_seconds, asked.precise, asked.budget) == (2.0, False, 1)
    assert asked == hf.Guarantee(recovery="2 s", delivery=Delivery.GAP, budget=1.0)
    assert asked.delivery is Delivery.GAP
    assert hf.Guarantee().precise
    assert hf.Guarantee().recovery_seconds is None


def test_what_is_no_guarantee_and_no_policy_is_refused():
    with pytest.raises(DeclarationError, match="guarantee of pipeline 'kept' is '2s'"):
        hf.Pipeline("kept", guarantee="2s")  # type: ignore[arg-type]
    rows = hf.Pipeline("kept").source("in", hf.source.memory(pl.DataFrame({"k": [1]})))
    windows = rows.key_by("k")
    for wrong in (hf.checkpoint.eventual, 5, {"Q": 1}):
        with pytest.raises(DeclarationError, match="is not a checkpoint policy"):
            windows.window(hf.window.count(10), checkpoint=wrong).agg(n=hf.count())  # type: ignore[arg-type]
    with pytest.raises(DeclarationError, match="U is True"):
        hf.checkpoint.eventual(U=True)


def test_explain_refuses_what_a_run_would_refuse():
    pipeline = hf.Pipeline("two")
    rows = pipeline.source("in", hf.source.memory(pl.DataFrame({"k": [1], "ts": [1]})), event_time="ts", time_unit="s")
    one = (
        rows.key_by("k")
        .window(hf.window.tumbling("5s"), name="one", checkpoint=hf.checkpoint.eventual("2s"))
        .agg(n=hf.count())
    )
    one.key_by("k").window(hf.window.count(2), name="two").agg(m=hf.sum("n")).sink("out", hf.sink.collect())
    with pytest.raises(DeclarationError, match="replays 'one' only in part"):
        explain(pipeline)
