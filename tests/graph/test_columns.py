"""Columns belong to the user: any name can be one, expressions come as Polars takes them, and event time keeps its
meaning under another name."""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal

import polars as pl
import polars.selectors as cs
import pytest
from hypothesis import given
from oracles import new_pipeline, source, to_sink

import holdfast as hf
from harness import WHOLE, Cut, run
from holdfast.errors import DeclarationError, DuplicateNameError, UnknownColumnError, WrongTypeError
from strategies import cuts, examples, streams

FRAME = pl.DataFrame({"t": [1, 2, 12], "k": [1, 1, 2], "v": [10, 20, 30]})
OURS = ("name", "was", "checkpoint", "partitions", "window", "function", "columns", "self")


def rows_of(frame: pl.DataFrame = FRAME, **options) -> hf.Stream:
    given = {"event_time": "t", "time_unit": "s", **options}
    return hf.Pipeline("columns").source("in", hf.source.memory(frame), **given)


@pytest.mark.parametrize("column", OURS)
def test_a_keyword_is_a_column_whatever_it_is_called(column):
    assert rows_of().select("t", **{column: "k"}).schema == {"t": pl.Int64, column: pl.Int64}
    assert rows_of().with_columns(**{column: pl.col("k") * 2}).schema[column] == pl.Int64
    made = rows_of().window(hf.window.tumbling(10)).agg(**{column: hf.count()})
    assert made.schema == {"window_start": pl.Int64, "window_end": pl.Int64, column: pl.Int64}


def test_an_operator_is_named_behind_it_or_with_its_window():
    rows = rows_of()
    narrow = rows.select("t", "k").named("narrow")
    counts = narrow.key_by("k").window(hf.window.tumbling(10), name="counts", partitions=3).agg(n=hf.count())
    assert [narrow.name, counts.name] == ["narrow", "counts"]
    assert list(rows.pipeline.nodes) == ["in", "narrow", "counts"]
    assert counts.node.partitions == 3


def test_a_name_comes_before_readers():
    rows = rows_of()
    narrow = rows.select("t")
    narrow.filter(pl.col("t") > 0)
    with pytest.raises(DeclarationError, match=r"'filter' already reads from it") as caught:
        narrow.named("narrow")
    assert caught.value.operator == "select"
    with pytest.raises(DuplicateNameError):
        rows.select("t").named("filter")


@pytest.mark.parametrize("option", ["name", "was", "checkpoint", "partitions"])
def test_an_option_given_to_the_aggregates_is_sent_to_the_window(option):
    with pytest.raises(WrongTypeError) as caught:
        rows_of().window(hf.window.tumbling(10)).agg(n=hf.count(), **{option: "x"})
    assert f".window(..., {option}=...)" in caught.value.cure


def test_expressions_come_in_lists_tuples_and_generators():
    for given_ in (["t", "k"], ("t", "k"), (c for c in ("t", "k"))):
        assert rows_of().select(given_).schema.names() == ["t", "k"]
    mixed = rows_of().select("t", [pl.col("k"), "v + 1"], w=pl.lit(1))
    assert mixed.schema.names() == ["t", "k", "v", "w"]
    assert rows_of().with_columns(pl.col(c).cast(pl.Float64) for c in ("k", "v")).schema["v"] == pl.Float64
    assert rows_of().filter([pl.col("k") > 0, "v > 5"]).schema == rows_of().schema
    assert rows_of().key_by(["k", "v"]).keys == ("k", "v")
    assert rows_of().with_columns(one=1, flag=True, nothing=None).schema["one"] == pl.Int32


def test_what_is_no_expression_is_refused():
    with pytest.raises(WrongTypeError, match="neither an expression nor a value") as caught:
        rows_of().with_columns(x=object())
    assert caught.value.operator == "with_columns"


RENAMED = {
    "select": lambda rows: rows.select("k", "v", at="ts"),
    "alias": lambda rows: rows.select(pl.col("ts").alias("at"), "k", "v"),
    "same-name": lambda rows: rows.select("k", "v", ts="ts"),
    "swapped": lambda rows: rows.select("k", ts="v", at="ts", v="v"),
    "prefix": lambda rows: rows.select(pl.col("ts").name.prefix("x_"), "k", "v"),
    "selector": lambda rows: rows.select(cs.all().name.suffix("_in")).rename({"k_in": "k", "v_in": "v"}),
    "rename": lambda rows: rows.rename({"ts": "at"}),
    "replaced": lambda rows: rows.with_columns(at="ts", ts=pl.col("k")),
    "twice": lambda rows: rows.rename({"ts": "a"}).rename({"a": "b"}),
}


@pytest.mark.parametrize("how", RENAMED)
@pytest.mark.parametrize("persist", [False, True])
@examples(4)
@given(stream=streams("k", "v"), cut=cuts)
def test_event_time_survives_a_rename(how, persist, stream, cut):
    def outcome(change, cut):
        pipeline = new_pipeline()
        rows = source(pipeline, stream)
        changed = change(rows)
        changed = changed.persist("cut") if persist else changed
        to_sink(
            changed.key_by("k")
            .window(hf.window.sliding(stream.clock.ticks(8), stream.clock.ticks(4)))
            .agg(n=hf.count(), last=hf.last("v"))
        )
        made = run(pipeline, cut)
        return sorted(made.rows(), key=repr), made.totals.get("late_rows", 0)

    assert outcome(RENAMED[how], cut) == outcome(lambda rows: rows, WHOLE)


