"""What is wrong with a pipeline is said while it is declared: which operator, what, and what to do about it."""

from __future__ import annotations

from datetime import timedelta

import polars as pl
import polars.selectors as cs
import pytest

import holdfast as hf
from holdfast.errors import (
    CycleError,
    DeclarationError,
    DuplicateNameError,
    UnboundedStateError,
    UnknownColumnError,
    WrongTypeError,
)
from holdfast.graph.durations import parse_duration, ticks
from holdfast.plan.program import compile_program
from holdfast.sink import collect
from holdfast.source import memory

FRAME = pl.DataFrame(
    {"ts": [1], "k": [1], "s": ["a"], "x": [1.0], "many": [[1]], "box": [{"a": 1}], "w": ["x"]},
    schema_overrides={"ts": pl.Int64},
)


@pytest.fixture
def pipeline():
    return hf.Pipeline("test")


@pytest.fixture
def rows(pipeline):
    return pipeline.source("in", memory(FRAME), event_time="ts", time_unit="s")


def untimed(rows):
    return rows.pipeline.source("untimed", memory(FRAME))


def step(rows, state, context):
    return hf.Step()


WRONG = {
    # options
    "join-how": (lambda r: r.join(r, on="k", window=hf.window.tumbling(1), how="semi", name="op"), WrongTypeError),
    "join-how-old": (lambda r: r.join(r, on="k", window=hf.window.tumbling(1), how="outer", name="op"), WrongTypeError),
    "process-without-keys": (
        lambda r: r.key_by().process(step, state={}, output={"k": pl.Int64}, ttl=1, name="op"),
        DeclarationError,
    ),
    "process-time-in-another-unit": (
        lambda r: r.key_by("k").process(
            step, state={}, output={"t": pl.Datetime("us")}, event_time="t", ttl=1, name="op"
        ),
        WrongTypeError,
    ),
    "process-time-no-time": (
        lambda r: r.key_by("k").process(step, state={}, output={"t": pl.String}, event_time="t", ttl=1, name="op"),
        WrongTypeError,
    ),
    "process-timers-no-duration": (
        lambda r: r.key_by("k").process(step, state={}, output={"k": pl.Int64}, ttl=1, timers="soon", name="op"),
        WrongTypeError,
    ),
    # columns
    "filter-unknown": (lambda r: r.filter(pl.col("kk") > 0).named("op"), UnknownColumnError),
    "filter-unknown-sql": (lambda r: r.filter("kk > 0").named("op"), UnknownColumnError),
    "select-unknown": (lambda r: r.select("kk"), UnknownColumnError),
    "with-columns-unknown": (lambda r: r.with_columns(y=pl.col("kk")), UnknownColumnError),
    "explode-unknown": (lambda r: r.explode("kk", name="op"), UnknownColumnError),
    "join-table-unknown": (lambda r: r.join_table(FRAME.select("k"), on="kk", name="op"), UnknownColumnError),
    "join-table-key-not-in-table": (lambda r: r.join_table(FRAME.select("k"), on="s", name="op"), UnknownColumnError),
    "agg-unknown": (lambda r: r.window(hf.window.tumbling(1), name="op").agg(n=hf.sum("kk")), UnknownColumnError),
    "join-unknown": (lambda r: r.join(r, on="kk", window=hf.window.tumbling(1), name="op"), UnknownColumnError),
    "process-time-unknown": (
        lambda r: r.key_by("k").process(step, state={}, output={"k": pl.Int64}, event_time="t", ttl=1, name="op"),
        UnknownColumnError,
    ),
    # types
    "filter-not-boolean": (lambda r: r.filter(pl.col("k") + 1).named("op"), WrongTypeError),
    "filter-text-with-number": (lambda r: r.filter(pl.col("s") > 3).named("op"), WrongTypeError),
    "sum-of-text": (lambda r: r.window(hf.window.tumbling(1), name="op").agg(n=hf.sum("s")), WrongTypeError),
    "explode-no-list": (lambda r: r.explode("k", name="op"), WrongTypeError),
    "join-table-other-type": (
        lambda r: r.join_table(pl.DataFrame({"k": ["a"], "n": [1]}), on="k", name="op"),
        WrongTypeError,
    ),
    "join-table-full": (lambda r: r.join_table(FRAME.select("k"), on="k", how="full", name="op"), WrongTypeError),
    "join-other-type": (
        lambda r: r.join(r.with_columns(k=pl.col("s")), on="k", window=hf.window.tumbling(1), name="op"),
        WrongTypeError,
    ),
    "join-in-sessions": (lambda r: r.join(r, on="k", window=hf.window.session(1), name="op"), WrongTypeError),
    "join-in-no-window": (lambda r: r.join(r, on="k", window="1s", name="op"), WrongTypeError),
    "no-window": (lambda r: r.window("1s", name="op").agg(n=hf.count()), WrongTypeError),
    "union-of-other-columns": (lambda r: r.union(r.select("ts", "k"), name="op"), WrongTypeError),
    "union-of-other-time": (lambda r: r.union(untimed(r), name="op"), WrongTypeError),
    "not-an-aggregate": (lambda r: r.window(hf.window.tumbling(1), name="op").agg(n=pl.col("k")), WrongTypeError),
    "combine-changes-type": (
        lambda r: r.window(hf.window.tumbling(1), name="op").agg(
            a=hf.aggregate({"n": pl.len()}, lambda s: {"n": s.n.mean()}, lambda s: s.n)
        ),
        WrongTypeError,
    ),
    "combine-forgets-a-column": (
        lambda r: r.window(hf.window.tumbling(1), name="op").agg(
            a=hf.aggregate({"n": pl.len(), "m": pl.len()}, lambda s: {"n": s.n.sum()}, lambda s: s.n)
        ),
        WrongTypeError,
    ),
    "aggregate-by-selector": (
        lambda r: r.window(hf.window.tumbling(1), name="op").agg(n=hf.sum(pl.sum_horizontal(cs.numeric()))),
        DeclarationError,
    ),
    "partitions": (
        lambda r: r.key_by("k").window(hf.window.tumbling(1), partitions=0, name="op").agg(n=hf.count()),
        WrongTypeError,
    ),
    # event time
    "no-event-time": (lambda r: untimed(r).window(hf.window.tumbling(1), name="op").agg(n=hf.count()), WrongTypeError),
    "event-time-dropped": (
        lambda r: r.select("k").window(hf.window.tumbling(1), name="op").agg(n=hf.count()),
        WrongTypeError,
    ),
    "event-time-changed": (
        lambda r: r.with_columns(ts=pl.col("ts") - 5).window(hf.window.tumbling(1), name="op").agg(n=hf.count()),
        WrongTypeError,
    ),
    "event-time-changed-by-all": (
        lambda r: r.select(cs.numeric() + 1).window(hf.window.tumbling(1), name="op").agg(n=hf.count()),
        WrongTypeError,
    ),
    "ttl-without-event-time": (
        lambda r: untimed(r).key_by("k").process(step, state={}, output={}, ttl=1, name="op"),
        WrongTypeError,
    ),
    "timers-without-event-time": (
        lambda r: untimed(r).key_by("k").process(step, state={}, output={}, keep_forever=True, timers=True, name="op"),
        WrongTypeError,
    ),
    "join-without-event-time": (
        lambda r: r.join(untimed(r), on="k", window=hf.window.tumbling(1), name="op"),
        WrongTypeError,
    ),
    # durations
    "window-finer-than-time": (
        lambda r: r.window(hf.window.tumbling("500ms"), name="op").agg(n=hf.count()),
        WrongTypeError,
    ),
    # unbounded state
    "join-without-window": (lambda r: r.join(r, on="k", name="op"), UnboundedStateError),
    "process-without-ttl": (
        lambda r: r.key_by("k").process(step, state={"n": pl.Int64}, output={}, name="op"),
        UnboundedStateError,
    ),
    # names
    "no-aggregate": (lambda r: r.window(hf.window.tumbling(1), name="op").agg(), DeclarationError),
    "aggregate-named-as-key": (
        lambda r: r.key_by("k").window(hf.window.tumbling(1), name="op").agg(k=hf.count()),
        DeclarationError,
    ),
    "aggregate-named-as-bound": (
        lambda r: r.window(hf.window.tumbling(1), name="op").agg(window_end=hf.count()),
        DeclarationError,
    ),
    "state-named-as-key": (
        lambda r: r.key_by("k").process(step, state={"k": pl.Int64}, output={}, ttl=1, name="op"),
        DeclarationError,
    ),
    "state-named-as-timer": (
        lambda r: r.key_by("k").process(step, state={"at": pl.Int64}, output={}, ttl=1, name="op"),
        DeclarationError,
    ),
    "reserved-name": (lambda r: r.with_columns(pl.col("k").alias("__hf_pos")), DeclarationError),
    "same-column-twice": (lambda r: r.select("k", pl.col("s").alias("k")), DeclarationError),
    "columns-on-both-sides": (lambda r: r.join_table(FRAME.select("k", "s"), on="k", name="op"), DeclarationError),
    # expressions and functions
    "sql-that-does-not-parse": (lambda r: r.filter("k >>> ("), DeclarationError),
    "map-that-fails-on-an-empty-frame": (
        lambda r: r.map_batches(lambda f: f.with_columns(y=f["k"][0]), name="op"),
        DeclarationError,
    ),
    "map-that-returns-no-frame": (lambda r: r.map_batches(lambda f: f["k"], name="op"), WrongTypeError),
    # side outputs
    "late-of-a-filter": (lambda r: r.filter(pl.col("k") > 0).named("op").late, DeclarationError),
    "late-of-a-count-window": (
        lambda r: r.key_by("k").window(hf.window.count(2), name="op").agg(n=hf.count()).late,
        DeclarationError,
    ),
}


