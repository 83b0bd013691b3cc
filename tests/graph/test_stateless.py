"""Stateless operators against plain Python: each row for itself, in order, whatever the cut."""

from __future__ import annotations

import polars as pl
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from oracles import assert_same_rows, canonical, new_pipeline, source, to_sink

import holdfast as hf
from harness import Cut, run
from holdfast.errors import OperatorError
from strategies import Given, cuts, examples, streams


def check(stream: Given, cut: Cut, declare, expected) -> None:
    """`declare` the operator; `expected` gives the output rows of an input row. The order of rows is kept."""
    pipeline = new_pipeline()
    to_sink(declare(source(pipeline, stream)))
    wanted = [canonical(out) for row in stream.rows for out in expected(row)]
    assert [canonical(row) for row in run(pipeline, cut).rows()] == wanted


def whole(row):
    return tuple(row.values())


rows_of = streams("k", "s", "v", "f")


@examples(10)
@given(stream=rows_of, cut=cuts)
def test_filter_keeps_rows_for_which_all_predicates_hold(stream, cut):
    def kept(row):
        positive = row["v"] is not None and row["v"] > 0
        return [whole(row)] if positive and row["s"] == "a" else []

    check(stream, cut, lambda rows: rows.filter(pl.col("v") > 0, "s = 'a'"), kept)


@examples(10)
@given(stream=rows_of, cut=cuts)
def test_select_by_name_expression_and_sql(stream, cut):
    def selected(row):
        double = None if row["v"] is None else row["v"] * 2
        less = None if row["v"] is None else row["v"] - 1
        return [(row["s"], double, less)]

    check(stream, cut, lambda rows: rows.select("s", pl.col("v") * 2, less="v - 1"), selected)


@examples(6)
@given(stream=rows_of, cut=cuts)
def test_cast_changes_types_and_nothing_else(stream, cut):
    def changed(row):
        return [whole({**row, "k": None if row["k"] is None else str(row["k"]), "s": None})]

    types = {"v": pl.Int8, "k": pl.String, "s": pl.Float64}
    check(stream, cut, lambda rows: rows.cast(types, strict=False), changed)


def test_a_value_that_cannot_be_cast_is_named():
    stream = Given([{"ts": 1, "s": "1.5"}, {"ts": 2, "s": "many"}], {"ts": pl.Int64(), "s": pl.String()})
    pipeline = new_pipeline()
    to_sink(source(pipeline, stream).cast({"s": pl.Float64}))
    with pytest.raises(OperatorError, match="many") as caught:
        run(pipeline)
    assert caught.value.operator == "cast"


@examples(10)
@given(stream=rows_of, cut=cuts)
def test_with_columns_adds_and_replaces(stream, cut):
    def widened(row):
        return [whole({**row, "v": None if row["v"] is None else -row["v"], "missing": row["s"] is None})]

    check(stream, cut, lambda rows: rows.with_columns(-pl.col("v"), missing=pl.col("s").is_null()), widened)


@examples(10)
@given(stream=rows_of, cut=cuts)
@example(
    stream=Given(
        [{"ts": t, "k": 0, "s": s, "v": 1, "f": None} for t, s in ((0, "a"), (-1, "a"), (0, "b"))],
        {"ts": pl.Int64(), "k": pl.Int64(), "s": pl.String(), "v": pl.Int64(), "f": pl.Float64()},
    ),
    cut=Cut(8, 1, 1),
)
def test_map_sees_every_row_once(stream, cut):
    def function(frame):
        return frame.select(pl.col("s").fill_null("?") + "!", n=pl.col("v").fill_null(0))

    def mapped(row):
        return [((row["s"] if row["s"] is not None else "?") + "!", row["v"] or 0)]

    check(stream, cut, lambda rows: rows.map_batches(function), mapped)


@examples(10)
@given(stream=rows_of, cut=cuts)
def test_flat_map_may_change_the_number_of_rows(stream, cut):
    def function(frame):
        times = frame["v"].fill_null(0).clip(0, 3).to_list()
        return frame[[i for i, n in enumerate(times) for _ in range(n)]]

    def repeated(row):
        return [whole(row)] * min(3, max(0, row["v"] or 0))

    check(stream, cut, lambda rows: rows.map_batches(function, schema=rows.schema), repeated)


@examples(10)
@given(stream=rows_of, cut=cuts)
def test_explode_has_a_row_per_element_and_none_for_empty_lists(stream, cut):
    def declare(rows):
        lists = pl.when(pl.col("v") > 0).then(pl.concat_list("v", pl.col("v") + 1))
        lists = pl.when(pl.col("v") == 0).then(pl.lit([], pl.List(pl.Int64))).otherwise(lists)
        return rows.select("k", many=lists).explode("many")

    def exploded(row):
        if row["v"] is None or row["v"] <= 0:
            return []
        return [(row["k"], row["v"]), (row["k"], row["v"] + 1)]

    check(stream, cut, declare, exploded)


