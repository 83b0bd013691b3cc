"""Keyed processes: the user's own operator on tables, with upserts, deletes, timers and a time-to-live."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from datetime import datetime

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from oracles import assert_same_rows, canonical, new_pipeline, source, to_sink

import holdfast as hf
from harness import Cut, run
from holdfast.errors import DeclarationError, OperatorError
from holdfast.source import memory
from strategies import SECONDS, Given, cuts, examples, streams

STATE = {"n": pl.Int64, "total": pl.Int64}


def running_totals(keys):
    """For each row its key's count and sum so far; a value of 0 forgets the key."""

    def function(rows, state, context):
        types = {key: rows.schema[key] for key in keys}
        known = {canonical(row[: len(keys)]): (row, *row[len(keys) :]) for row in state.select(*keys, *STATE).rows()}
        out, gone = [], set()
        for row in rows.select(*keys, "v").rows():
            name, value = canonical(row[:-1]), row[-1] or 0
            _, n, total = known.get(name, (None, 0, 0))
            out.append((*row[:-1], n + 1, total + value))
            known[name] = (row, n + 1, total + value)
            gone.discard(name)
            if row[-1] == 0:
                known.pop(name)
                gone.add(name)
        first = {canonical(row): row for row in rows.select(keys).rows()}
        upserts = [(*row[: len(keys)], n, total) for name, (row, n, total) in known.items() if name in first]
        return hf.Step(
            output=pl.DataFrame(out, schema={**types, **STATE}, orient="row"),
            upserts=pl.DataFrame(upserts, schema={**types, **STATE}, orient="row"),
            deletes=pl.DataFrame([first[name] for name in gone], schema=types, orient="row"),
        )

    return function


@examples(35)
@given(
    stream=streams("k", "s", "g", "v", clocks=(SECONDS,)),
    keys=st.sampled_from([("k",), ("s",), ("k", "s"), ("g",)]),
    cut=cuts,
)
def test_state_is_what_the_rows_before_have_left(stream, keys, cut):
    pipeline = new_pipeline()
    rows = source(pipeline, stream)
    output = {**{key: rows.schema[key] for key in keys}, **STATE}
    to_sink(rows.key_by(*keys).process(running_totals(keys), state=STATE, output=output, keep_forever=True))
    seen: dict[object, tuple[int, int]] = defaultdict(lambda: (0, 0))
    expected = []
    for row in stream.rows:
        name = canonical(tuple(row[key] for key in keys))
        n, total = seen[name]
        seen[name] = (n + 1, total + (row["v"] or 0))
        expected.append((*name, *seen[name]))
        if row["v"] == 0:
            del seen[name]
    assert_same_rows(run(pipeline, cut).sinks["out"], expected)


def counting(rows, state, context):
    """The count of each key, per row of input."""
    known = dict(state.rows())
    out = []
    for (key,) in rows.select("k").rows():
        known[key] = known.get(key, 0) + 1
        out.append((key, known[key]))
    schema = {"k": pl.Int64, "n": pl.Int64}
    return hf.Step(
        output=pl.DataFrame(out, schema=schema, orient="row"),
        upserts=pl.DataFrame(list(known.items()), schema=schema, orient="row"),
    )


@examples(25)
@given(stream=streams("k", clocks=(SECONDS,)), cut=cuts, ttl=st.sampled_from([1, 5, 20, 10**6]))
def test_state_lives_for_its_time_to_live_and_no_longer(stream, cut, ttl):
    """Rows in order of time: what they find depends on the rows before them, never on the epochs."""
    stream = replace(stream, rows=sorted(stream.rows, key=lambda row: row["ts"]))
    pipeline = new_pipeline()
    process = (
        source(pipeline, stream)
        .key_by("k")
        .process(counting, state={"n": pl.Int64}, output={"k": pl.Int64, "n": pl.Int64}, ttl=ttl, name="counting")
    )
    to_sink(process)
    state: dict[object, tuple[int, int]] = {}
    expected = []
    for row in stream.rows:
        n, touched = state.get(row["k"], (0, row["ts"]))
        if row["ts"] > touched + ttl:
            n = 0
        state[row["k"]] = (n + 1, max(touched, row["ts"]))
        expected.append((row["k"], n + 1))
    assert_same_rows(run(pipeline, cut).sinks["out"], expected)