@pytest.mark.parametrize("name", sorted(WRONG))
def test_a_mistake_is_named_with_its_operator_and_a_cure(name, rows):
    declare, kind = WRONG[name]
    with pytest.raises(kind) as caught:
        declare(rows)
    assert caught.value.operator in ("op", "select", "with_columns", "filter")  # all but the first are named afterwards
    assert caught.value.cure.strip()
    assert caught.value.operator in str(caught.value)


@pytest.mark.parametrize(
    "declare",
    [
        lambda r: r.select(pl.col("k").sum()),
        lambda r: r.with_columns(n=pl.col("k").cum_sum()),
        lambda r: r.with_columns(n=pl.len()),
        lambda r: r.filter(pl.col("k") > pl.col("k").mean()),
        lambda r: r.select(pl.lit(1)),
        lambda r: r.with_columns(pl.col("k").shift(1)),
        lambda r: r.with_columns(n=pl.col("x").sum().over("k")),
    ],
)
def test_an_expression_that_looks_at_other_rows_is_refused(rows, declare):
    """Its result would depend on how rows are cut into batches."""
    with pytest.raises(DeclarationError, match=r"other rows|only constants") as caught:
        declare(rows)
    assert caught.value.operator
    assert "window" in caught.value.cure


def test_expressions_that_treat_each_row_for_itself_are_allowed(rows):
    rows.with_columns(pl.lit(1).alias("one"), pl.col("s").str.to_uppercase(), y=pl.col("k").is_in([1, 2]))
    rows.select(
        "ts", pl.when(pl.col("k") > 0).then("s"), n=pl.col("many").list.eval(pl.element().sum()), z=pl.struct("k", "s")
    )
    rows.filter((pl.col("s") == "a") | pl.col("k").is_null(), pl.col("x").is_between(0, 1))
    rows.select(pl.all(), y=pl.col("s").map_elements(len, return_dtype=pl.Int64))
    rows.with_columns(y=pl.col("s").replace_strict({"a": 1}, default=0), d=pl.from_epoch("ts"))