@examples(10)
@given(stream=rows_of, cut=cuts)
def test_explode_takes_arrays_beside_lists(stream, cut):
    """Both have two elements where `v` is not null, and are null where it is."""

    def declare(rows):
        pair = pl.when(pl.col("v").is_not_null()).then(pl.concat_list("v", pl.col("v").cast(pl.Int64).neg()))
        return rows.select("k", fixed=pair.cast(pl.Array(pl.Int64, 2)), many=pair).explode("fixed", "many")

    def exploded(row):
        return [] if row["v"] is None else [(row["k"], row["v"], row["v"]), (row["k"], -row["v"], -row["v"])]

    check(stream, cut, declare, exploded)


@pytest.mark.parametrize("how", ["inner", "left"])
@examples(10)
@given(
    stream=rows_of,
    cut=cuts,
    table=st.lists(st.tuples(st.sampled_from([0, 1, 2, -3, None]), st.sampled_from(["x", "y", None])), max_size=6),
)
def test_join_table_matches_equal_keys_and_no_nulls(how, stream, cut, table):
    frame = pl.DataFrame(table, schema={"k": pl.Int64, "name": pl.String}, orient="row")
    pipeline = new_pipeline()
    to_sink(source(pipeline, stream).join_table(frame, on="k", how=how))
    expected = []
    for row in stream.rows:
        names = [name for key, name in table if key is not None and key == row["k"]]
        if not names and how == "left":
            names = [None]
        expected += [(*whole(row), name) for name in names]
    assert_same_rows(run(pipeline, cut).sinks["out"], expected)


@examples(15)
@given(stream=streams("k", "v"), cut=cuts, how=st.sampled_from(["inner", "left"]), unique=st.booleans())
def test_a_table_join_before_a_window_may_run_behind_the_lift(stream, cut, how, unique):
    """The engine moves the join past the partial aggregate where it can; nobody must notice."""
    table = [(0, "x"), (1, "x"), (2, "y"), (None, "z")] + ([] if unique else [(0, "y")])
    frame = pl.DataFrame(table, schema={"k": pl.Int64, "name": pl.String}, orient="row")
    pipeline = new_pipeline()
    ticks = stream.clock.ticks
    named = source(pipeline, stream).join_table(frame, on="k", how=how)
    to_sink(named.key_by("name").window(hf.window.sliding(ticks(10), ticks(5))).agg(n=hf.count(), last=hf.last("v")))
    plain = new_pipeline()
    table_side = source(plain, stream).join_table(frame, on="k", how=how).map_batches(lambda rows: rows)
    to_sink(
        table_side.key_by("name").window(hf.window.sliding(ticks(10), ticks(5))).agg(n=hf.count(), last=hf.last("v"))
    )
    assert_same_rows(run(pipeline, cut).sinks["out"], run(plain).rows())


@examples(10)
@given(first=streams("k", "v", most=15), second=streams("k", "v", most=15), cut=cuts)
def test_union_has_the_rows_of_all(first, second, cut):
    second = Given(second.rows, first.schema, first.clock, second.lateness)
    pipeline = new_pipeline()
    both = source(pipeline, first, "first").union(source(pipeline, second, "second"))
    to_sink(both.filter(pl.col("v").is_not_null()))
    expected = [whole(row) for row in first.rows + second.rows if row["v"] is not None]
    assert_same_rows(run(pipeline, cut).sinks["out"], expected)


def test_an_operator_that_raises_is_named_with_its_epoch():
    def bad(frame):
        if frame.height and 3 in frame["v"]:
            raise ValueError("three is not allowed")
        return frame

    rows = [{"ts": t, "v": t} for t in range(6)]
    stream = Given(rows, {"ts": pl.Int64(), "v": pl.Int64()})
    pipeline = new_pipeline()
    to_sink(source(pipeline, stream).filter(pl.col("v") > 0).map_batches(bad, name="picky").filter(pl.col("v") > 1))
    with pytest.raises(OperatorError, match="three is not allowed") as caught:
        run(pipeline, Cut(2, 1, 1))
    assert caught.value.operator == "picky"
    assert caught.value.epoch == 2
    assert caught.value.cure


def test_a_map_that_loses_a_declared_column_is_named():
    stream = Given([{"ts": 1, "v": 1}], {"ts": pl.Int64(), "v": pl.Int64()})
    pipeline = new_pipeline()
    to_sink(source(pipeline, stream).map_batches(lambda f: f.drop("v") if f.height else f, name="forgetful"))
    with pytest.raises(OperatorError, match="lacks the column 'v'") as caught:
        run(pipeline)
    assert caught.value.operator == "forgetful"