@pytest.mark.parametrize("rows_per_epoch", [1, 2, 3, 10])
def test_a_pending_timer_keeps_state_alive(rows_per_epoch):
    def remind(rows, state, context):
        known = dict(state.rows())
        fired = [(key, known.get(key, 0)) for key, _ in context.timers.rows()]
        for (key,) in rows.select("k").rows():
            known[key] = known.get(key, 0) + 1
        schema = {"k": pl.Int64, "n": pl.Int64}
        brought = rows.select("k").unique()
        return hf.Step(
            output=pl.DataFrame(fired, schema=schema, orient="row"),
            upserts=pl.DataFrame(list(known.items()), schema=schema, orient="row").join(brought, on="k", how="semi"),
            timers=rows.group_by("k").agg(at=pl.lit(100, pl.Int64)),
        )

    frame = pl.DataFrame({"ts": [0, 1, 50, 120, 130], "k": [1, 2, 2, 3, 3]})
    pipeline = new_pipeline()
    rows = pipeline.source("in", memory(frame), event_time="ts", time_unit="s")
    to_sink(
        rows.filter("k < 3")
        .key_by("k")
        .process(remind, state={"n": pl.Int64}, output={"k": pl.Int64, "n": pl.Int64}, ttl=10, timers=True)
    )
    assert_same_rows(run(pipeline, Cut(rows=rows_per_epoch)).sinks["out"], [(1, 1), (2, 2)])


def deadline(after):
    """Says of each key, `after` ticks past its first row, when that row was. Once."""

    def function(rows, state, context):
        known = dict(state.rows())
        fresh = {}
        for key, time in rows.select("k", "ts").rows():
            if key not in known:
                known[key] = fresh[key] = time
        due = [(key, known[key], at) for key, at in context.timers.rows()]
        schema = {"k": pl.Int64, "since": pl.Int64}
        return hf.Step(
            output=pl.DataFrame(due, schema={**schema, "at": pl.Int64}, orient="row"),
            upserts=pl.DataFrame(list(fresh.items()), schema=schema, orient="row"),
            timers=pl.DataFrame(
                [(key, time + after) for key, time in fresh.items()],
                schema={"k": pl.Int64, "at": pl.Int64},
                orient="row",
            ),
        )

    return function


@examples(25)
@given(stream=streams("k", clocks=(SECONDS,)), cut=cuts, after=st.sampled_from([0, 1, 7, 30]))
def test_every_timer_fires_once_whatever_the_cut(stream, cut, after):
    pipeline = new_pipeline()
    output = {"k": pl.Int64, "since": pl.Int64, "at": pl.Int64}
    process = source(pipeline, stream).key_by("k")
    to_sink(process.process(deadline(after), state={"since": pl.Int64}, output=output, keep_forever=True, timers=True))
    first: dict[object, int] = {}
    for row in stream.rows:
        first.setdefault(row["k"], row["ts"])
    expected = [(key, time, time + after) for key, time in first.items()]
    assert_same_rows(run(pipeline, cut).sinks["out"], expected)


def scripted(epochs, function, **options):
    """Run a process on explicit epochs of (ts, k, word) rows; returns its output rows."""
    schema = {"ts": pl.Int64, "k": pl.String, "word": pl.String}
    frames = [pl.DataFrame(rows, schema=schema, orient="row") for rows in epochs]
    pipeline = new_pipeline()
    rows = pipeline.source("in", memory(frames, epochs=True), event_time="ts", time_unit="s")
    to_sink(
        rows.key_by("k").process(
            function,
            state={"word": pl.String},
            output={"k": pl.String, "word": pl.String, "at": pl.Int64},
            **{"keep_forever": True, "timers": True, **options},
        )
    )
    return run(pipeline)


