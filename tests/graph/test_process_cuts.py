"""Keyed processes and the cut: rows, timers and lateness behind them are those of a run row by row."""

from __future__ import annotations

import runpy
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from machines import EVENTS, OUTPUT, STATE, Machine, RowByRow
from oracles import (
    BOUND,
    assert_same_rows,
    group_sessions,
    group_windows,
    new_pipeline,
    seen_watermarks,
    source,
    to_sink,
)

import holdfast as hf
from harness import Cut, run, run_fragments
from holdfast.errors import OperatorError
from strategies import SECONDS, Given, cuts, examples, streams


def declare(given: Given, machine: Callable[..., hf.Step], **options: Any) -> tuple[hf.Pipeline, hf.Stream]:
    pipeline = new_pipeline()
    options = {"keep_forever": True, "timers": True, "output": OUTPUT, "event_time": "at", **options}
    return pipeline, source(pipeline, given).key_by("k").process(machine, state=STATE, name="machine", **options)


machines = st.builds(
    Machine, delay=st.sampled_from([5, 6, 12, 30]), back=st.booleans(), tick=st.none() | st.sampled_from([1, 9])
)
"""The values of rows are -5 at least: timers lie at or after their rows."""


@examples(25)
@given(stream=streams("k", "v", clocks=(SECONDS,)), machine=machines, cut=cuts)
def test_timers_fire_before_the_rows_that_come_after_them(stream, machine, cut):
    pipeline, rows = declare(stream, machine)
    to_sink(rows)
    expected = RowByRow(machine).run(stream)
    assert_same_rows(run(pipeline, cut).sinks["out"], [(o["k"], o["ts"], o["what"], o["n"]) for o in expected])


@examples(20)
@given(stream=streams("k", "v", clocks=(SECONDS,)), machine=machines, cut=cuts, timers=st.booleans())
def test_what_is_late_behind_a_process_goes_by_the_row_that_caused_it(stream, machine, cut, timers):
    machine = replace(machine, timers=timers)
    pipeline, rows = declare(stream, machine, timers=timers)
    window = rows.key_by("k").window(hf.window.sliding("10s", "5s")).agg(n=hf.count(), total=hf.sum("n"))
    to_sink(window)
    to_sink(window.late, "late")
    tumbling = rows.key_by("k").window(hf.window.tumbling("7s")).agg(n=hf.count())
    to_sink(tumbling, "lifted")
    sessions = rows.key_by("k").window(hf.window.session("4s")).agg(n=hf.count())
    to_sink(sessions, "sessions")
    made = RowByRow(machine).run(stream)
    outcome = run(pipeline, cut)
    groups, late = group_windows(made, ["k"], 10, 5)
    assert_same_rows(outcome.sinks["out"], [(*w, len(g), sum(o["n"] for o in g)) for w, g in groups.items()])
    assert_same_rows(outcome.sinks["late"], [(o["k"], o["ts"], o["what"], o["n"]) for o in late])
    groups, late = group_windows(made, ["k"], 7, 7)
    assert_same_rows(outcome.sinks["lifted"], [(*w, len(g)) for w, g in groups.items()])
    assert outcome.late[tumbling.name] == len(late)
    groups, late = group_sessions(made, ["k"], 4)
    assert_same_rows(outcome.sinks["sessions"], [(*w, len(g)) for w, g in groups.items()])
    assert outcome.late[sessions.name] == len(late)


@examples(15)
@given(stream=streams("k", "v", clocks=(SECONDS,)), machine=machines, cut=cuts, ttl=st.sampled_from([1, 5, 20]))
def test_state_goes_by_the_rows_time_and_by_the_watermark_before_it(stream, machine, cut, ttl):
    """Also where rows come out of order; those that neither make state nor leave it alone are left out."""
    rows = [{**row, "v": 2 if row["v"] in (0, 1) else row["v"]} for row in stream.rows]
    stream = replace(stream, rows=rows)
    pipeline, made = declare(stream, machine, ttl=ttl, keep_forever=False)
    to_sink(made)
    expected = RowByRow(machine, ttl).run(stream)
    assert_same_rows(run(pipeline, cut).sinks["out"], [(o["k"], o["ts"], o["what"], o["n"]) for o in expected])


@pytest.mark.parametrize("rows", [1, 2, 3])
def test_a_row_that_leaves_the_state_alone_keeps_it_alive(rows):
    given = Given([{"ts": ts, "k": 0, "v": v} for ts, v in ((0, 2), (8, 1), (15, 2), (30, 2))], EVENTS)
    pipeline, made = declare(given, Machine(5, timers=False), ttl=10, keep_forever=False, timers=False)
    to_sink(made)
    assert [n for *_, n in run(pipeline, Cut(rows=rows)).rows()] == [1, 2, 2, 1]