@pytest.mark.parametrize("key", ["many", "box"])
def test_nested_columns_are_no_keys(rows, key):
    with pytest.raises(WrongTypeError, match="cannot be a key") as caught:
        rows.key_by(key)
    assert caught.value.operator == "key_by"


@pytest.mark.parametrize("dtype", [pl.Int128, pl.UInt128, pl.Decimal(20, 2)])
def test_numbers_wider_than_64_bits_are_no_keys(rows, dtype):
    wide = rows.with_columns(wide=pl.col("k").cast(dtype))
    with pytest.raises(WrongTypeError, match="cannot be a key") as caught:
        wide.key_by("wide")
    assert "64 bits" in caught.value.cure


@pytest.mark.parametrize(
    ("call", "kind"),
    [
        (lambda r: r.key_by("kk"), UnknownColumnError),
        (lambda r: r.key_by("k", "k"), DeclarationError),
        (lambda r: r.key_by("k").agg(n=hf.count()), UnboundedStateError),
    ],
)
def test_mistakes_in_keys(rows, call, kind):
    with pytest.raises(kind) as caught:
        call(rows)
    assert caught.value.cure
    assert caught.value.operator


def test_an_unknown_column_suggests_the_nearest(rows):
    with pytest.raises(UnknownColumnError, match="did you mean 'many'"):
        rows.select("mny")