def obey(rows, state, context):
    """The words are orders: `in 5` sets a timer, `stop` takes it away, `drop` deletes the state."""
    last = {key: (word, ts) for ts, key, word in rows.rows()}
    timers = [(k, ts + int(word.split()[1])) for k, (word, ts) in last.items() if word.startswith("in")]
    timers += [(k, None) for k, (word, _) in last.items() if word == "stop"]
    words = dict(state.rows())
    fired = [(key, words.get(key), at) for key, at in context.timers.rows()]
    return hf.Step(
        output=pl.DataFrame(fired, schema={"k": pl.String, "word": pl.String, "at": pl.Int64}, orient="row"),
        upserts=pl.DataFrame(
            [(k, word) for k, (word, _) in last.items() if word != "drop"],
            schema={"k": pl.String, "word": pl.String},
            orient="row",
        ),
        deletes=pl.DataFrame([k for k, (word, _) in last.items() if word == "drop"], schema={"k": pl.String}),
        timers=pl.DataFrame(timers, schema={"k": pl.String, "at": pl.Int64}, orient="row"),
    )


@pytest.mark.parametrize(
    ("epochs", "fired"),
    [
        ([[(0, "a", "in 5")], [(4, "b", "x")], [(5, "b", "x")], [(6, "b", "x")]], [("a", "in 5", 5)]),
        ([[(0, "a", "in 5")], [(3, "a", "in 9")], [(8, "b", "x")], [(20, "b", "x")]], [("a", "in 9", 12)]),
        ([[(0, "a", "in 9")], [(3, "a", "in 1")], [(8, "b", "x")], [(20, "b", "x")]], [("a", "in 1", 4)]),
        ([[(0, "a", "in 5")], [(3, "a", "stop")], [(20, "b", "x")]], []),
        ([[(0, "a", "in 5")], [(3, "a", "hello")], [(20, "b", "x")]], [("a", "hello", 5)]),
        ([[(0, "a", "in 5")], [(3, "a", "drop")], [(20, "b", "x")]], []),
        ([[(0, "a", "in 5")], [(1, "a", "drop")], [(2, "a", "hello")], [(20, "b", "x")]], []),
        ([[(0, "a", "in 500")], [(1, "b", "x")]], [("a", "in 500", 500)]),
        ([[(0, "a", "in 5"), (50, "b", "x")], [(51, "b", "x")]], [("a", "in 5", 5)]),
        ([[(0, "a", "in 5")], []], [("a", "in 5", 5)]),
    ],
    ids=[
        "fires-when-passed",
        "a-later-timer-replaces",
        "an-earlier-timer-replaces",
        "null-takes-it-away",
        "an-upsert-keeps-it",
        "a-delete-takes-it-away",
        "a-deleted-timer-stays-away",
        "the-end-fires-all",
        "passed-in-its-own-epoch",
        "fires-in-an-empty-epoch",
    ],
)
def test_timers(epochs, fired):
    assert_same_rows(scripted(epochs, obey).sinks["out"], fired)


def test_a_timer_set_by_a_timer_fires_too():
    def ticking(rows, state, context):
        due = context.timers.with_columns(pl.lit("tick").alias("word"))
        timers = due.select("k", at=pl.col("at") + 10)
        fresh = rows.join(state, on="k", how="anti").unique("k", keep="first").select("k", at=pl.col("ts") + 10)
        return hf.Step(
            output=due.select("k", "word", "at"),
            upserts=pl.concat([timers, fresh]).select("k", word=pl.lit("on")),
            timers=pl.concat([timers, fresh]),
        )

    cut_apart = scripted([[(t, "a", "x")] for t in (0, 9, 10, 25, 31, 52)] + [[(53, "b", "x")]], ticking)
    at_once = scripted([[(t, "a", "x") for t in (0, 9, 10, 25, 31, 52)], [(53, "b", "x")]], ticking)
    ticks = [row[2] for row in cut_apart.rows() if row[0] == "a"]
    assert ticks[:5] == [10, 20, 30, 40, 50]
    assert [row[2] for row in at_once.rows() if row[0] == "a"] == ticks