@pytest.mark.parametrize("rows", [1, 2])
def test_a_timer_that_has_fired_keeps_no_state_alive(rows):
    def once(rows, state, context):
        known = rows.join(state, on="k", how="left")
        new = known.filter(pl.col("n").is_null())
        return hf.Step(
            output=known.select("k", at="ts", what=pl.lit("row"), n="n"),
            upserts=new.select("k", n=pl.lit(1, pl.Int64), since="ts"),
            timers=new.select("k", at=pl.col("ts") + 1),
        )

    given = Given([{"ts": ts, "k": 0, "v": 0} for ts in (0, 5, 30)], EVENTS)
    pipeline, made = declare(given, once, ttl=10, keep_forever=False)
    to_sink(made)
    assert [n for *_, n in run(pipeline, Cut(rows=rows)).rows()] == [None, 1, None]


@dataclass(slots=True)
class Quiet:
    """Says when a key has been quiet for a while, with how many rows it had: in whatever order rows of one moment
    come, the same."""

    delay: int

    def __call__(self, rows: pl.DataFrame, state: pl.DataFrame, context: hf.ProcessContext) -> hf.Step:
        due = context.timers.join(state, on="k", nulls_equal=True)
        new = rows.group_by("k").agg(n=pl.len().cast(pl.Int64), since=pl.col("at").max())
        every = pl.concat([state.select("k", *STATE), new.select("k", *STATE)])
        after = every.group_by("k").agg(pl.col("n").sum(), pl.col("since").max())
        after = after.join(new, on="k", how="semi", nulls_equal=True)
        return hf.Step(
            output=due.select("k", "at", what=pl.lit("quiet"), n="n"),
            upserts=after.select("k", *STATE),
            timers=after.select("k", at=pl.col("since") + self.delay),
        )

    def expected(self, rows: list[dict[str, Any]], farthest: int) -> list[tuple[Any, ...]]:
        """Rows with their watermarks, in the order of these."""
        held: dict[Any, tuple[int, int]] = {}
        timers: dict[Any, int] = {}
        out = []

        def fire(k: object, limit: int | None) -> None:
            if k in timers and limit is not None and timers[k] <= limit:
                out.append((k, timers.pop(k), "quiet", held[k][0]))

        for row in sorted(rows, key=lambda row: (row[BOUND] is not None, row[BOUND])):
            k, at = row["k"], row["ts"]
            fire(k, row[BOUND])
            n, since = held.get(k, (0, at))
            held[k] = (n + 1, max(since, at))
            timers[k] = held[k][1] + self.delay
        for k in list(timers):
            fire(k, timers[k])
        return out


@examples(12)
@given(stream=streams("k", "v", clocks=(SECONDS,)), machine=machines, cut=cuts, delay=st.sampled_from([0, 3, 15]))
def test_timers_of_a_process_behind_a_process(stream, machine, cut, delay):
    pipeline, made = declare(stream, machine)
    quiet = Quiet(delay)
    to_sink(made.key_by("k").process(quiet, state=STATE, output=OUTPUT, keep_forever=True, timers=True, name="quiet"))
    rows = RowByRow(machine).run(stream)
    assert_same_rows(run(pipeline, cut).sinks["out"], quiet.expected(rows, 0))


@examples(10)
@given(stream=streams("k", "v", clocks=(SECONDS,)), cut=cuts, delay=st.sampled_from([0, 3, 15]))
def test_timers_of_a_process_behind_a_window(stream, cut, delay):
    pipeline = new_pipeline()
    counts = source(pipeline, stream).key_by("k").window(hf.window.tumbling(7)).agg(n=hf.count())
    quiet = Quiet(delay)
    named = counts.with_columns(at=pl.col("window_end") - 1)
    to_sink(named.key_by("k").process(quiet, state=STATE, output=OUTPUT, keep_forever=True, timers=True, name="quiet"))
    groups, _ = group_windows(seen_watermarks(stream), ["k"], 7, 7)
    rows = [{"k": k, "ts": end - 1, BOUND: end} for k, _, end in groups]
    assert_same_rows(run(pipeline, cut).sinks["out"], quiet.expected(rows, 0))


def doubled(frame: pl.DataFrame) -> pl.DataFrame:
    """Rows with an odd value twice, those with 2 not at all."""
    times = pl.when(pl.col("v") == 2).then(0).when(pl.col("v") % 2 == 1).then(2).otherwise(1)
    return frame.select(pl.all().repeat_by(times)).explode(pl.all()).filter(pl.col("ts").is_not_null())