@pytest.mark.parametrize("name", ["in", "big"])
def test_names_are_unique(rows, name):
    rows.filter(pl.col("k") > 0).named("big")
    with pytest.raises(DuplicateNameError) as caught:
        rows.select("k").named(name)
    assert caught.value.operator == name
    assert caught.value.cure


@pytest.mark.parametrize("name", ["", " ", "a b", "-x", "a/b", "../up", "ü", "n" * 300])
def test_names_can_be_used_in_paths(rows, name):
    with pytest.raises(DeclarationError):
        hf.Pipeline(name)
    if name:
        with pytest.raises(DeclarationError):
            rows.select("k").named(name)


def test_a_loop_is_refused(rows, pipeline):
    first = rows.filter(pl.col("k") > 0).named("first")
    second = first.filter(pl.col("k") > 1).named("second")
    with pytest.raises(CycleError, match="first") as caught:
        pipeline.reconnect("first", second)
    assert caught.value.cure
    assert pipeline.nodes["first"].inputs == ("in",), "nothing has changed"


def test_reconnecting_needs_the_same_columns(rows, pipeline):
    rows.filter(pl.col("k") > 0).named("first")
    with pytest.raises(UnknownColumnError):
        pipeline.reconnect("first", rows.select("ts"))
    with pytest.raises(DeclarationError):
        pipeline.reconnect("first", rows.with_columns(k=pl.col("s")))
    with pytest.raises(DeclarationError):
        pipeline.reconnect("in", rows)
    with pytest.raises(DeclarationError):
        pipeline.reconnect("nobody", rows)


def test_streams_of_two_pipelines_do_not_mix(rows):
    other = hf.Pipeline("other").source("in", memory(FRAME), event_time="ts", time_unit="s")
    for mix in (lambda: rows.union(other), lambda: rows.join(other, on="k", window=hf.window.tumbling(1))):
        with pytest.raises(DeclarationError, match="belongs to pipeline 'other'"):
            mix()


@pytest.mark.parametrize(
    ("options", "kind"),
    [
        ({"event_time": "t"}, UnknownColumnError),
        ({"event_time": "ts"}, WrongTypeError),
        ({"event_time": "s", "time_unit": "s"}, WrongTypeError),
        ({"event_time": "x", "time_unit": "s"}, WrongTypeError),
        ({"event_time": "ts", "time_unit": "s", "lateness": "1500ms"}, WrongTypeError),
        ({"event_time": "ts", "time_unit": "s", "lateness": "soon"}, WrongTypeError),
        ({"event_time": "ts", "time_unit": "s", "lateness": -1}, WrongTypeError),
        ({"event_time": "ts", "time_unit": "hours"}, WrongTypeError),
    ],
)
def test_mistakes_in_a_source(pipeline, options, kind):
    with pytest.raises(kind) as caught:
        pipeline.source("clicks", memory(FRAME), **options)
    assert caught.value.operator == "clicks"
    assert caught.value.cure