def test_a_timer_that_never_moves_on_is_refused():
    def stuck(rows, state, context):
        keys = pl.concat([rows.select("k"), context.timers.select("k")]).unique()
        return hf.Step(upserts=keys.with_columns(word=pl.lit("on")), timers=keys.with_columns(at=pl.lit(3)))

    with pytest.raises(OperatorError, match="timer"):
        scripted([[(0, "a", "x")], [(5, "a", "x")], [(9, "a", "x")]], stuck)


@pytest.mark.parametrize(
    ("step", "message"),
    [
        (lambda rows: rows, "returned DataFrame"),
        (lambda rows: hf.Step(output=rows.select("k")), "output lacks the column 'word'"),
        (lambda rows: hf.Step(upserts=rows.select("k")), "upserts lacks the column 'word'"),
        (lambda rows: hf.Step(deletes=rows.select("word")), "deletes lacks the column 'k'"),
        (lambda rows: hf.Step(upserts=pl.concat([rows, rows]).select("k", "word")), "twice"),
        (lambda rows: hf.Step(upserts=rows.select("k", "word"), deletes=rows.select("k")), "twice"),
        (lambda rows: hf.Step(timers=rows.select("k", at="ts")), "not among the upserts"),
        (lambda rows: hf.Step(timers=rows.select("k", at=pl.lit("soon"))), "does not fit the declared types"),
        (lambda rows: 1 / 0, "ZeroDivisionError"),
    ],
)
def test_a_step_that_does_not_fit_is_an_error_that_names_the_operator(step, message):
    with pytest.raises(OperatorError, match=message) as caught:
        scripted([[(0, "a", "x")]], lambda rows, state, context: step(rows), name="mine")
    assert (caught.value.operator, caught.value.epoch) == ("mine", 1)
    assert caught.value.cure


def test_timers_must_be_declared():
    with pytest.raises(OperatorError, match="sets timers") as caught:
        scripted([[(0, "a", "in 5")]], obey, timers=False)
    assert "timers=True" in caught.value.cure


@pytest.mark.parametrize("given", [pl.Datetime("ms"), pl.Datetime("us"), pl.Datetime("ns"), pl.Datetime("us", "UTC")])
@pytest.mark.parametrize("declared", [pl.Int64(), pl.Datetime("ms"), pl.Datetime("us"), pl.Datetime("ns", "UTC")])
def test_a_timer_given_as_a_point_in_time_fires_then_whatever_its_unit(given, declared):
    def remind(rows, state, context):
        seconds = rows["ts"].dt.epoch("s") if rows["ts"].dtype.is_temporal() else rows["ts"]
        at = pl.from_epoch(seconds + 5, time_unit="s").dt.replace_time_zone(given.time_zone).cast(given)
        return hf.Step(
            output=context.timers.with_columns(seen=pl.lit(context.timers.height)),
            upserts=rows.select("k", n=pl.lit(1)),
            timers=rows.select("k", at=at),
        )

    seconds = pl.from_epoch(pl.Series("ts", [100, 103, 200]), time_unit="s")
    ts = (
        seconds.dt.replace_time_zone(declared.time_zone).cast(declared)
        if declared.is_temporal()
        else seconds.dt.epoch("s")
    )
    frame = pl.DataFrame({"ts": ts, "k": [1, 2, 3]})
    pipeline = new_pipeline()
    rows = pipeline.source("in", memory(frame), event_time="ts", time_unit=None if declared.is_temporal() else "s")
    output = {"k": pl.Int64, "at": pl.Int64, "seen": pl.Int64}
    to_sink(rows.key_by("k").process(remind, state={"n": pl.Int64}, output=output, keep_forever=True, timers=True))
    unit = {None: 1, "ms": 10**3, "us": 10**6, "ns": 10**9}[getattr(declared, "time_unit", None)]
    outcome = run(pipeline, Cut(rows=1))
    assert sorted(outcome.rows())[:2] == [(1, 105 * unit, 2), (2, 108 * unit, 2)]