STATELESS: dict[str, tuple[Callable[[hf.Stream], hf.Stream], Callable[[dict[str, Any]], int]]] = {
    "filter": (lambda s: s.filter(pl.col("v").fill_null(0) != 3), lambda row: row["v"] != 3),
    "map_batches": (lambda s: s.map_batches(lambda f: f.with_columns(pl.col("v").fill_null(7))), lambda row: 1),
    "map_batches that changes the number of rows": (
        lambda s: s.map_batches(doubled, schema=EVENTS),
        lambda row: {2: 0}.get(row["v"], 2 if row["v"] is not None and row["v"] % 2 == 1 else 1),
    ),
    "persist": (lambda s: s.filter(pl.col("v").fill_null(0) != 3).persist("cut"), lambda row: row["v"] != 3),
}


MOVED_BY_A_ROW_LEFT_OUT = Given(
    [{"ts": ts, "k": k, "v": v} for ts, k, v in ((0, 0, 4), (50, 1, 3), (60, 0, 4))], EVENTS
)


@pytest.mark.parametrize("kind", STATELESS)
@examples(5)
@given(stream=streams("k", "v", clocks=(SECONDS,)), machine=machines, cut=cuts, other=cuts)
@example(stream=MOVED_BY_A_ROW_LEFT_OUT, machine=Machine(5), cut=Cut(), other=Cut())
def test_rows_keep_their_watermarks_on_the_way_to_a_process(kind, stream, machine, cut, other):
    build, copies = STATELESS[kind]
    pipeline = new_pipeline()
    rows = build(source(pipeline, stream))
    made = rows.key_by("k").process(
        machine, state=STATE, output=OUTPUT, keep_forever=True, timers=True, event_time="at", name="machine"
    )
    to_sink(made.persist("behind") if kind == "persist" else made, "rows")
    counts = made.key_by("k").window(hf.window.tumbling("7s")).agg(n=hf.count())
    to_sink(counts)
    if kind == "persist":
        sinks = {n: f for o in run_fragments(pipeline, cut, other).values() for n, f in o.sinks.items()}
    else:
        sinks = run(pipeline, cut).sinks
    oracle = RowByRow(machine)
    given_rows = [row for row in seen_watermarks(stream) for _ in range(copies(row))]
    if kind == "map_batches":
        given_rows = [{**row, "v": 7 if row["v"] is None else row["v"]} for row in given_rows]
    expected = oracle.over(given_rows, stream)
    assert_same_rows(sinks["rows"], [(o["k"], o["ts"], o["what"], o["n"]) for o in expected])
    groups, _ = group_windows(expected, ["k"], 7, 7)
    assert_same_rows(sinks["out"], [(*w, len(g)) for w, g in groups.items()])


@dataclass(slots=True)
class Nameless:
    """A machine whose output does not say which key it is about."""

    machine: Machine

    def __call__(self, rows: pl.DataFrame, state: pl.DataFrame, context: hf.ProcessContext) -> hf.Step:
        made = self.machine(rows, state, context)
        assert made.output is not None
        return replace(made, output=made.output.drop("k"))


@examples(10)
@given(stream=streams("k", "v", clocks=(SECONDS,)), machine=machines, cut=cuts)
def test_what_is_late_where_the_output_does_not_name_the_key(stream, machine, cut):
    output = {name: dtype for name, dtype in OUTPUT.items() if name != "k"}
    pipeline, rows = declare(stream, Nameless(machine), output=output)
    to_sink(rows.window(hf.window.tumbling("7s")).agg(n=hf.count(), total=hf.sum("n")))
    groups, _ = group_windows(RowByRow(machine).run(stream), [], 7, 7)
    expected = [(*w, len(g), sum(o["n"] for o in g)) for w, g in groups.items()]
    assert_same_rows(run(pipeline, cut).sinks["out"], expected)


@pytest.mark.parametrize("cut", [Cut(), Cut(rows=1), Cut(rows=2)])
def test_the_example_reports_a_card_that_was_quiet_and_used_again(cut):
    example = runpy.run_path(str(Path(__file__).parents[2] / "examples" / "keyed_process.py"))
    payments = [(0, 1, 100), (4_000, 2, 100), (5_000, 1, 100)]
    pipeline = new_pipeline()
    frame = pl.DataFrame(payments, schema=example["PAYMENTS"], orient="row")
    rows = pipeline.source("payments", hf.source.memory(frame), event_time="time", time_unit="s")
    process = example["pipeline"].nodes["watch"]
    notices = rows.key_by("card").process(
        process.function, state=process.state, output=process.schema, ttl="1h", timers="15 min", event_time="time"
    )
    to_sink(notices)
    quiet = [(card, time) for card, time, notice, _ in run(pipeline, cut).rows() if notice == "not used any more"]
    assert sorted(quiet) == [(1, 900), (1, 5_900), (2, 4_900)]