def test_a_changed_event_time_is_none():
    for changed in (
        rows_of().with_columns(t=pl.col("t") + 1),
        rows_of().select("k", t="v"),
        rows_of().select("k", t=pl.col("t").cast(pl.Int32)),
        rows_of().drop("t"),
    ):
        assert changed.time is None


def test_rename_and_drop_name_unknown_columns():
    for mistake in (lambda: rows_of().rename({"tt": "a"}), lambda: rows_of().drop("tt")):
        with pytest.raises(UnknownColumnError, match="'tt'"):
            mistake()


@examples(8)
@given(cut=cuts)
def test_decimals_are_summed_exactly(cut):
    values = [Decimal("0.10"), Decimal("0.20"), Decimal("99999999.99"), None, Decimal("0.01")]
    frame = pl.DataFrame({"t": range(5), "k": [1, 1, 2, 2, 2], "d": pl.Series(values, dtype=pl.Decimal(10, 2))})
    for window in (hf.window.tumbling(10), hf.window.sliding(10, 5), hf.window.count(2)):
        pipeline = new_pipeline()
        rows = pipeline.source("in", hf.source.memory(frame), event_time="t", time_unit="s")
        to_sink(rows.key_by("k").window(window).agg(total=hf.sum("d"), most=hf.max("d"), mean=hf.mean("d")))
        assert sorted(run(pipeline, cut).rows(), key=repr) == sorted(run(pipeline, WHOLE).rows(), key=repr)
    assert (1, 0, 10, Decimal("0.30"), Decimal("0.20"), pytest.approx(0.15)) in _tumbling(frame)


def _tumbling(frame: pl.DataFrame) -> list[tuple[object, ...]]:
    pipeline = new_pipeline()
    rows = pipeline.source("in", hf.source.memory(frame), event_time="t", time_unit="s")
    to_sink(rows.key_by("k").window(hf.window.tumbling(10)).agg(a=hf.sum("d"), b=hf.max("d"), c=hf.mean("d")))
    return run(pipeline, Cut()).rows()


BAD_AGGREGATES = {
    "sum of a struct": (lambda: hf.sum("box"), "pl.col('box').struct.field('a')"),
    "max of a struct": (lambda: hf.max("box"), "pl.col('box').struct.field('a')"),
    "min of a list": (lambda: hf.min("many"), "pl.col('many').list.min()"),
    "mean of text": (lambda: hf.mean("s"), "cast(pl.Float64, strict=False)"),
    "var of a time": (lambda: hf.var("when"), "pl.col('when').to_physical()"),
    "std of an expression": (lambda: hf.std(pl.col("box").struct.field("a").cast(pl.String)), "hf.std((...)"),
    "distinct lists": (lambda: hf.approx_distinct("many"), "with_columns can make one"),
}


@pytest.mark.parametrize("case", BAD_AGGREGATES)
def test_an_aggregate_of_a_type_it_cannot_take_says_what_to_aggregate_instead(case):
    frame = pl.DataFrame({"t": [1], "box": [{"a": 1}], "many": [[1]], "s": ["x"], "when": [datetime(2026, 1, 1)]})
    declare, cure = BAD_AGGREGATES[case]
    with pytest.raises(WrongTypeError) as caught:
        rows_of(frame).window(hf.window.tumbling(10), name="op").agg(x=declare())
    assert caught.value.operator == "op"
    assert cure in caught.value.cure
    assert "__hf_" not in str(caught.value)


def test_a_time_as_text_is_to_be_declared_as_a_time():
    with pytest.raises(WrongTypeError) as caught:
        rows_of(pl.DataFrame({"t": ["2026-01-01 00:00:00"]}), time_unit=None)
    assert "{'t': pl.Datetime('ms')}" in caught.value.cure


def test_a_window_behind_a_process_asks_for_the_time_of_its_output():
    made = (
        rows_of()
        .key_by("k")
        .process(
            lambda rows, state, context: hf.Step(output=rows),
            state={"n": pl.Int64},
            output=FRAME.schema,
            keep_forever=True,
        )
    )
    with pytest.raises(WrongTypeError) as caught:
        made.window(hf.window.tumbling(10)).agg(n=hf.count())
    assert "process(..., event_time=" in caught.value.cure


@pytest.mark.parametrize("part", [lambda e: e, lambda e: e.dt.hour() + 1])
def test_a_time_that_is_parsed_without_a_format_asks_for_one(part):
    rows = rows_of(pl.DataFrame({"t": [1], "s": ["2026-01-01 00:00:00"]}))
    with pytest.raises(DeclarationError) as caught:
        rows.with_columns(at=part(pl.col("s").str.to_datetime()))
    assert ".str.to_datetime('%Y-%m-%d %H:%M:%S')" in caught.value.cure
    assert rows.with_columns(at=part(pl.col("s").str.to_datetime("%Y-%m-%d %H:%M:%S"))).schema["at"] != pl.String


def test_a_key_is_the_name_of_a_column():
    with pytest.raises(WrongTypeError, match="not the name of a column") as caught:
        rows_of().key_by(pl.col("k"))
    assert "with_columns" in caught.value.cure