def test_a_timer_between_two_ticks_fires_at_the_later_one():
    def remind(rows, state, context):
        at = pl.from_epoch(rows["ts"] * 1_000 + 1, time_unit="ms")
        return hf.Step(output=context.timers, upserts=rows.select("k", n=pl.lit(1)), timers=rows.select("k", at=at))

    pipeline = new_pipeline()
    frame = pl.DataFrame({"ts": [100, -7], "k": [1, 2]})
    rows = pipeline.source("in", memory(frame), event_time="ts", time_unit="s")
    output = {"k": pl.Int64, "at": pl.Int64}
    to_sink(rows.key_by("k").process(remind, state={"n": pl.Int64}, output=output, keep_forever=True, timers=True))
    assert_same_rows(run(pipeline).sinks["out"], [(1, 101), (2, -6)])


def test_a_timer_that_is_no_point_in_time_is_refused():
    def vague(rows, state, context):
        return hf.Step(upserts=rows.select("k", "word"), timers=rows.select("k", at=pl.duration(seconds="ts")))

    with pytest.raises(OperatorError, match="timers have `at` as Duration") as caught:
        scripted([[(0, "a", "x")]], vague)
    assert "Datetime" in caught.value.cure


def test_state_is_dropped_from_disk_after_its_time_to_live():
    rows = [{"ts": t, "k": t} for t in range(400)]
    stream = Given(rows, {"ts": pl.Int64(), "k": pl.Int64()})
    pipeline = new_pipeline()
    process = source(pipeline, stream).key_by("k")
    to_sink(process.process(counting, state={"n": pl.Int64}, output={"k": pl.Int64, "n": pl.Int64}, ttl=5))
    outcome = run(pipeline, Cut(2, 1, 1))
    assert max(record.state_rows() for record in outcome.records) < 100


@pytest.mark.parametrize("partitions", [1, 4])
def test_the_state_of_a_key_nobody_brought_cannot_be_changed(partitions):
    def meddle(rows: pl.DataFrame, state: pl.DataFrame, context: hf.ProcessContext) -> hf.Step:
        return hf.Step(upserts=pl.DataFrame({"k": [999], "n": [1]}))

    pipeline = hf.Pipeline("meddle")
    stream = pipeline.source("events", hf.source.memory(pl.DataFrame({"k": [1, 2, 3]})))
    stream.key_by("k").process(meddle, state={"n": pl.Int64}, output={"k": pl.Int64}, keep_forever=True).sink(
        "out", hf.sink.collect()
    )
    with pytest.raises(OperatorError, match=r"operator 'process', epoch 1: .*key \(999,\)"):
        run(pipeline, Cut(partitions=partitions))


def test_a_timer_that_does_not_fit_the_unit_of_the_event_time_is_refused():
    """In nanoseconds 64 bits end in 2262."""

    def remind(rows, state, context):
        keys = rows.select("k").unique()
        return hf.Step(
            upserts=keys.with_columns(n=pl.lit(1, pl.Int64)),
            timers=keys.with_columns(at=pl.lit(datetime(2600, 1, 1), pl.Datetime("us"))),
        )

    frame = pl.DataFrame({"ts": [datetime(2026, 1, 1)], "k": [1]}, schema={"ts": pl.Datetime("ns"), "k": pl.Int64})
    pipeline = new_pipeline()
    rows = pipeline.source("in", memory(frame), event_time="ts")
    to_sink(rows.key_by("k").process(remind, state={"n": pl.Int64}, output={"k": pl.Int64}, timers=True, ttl="1h"))
    with pytest.raises(OperatorError, match="which no watermark ever reaches"):
        run(pipeline)


@pytest.mark.parametrize("given", [{"timers": "-5s"}, {"timers": -5}, {"ttl": -5}, {"timers": "200000 d"}])
def test_durations_of_a_process_that_make_no_sense_are_refused(given):
    pipeline = new_pipeline()
    frame = pl.DataFrame({"ts": [0], "k": [1]})
    rows = pipeline.source("in", memory(frame), event_time="ts", time_unit="ns")

    def declare():
        to_sink(
            rows.key_by("k").process(
                lambda rows, state, context: hf.Step(), state={"n": pl.Int64}, output={"k": pl.Int64},
                **{"ttl": 5, **given},
            )
        )  # fmt: skip
        pipeline.check()

    with pytest.raises(DeclarationError):
        declare()
