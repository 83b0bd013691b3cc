"""Sources that fall silent: with `idle` windows do not wait for them, which is decided by the plan of an epoch."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path

import polars as pl
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

import holdfast as hf
from arriving import CLOCK, Arriving, play
from harness import Cut, Stepping, rerun
from holdfast.cli import main
from holdfast.engine.silent_sources import SilentSources
from holdfast.errors import WrongTypeError
from holdfast.plan.cuts import cut_pipeline
from holdfast.plan.program import compile_program
from holdfast.plan.source_sample import place_cuts
from strategies import examples


def declare(
    rows: Mapping[str, list[tuple[float, int]]], ends: float, *, lateness: int = 0, **idle: str | None
) -> hf.Pipeline:
    pipeline = hf.Pipeline("silence")
    streams = [
        pipeline.source(
            name, Arriving(found, ends), event_time="ts", time_unit="s", idle=idle.get(name), lateness=lateness
        ).select("ts", "v", name=pl.lit(name))
        for name, found in rows.items()
    ]
    counted = streams[0].union(*streams[1:]).key_by("name").window(hf.window.tumbling(10)).agg(n=hf.count())
    counted.sink("out", hf.sink.collect())
    counted.late.sink("late", hf.sink.collect())
    return pipeline


QUIET = {"busy": [(float(t), 10 * t) for t in range(30)], "quiet": [(0.0, 0), (25.0, 30), (25.0, 245)]}


def test_a_silent_source_does_not_hold_windows_up() -> None:
    outcome = play(declare(QUIET, 1e9, quiet="5s"), 24.0)
    closed = outcome.sinks["out"].filter(pl.col("name") == "busy")["window_end"].to_list()
    assert closed == list(range(10, 250, 10))
    assert outcome.records[-1].idle == ("quiet",)
    held = play(declare(QUIET, 1e9), 24.0)
    assert held.rows() == []
    assert held.records[-1].idle == ()


def test_what_it_brings_later_is_late_by_the_watermark_that_it_followed() -> None:
    outcome = play(declare(QUIET, 40.0, quiet="5s"), 60.0)
    assert outcome.rows("late") == [(30, 30, "quiet")]
    assert sorted(row for row in outcome.rows() if row[0] == "quiet") == [("quiet", 0, 10, 1), ("quiet", 240, 250, 1)]
    assert any(not plan.idle for plan in outcome.plans[10:]), "a source that is heard is not idle"


def test_an_epoch_without_rows_closes_windows_when_the_silence_has_lasted() -> None:
    """Nothing else comes that would make an epoch."""
    rows = {"one": [(0.0, 5), (0.0, 95)], "other": [(0.0, 7)]}
    outcome = play(declare(rows, 1e9, other="3s"), 10.0)
    assert [plan.now for plan in outcome.plans] == [0.0, 3.0]
    assert outcome.plans[1].idle == {"other": {"one": 0}}
    assert sorted(outcome.rows()) == [("one", 0, 10, 1), ("other", 0, 10, 1)]


def test_a_source_is_heard_in_plans_that_another_host_has_made() -> None:
    """As a secondary finds them: it does not look at sources itself before it takes over."""
    outcome = play(declare({"one": [(0.0, 5)], "other": [(9.0, 7)]}, 1e9, other="3s"), 10.0)
    [plan] = [plan for plan in outcome.plans if any(plan.slices["other"])]
    silent = SilentSources(compile_program(declare({"one": [], "other": []}, 1e9, other="3s")), 0.0)
    assert [node.name for node in silent.after(10.0, None)] == ["other"]
    silent.planned(9.0, plan)
    assert silent.after(10.0, None) == []
    assert [node.name for node in silent.after(12.0, None)] == ["other"]


def test_where_all_are_silent_they_follow_the_one_that_has_come_farthest() -> None:
    rows = {"one": [(0.0, 5), (0.0, 95)], "other": [(0.0, 7)]}
    outcome = play(declare(rows, 1e9, one="3s", other="3s"), 10.0)
    assert sorted(outcome.rows()) == [("one", 0, 10, 1), ("other", 0, 10, 1)]
    assert outcome.records[-1].greatest == {"one": 95, "other": 95}


def test_a_source_that_was_never_heard_holds_nothing_up_either() -> None:
    outcome = play(declare({"one": [(0.0, 5), (0.0, 95)], "other": []}, 1e9, other="3s"), 10.0)
    assert outcome.rows() == [("one", 0, 10, 1)]


schedules = st.lists(st.tuples(st.integers(0, 30).map(float), st.integers(0, 60)), max_size=12).map(
    lambda rows: sorted(rows, key=lambda row: row[0])
)


@examples(8)
@given(
    one=schedules,
    other=schedules,
    idle=st.tuples(*[st.sampled_from([None, "0s", "2s", "6s"])] * 2),
    lateness=st.sampled_from([0, 4]),
    cut=st.builds(Cut, rows=st.sampled_from([1, 3, 100]), tasks=st.integers(1, 2), partitions=st.integers(1, 3)),
    step=st.sampled_from([1.0, 3.0]),
)
def test_every_row_counts_or_is_late_by_the_watermark_before_it(one, other, idle, lateness, cut, step) -> None:
    pipeline = declare({"one": one, "other": other}, 40.0, lateness=lateness, one=idle[0], other=idle[1])
    outcome = play(pipeline, 50.0, step, cut)
    left = {"one": list(one), "other": list(other)}
    counts: dict[tuple[str, int, int], int] = defaultdict(int)
    late = []
    closed: dict[str, int] = {}
    for number, plan in enumerate(outcome.plans, 1):
        before, after = outcome.records[number - 1], outcome.records[number]
        for name, rows in left.items():
            greatest = before.greatest[name]
            for _, ts in rows[: plan.rows_of(name)]:
                bound = None if greatest is None else greatest - lateness
                end = ts // 10 * 10 + 10
                if bound is not None and end <= bound:
                    late.append((ts, ts, name))
                else:
                    counts[name, end - 10, end] += 1
                greatest = ts if greatest is None else max(greatest, ts)
            left[name] = rows[plan.rows_of(name) :]
            assert after.greatest[name] is None or greatest is None or after.greatest[name] >= greatest
            if name not in plan.idle:
                assert after.greatest[name] == greatest, "only a source that is idle follows others"
        mark = outcome.watermark_after("window", number)
        assert closed.get("mark") is None or (mark is not None and mark >= closed["mark"])
        closed = {} if mark is None else {"mark": mark}
    assert sorted(outcome.rows()) == sorted((*group, n) for group, n in counts.items())
    assert sorted(outcome.rows("late")) == sorted(late)
    if outcome.epochs > 1:
        again = rerun(pipeline, outcome, 0, after=0)
        assert sorted(again.rows()) == sorted(outcome.rows()), "a replay goes by the plans, whatever the clock says"


def test_status_says_which_sources_are_idle(tmp_path: Path) -> None:
    rows = {"one": [(0.0, 5), (0.0, 95)], "other": [(0.0, 7)]}
    CLOCK.now = 0.0
    stepping = Stepping(tmp_path, declare(rows, 1e9, other="3s"), clock=CLOCK, until_idle=False)
    with stepping.run.seated():
        assert stepping.epoch()
        CLOCK.now = 5.0
        assert stepping.epoch()
    shown = CliRunner().invoke(main, ["status", "silence", "--store", str(tmp_path)])
    assert "idle: windows do not wait for it" in shown.output


def test_it_is_explained_and_goes_with_the_rows_through_a_p_stream() -> None:
    pipeline = declare({"one": [], "other": []}, 1.0, one="90s")
    assert "lateness 0; after 1 min 30 s of silence nothing waits for it" in hf.explain(pipeline)
    kept = hf.Pipeline("kept")
    sources = [
        kept.source(name, Arriving([], 1.0), event_time="ts", time_unit="s", idle=idle)
        for name, idle in (("one", "90s"), ("other", "5s"), ("third", None))
    ]
    sources[0].union(sources[1]).persist("both").join(
        sources[2].persist("last"), on="v", window=hf.window.tumbling(5)
    ).sink("out", hf.sink.collect())
    cut = cut_pipeline(kept, place_cuts(kept, {}))
    [reader] = [part.pipeline for part in cut.fragments if "out" in part.pipeline.nodes]
    assert (reader.nodes["both"].idle, reader.nodes["last"].idle) == (90.0, None)  # type: ignore[attr-defined]


def test_mistakes_are_named() -> None:
    with pytest.raises(WrongTypeError, match="idle concerns the event time"):
        hf.Pipeline("p").source("in", Arriving([], 1.0), idle="5s")
    with pytest.raises(WrongTypeError, match="idle='soon' is not a duration"):
        hf.Pipeline("p").source("in", Arriving([], 1.0), event_time="ts", time_unit="s", idle="soon")
