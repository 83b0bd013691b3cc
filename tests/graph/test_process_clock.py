"""Keyed processes by the clock, against plain Python along the plans: what happens follows from when epochs were
planned, and a replay by the same plans is the same."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

import holdfast as hf
from arriving import CLOCK, Arriving, play
from harness import Cut, Stepping, rerun
from holdfast.errors import DeclarationError, OperatorError, PipelineChangedError
from holdfast.plan.program import compile_program
from holdfast.plan.shape import check_shape, shape_of_program
from holdfast.testkit.quick_store import quick_store
from strategies import examples

DELAY = 3_000_000
OUT = {"v": pl.Int64, "n": pl.Int64, "at": pl.Int64}


def silence(rows: pl.DataFrame, state: pl.DataFrame, context: hf.ProcessContext) -> hf.Step:
    """Counts the rows of a key, and tells how many there were when none has come for a while."""
    if context.timers.height:
        told = context.timers.join(state, on="v")
        return hf.Step(output=told.select(list(OUT)), deletes=told.select("v"))
    counted = rows.group_by("v").agg(new=pl.len().cast(pl.Int64)).join(state, on="v", how="left")
    counted = counted.select("v", n=pl.col("new") + pl.col("n").fill_null(0))
    return hf.Step(upserts=counted, timers=counted.select("v", at=pl.lit(context.clock + DELAY)))


def declare(rows, ends, **options):
    pipeline = hf.Pipeline("clocked")
    given = {"state": {"n": pl.Int64}, "output": OUT, "time": "clock", **options}
    source = pipeline.source("in", Arriving(rows, ends)).select(v=pl.col("v") % 3)
    source.key_by("v").process(given.pop("function", silence), **given).sink("out", hf.sink.collect())
    return pipeline


def told(plans, rows, ended):
    """What is put out: timers fire before the rows of an epoch that is planned at or after them."""
    counts, timers, out, left = {}, {}, [], list(rows)
    for plan in plans:
        clock = round(plan.now * 1e6)
        for key, at in sorted(timers.items()):
            if at <= clock:
                out.append((key, counts.pop(key), timers.pop(key)))
        for _, value in left[: plan.rows_of("in")]:
            counts[value % 3] = counts.get(value % 3, 0) + 1
            timers[value % 3] = clock + DELAY
        left = left[plan.rows_of("in") :]
    return sorted(out + ([(key, counts[key], at) for key, at in timers.items()] if ended else []))


schedules = st.lists(st.tuples(st.integers(0, 40).map(float), st.integers(0, 8)), max_size=20).map(
    lambda rows: sorted(rows, key=lambda row: row[0])
)
cuts = st.builds(
    Cut,
    rows=st.sampled_from([1, 3, 100]),
    tasks=st.integers(1, 2),
    partitions=st.integers(1, 3),
    scales=st.sampled_from([(), (1, 3)]),
    merges=st.sampled_from([(), (1,), (1, 3)]),
)


@examples(6)
@given(rows=schedules, cut=cuts, step=st.sampled_from([0.5, 1.0, 4.0]))
def test_timers_fire_by_the_clock_of_the_plans(rows, cut, step):
    pipeline = declare(rows, 60.0, timers=True, keep_forever=True)
    outcome = play(pipeline, 70.0, step, cut)
    assert sorted(outcome.rows()) == told(outcome.plans, rows, ended=True)
    for key, _, at in outcome.rows():
        seen = [plan.now for plan in outcome.plans if plan.now * 1e6 >= at]
        assert seen, f"no epoch was planned for the timer of {key}"
        assert seen[0] * 1e6 <= at + 1_000_000 + step * 1e6, "an epoch is planned when a timer is due"
    if outcome.epochs > 1:
        CLOCK.now = 1e6
        again = rerun(pipeline, outcome, 0, after=0)
        assert sorted(again.rows()) == sorted(outcome.rows()), "a replay goes by the plans, whatever the clock says"


def test_a_timer_fires_though_nothing_else_happens():
    pipeline = declare([(0.0, 1), (1.0, 1)], 1e9, timers="1s", keep_forever=True)
    outcome = play(pipeline, 20.0)
    assert outcome.rows() == [(1, 2, 4_000_000)]
    assert [plan.now for plan in outcome.plans] == [0.0, 1.0, 3.0, 4.0]  # the first timer was replaced


def test_a_timer_fires_after_a_restart_when_it_is_due():
    pipeline = declare([(0.0, 1)], 1e9, timers=True, keep_forever=True)
    with quick_store() as store:
        CLOCK.now = 0.0
        for now, expected in ((0.0, []), (2.0, []), (9.0, [(1, 1, 3_000_000)]), (20.0, [])):
            CLOCK.now = now
            stepping = Stepping(store.root, pipeline, clock=CLOCK, meta=store.meta(), until_idle=False)
            with stepping.run.seated():
                stepping.epoch()
            assert stepping.outcome.rows() == expected


@examples(5)
@given(rows=schedules, cut=cuts)
def test_state_lives_as_long_as_the_clock_says(rows, cut):
    def count(rows, state, context):
        counted = rows.group_by("v").agg(new=pl.len().cast(pl.Int64)).join(state, on="v", how="left")
        counted = counted.select("v", n=pl.col("new") + pl.col("n").fill_null(0), at=pl.lit(context.clock))
        return hf.Step(output=counted, upserts=counted.select("v", "n"))

    outcome = play(declare(rows, 60.0, ttl="3s", function=count), 70.0, 1.0, replace(cut, rows=1))
    counts, touched, expected, left = {}, {}, [], list(rows)
    for plan in outcome.plans:
        clock = round(plan.now * 1e6)
        for _, value in left[: plan.rows_of("in")]:
            key = value % 3
            kept = key in touched and clock <= touched[key] + 3_000_000
            counts[key] = counts[key] + 1 if kept else 1
            touched[key] = clock
            expected.append((key, counts[key], clock))
        left = left[plan.rows_of("in") :]
    assert sorted(outcome.rows()) == sorted(expected)


def test_a_timer_may_be_a_point_in_time_and_must_not_lie_in_the_past():
    def at(moment):
        def function(rows, state, context):
            if context.timers.height:
                return hf.Step(output=context.timers.select("v", pl.lit(1).alias("n"), "at"))
            known = rows.select("v").unique()
            return hf.Step(upserts=known.with_columns(n=pl.lit(1)), timers=known.with_columns(at=pl.lit(moment)))

        return declare([(100.0, 1)], 1e9, timers=True, keep_forever=True, function=function)

    assert play(at(datetime.fromtimestamp(103, UTC)), 110.0).rows() == [(1, 1, 103_000_000)]
    with pytest.raises(OperatorError, match="is before the row that sets it"):
        play(at(datetime.fromtimestamp(3, UTC)), 110.0)


def test_it_is_explained_and_its_state_keeps_its_meaning():
    text = hf.explain(declare([], 1.0, ttl="10 min", timers=True))
    assert "kept 10 min 0 s of the clock after the last row, timers by the clock" in text

    def shape(**options):
        pipeline = hf.Pipeline("p")
        rows = pipeline.source("in", Arriving([], 1.0), event_time="ts", time_unit="s")
        rows.key_by("v").process(silence, state={"n": pl.Int64}, output=OUT, ttl="1s", **options).sink(
            "out", hf.sink.collect()
        )
        return shape_of_program(compile_program(pipeline))

    with pytest.raises(PipelineChangedError, match="kind of 'process' was KeyedProcess"):
        check_shape("p", shape(), shape(time="clock"))
    with pytest.raises(DeclarationError, match="by the clock emits rows without event time"):
        declare([], 1.0, ttl="1s", event_time="at")