@pytest.mark.parametrize("cut", [Cut(), Cut(rows=1), Cut(rows=2)])
def test_a_duplicate_is_dropped_and_what_is_late_stays_late(cut):
    def once(rows, state, context):
        first = rows.unique("v", keep="first", maintain_order=True).join(state, on="v", how="anti")
        return hf.Step(output=first.select("v", "ts"), upserts=first.select("v", n=pl.lit(1, pl.Int64)))

    events = [{"ts": ts, "k": 0, "v": v} for v, ts in enumerate([1, 12, 25, 3])]
    pipeline = new_pipeline()
    unique = (
        source(pipeline, Given(events, EVENTS))
        .key_by("v")
        .process(once, state={"n": pl.Int64}, output={"v": pl.Int64, "ts": pl.Int64}, ttl="1h", event_time="ts")
    )
    counts = unique.window(hf.window.tumbling("10s")).agg(n=hf.count())
    to_sink(counts)
    outcome = run(pipeline, cut)
    assert outcome.rows() == [(0, 10, 1), (10, 20, 1), (20, 30, 1)]
    assert outcome.late == {counts.name: 1}


@pytest.mark.parametrize(("timers", "calls"), [(True, 25), ("1 min", 1)])
def test_a_shortest_time_of_timers_lets_many_rows_come_in_one_call(timers, calls):
    def counted(rows, state, context):
        last = rows.group_by("k").agg(n=pl.len().cast(pl.Int64), since=pl.col("ts").max())
        return hf.Step(
            output=pl.DataFrame({"rows": [rows.height] if rows.height else []}, schema={"rows": pl.Int64}),
            upserts=last.select("k", *STATE),
            timers=last.select("k", at=pl.col("since") + 60),
        )

    given = Given([{"ts": ts, "k": ts % 2, "v": 1} for ts in range(50)], EVENTS)
    pipeline, rows = declare(given, counted, timers=timers, output={"rows": pl.Int64}, event_time=None)
    to_sink(rows)
    assert run(pipeline).rows() == [(50 // calls,)] * calls


def test_a_timer_earlier_than_declared_is_refused():
    def hasty(rows, state, context):
        last = rows.group_by("k").agg(n=pl.len().cast(pl.Int64), since=pl.col("ts").max())
        return hf.Step(upserts=last.select("k", *STATE), timers=last.select("k", at=pl.col("since") + 5))

    given = Given([{"ts": 0, "k": 7, "v": 1}], EVENTS)
    pipeline, rows = declare(given, hasty, timers="10s")
    to_sink(rows)
    with pytest.raises(OperatorError, match=r"timer of the key \(7,\) is less than 10 s after the row") as caught:
        run(pipeline)
    assert "timers=" in caught.value.cure


@pytest.mark.parametrize("rows", [1, 2, 3, 100])
def test_what_a_timer_puts_out_at_the_end_of_a_window_counts_in_that_window(rows):
    """Counts of a process, window by window, in a window of the same length behind it."""

    def count(rows, state, context):
        known = {k: (at, n) for k, at, n in state.rows()}
        out = [(k, at - 1, known[k][1]) for k, at in context.timers.rows()]
        now = {k: (at, 0) for k, at in context.timers.rows()}
        for k, ts in rows.select("k", "ts").rows():
            at, n = now.get(k) or known.get(k) or (0, 0)
            end = ts // 10 * 10 + 10
            if n and at != end:
                out.append((k, at - 1, n))
            now[k] = (end, n + 1 if at == end else 1)
        kept = pl.DataFrame(
            [(k, at, n) for k, (at, n) in now.items()],
            schema={"k": pl.Int64, "end": pl.Int64, "n": pl.Int64},
            orient="row",
        )
        return hf.Step(
            output=pl.DataFrame(out, schema={"k": pl.Int64, "ts": pl.Int64, "n": pl.Int64}, orient="row"),
            upserts=kept,
            timers=kept.filter(pl.col("n") > 0).select("k", at="end"),
        )

    frame = pl.DataFrame({"ts": [1, 2, 12, 13, 14, 35], "k": [1, 1, 1, 2, 2, 1]})
    pipeline = hf.Pipeline("test")
    source = pipeline.source("in", hf.source.memory(frame), event_time="ts", time_unit="s")
    counts = source.key_by("k").process(
        count, state={"end": pl.Int64, "n": pl.Int64}, output={"k": pl.Int64, "ts": pl.Int64, "n": pl.Int64},
        keep_forever=True, timers=True, event_time="ts",
    )  # fmt: skip
    counts.window(hf.window.tumbling("10s")).agg(n=hf.sum("n")).sink("out", hf.sink.collect())
    outcome = run(pipeline, Cut(rows=rows))
    assert sorted(outcome.rows()) == [(0, 10, 2), (10, 20, 3), (30, 40, 1)]
    assert outcome.totals["late"] == 0