def test_a_unit_that_contradicts_the_type_of_the_time_column_is_refused(pipeline):
    frame = pl.DataFrame(schema={"ts": pl.Datetime("us")})
    pipeline.source("same", memory(frame), event_time="ts", time_unit="us")
    for unit in ("ms", "hours"):
        with pytest.raises(WrongTypeError, match=f"time_unit='{unit}'"):
            pipeline.source("other", memory(frame), event_time="ts", time_unit=unit)


def test_a_pipeline_needs_a_source_and_a_sink(pipeline):
    with pytest.raises(DeclarationError, match="no source"):
        compile_program(pipeline)
    rows = pipeline.source("in", memory(FRAME))
    with pytest.raises(DeclarationError, match="no sink"):
        compile_program(pipeline)
    rows.sink("out", collect())
    pipeline.source("idle", memory(FRAME))
    with pytest.raises(DeclarationError, match="no operator or sink reads") as caught:
        compile_program(pipeline)
    assert caught.value.operator == "idle"


@pytest.mark.parametrize(
    "make",
    [
        lambda: hf.window.tumbling("soon"),
        lambda: hf.window.tumbling(0),
        lambda: hf.window.tumbling("0s"),
        lambda: hf.window.tumbling(-5),
        lambda: hf.window.tumbling(True),
        lambda: hf.window.tumbling(timedelta(seconds=-1)),
        lambda: hf.window.sliding("1s", "2s"),
        lambda: hf.window.sliding("1s", 0),
        lambda: hf.window.session("10 parsecs"),
        lambda: hf.window.session(0),
        lambda: hf.window.count(0),
        lambda: hf.window.count(2, 3),
        lambda: hf.window.count(2, 0),
        lambda: hf.top_k("x", 0),
        lambda: hf.aggregate({}, lambda s: {}, lambda s: pl.lit(1)),
        lambda: hf.window.tumbling(float("nan")),
        lambda: hf.window.tumbling(None),
    ],
)
def test_mistakes_in_windows_and_aggregates(make):
    with pytest.raises(WrongTypeError) as caught:
        make()
    assert caught.value.cure


@pytest.mark.parametrize(
    ("duration", "nanos"),
    [
        ("500ms", 5 * 10**8),
        ("10s", 10**10),
        ("5 min", 300 * 10**9),
        (" 2 D ", 2 * 86_400 * 10**9),
        ("1.5h", 5_400 * 10**9),
        ("7us", 7_000),
        ("3ns", 3),
        (timedelta(days=1, microseconds=1), 86_400 * 10**9 + 1_000),
        (2, 2 * 10**9),
        (0.25, 25 * 10**7),
    ],
)
def test_durations(duration, nanos):
    assert parse_duration(duration) == nanos


def test_durations_are_whole_ticks():
    assert ticks("2s", "ms") == 2_000
    assert ticks("1h", "s") == 3_600
    with pytest.raises(WrongTypeError, match="whole number"):
        ticks("1500ms", "s")


def test_schemas_are_known_while_declaring(rows):
    counted = (
        rows.key_by("k", "s").window(hf.window.tumbling(10)).agg(n=hf.count(), top=hf.top_k("x", 3), m=hf.mean("k"))
    )
    assert dict(counted.schema) == {
        "k": pl.Int64, "s": pl.String, "window_start": pl.Int64, "window_end": pl.Int64,
        "n": pl.Int64, "top": pl.List(pl.Float64), "m": pl.Float64,
    }  # fmt: skip
    assert counted.time.column == "window_end"
    by_count = rows.key_by("k").window(hf.window.count(3)).agg(n=hf.count())
    assert list(by_count.schema) == ["k", "window_index", "n"]
