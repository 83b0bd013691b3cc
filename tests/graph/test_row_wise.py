"""Row-wise expressions: those that look at other rows are refused wherever they hide, all others are taken."""

from __future__ import annotations

from datetime import date, datetime
from itertools import pairwise

import polars as pl
import polars.selectors as cs
import pytest
from hypothesis import given
from hypothesis import strategies as st
from polars.testing import assert_frame_equal

import holdfast as hf
from holdfast.errors import DeclarationError
from holdfast.graph.row_wise import check_row_by_row
from strategies import examples

A, B, S, L, T = pl.col("a"), pl.col("b"), pl.col("s"), pl.col("l"), pl.col("t")
FRAME = pl.DataFrame(
    {
        "ts": [0, 1, 2, 3, 4, 5, 6, 7],
        "a": [3, 1, None, 1, 5, 4, 4, 2],
        "b": [1.5, 2.5, 0.5, None, 3.5, 1.5, 9.0, 0.0],
        "s": ["x y", "2020", None, "7", "", "y", "ä", "x"],
        "l": [[1, 2], [], None, [3], [5, 4, 5], [1], [2], [0, 0]],
        "r": [[1, 2]] * 8,
        "t": [datetime(2024, 1, day) for day in range(1, 9)],
        "d": [date(2024, 1, day) for day in range(1, 9)],
        "st": [{"x": n, "y": str(n)} for n in range(8)],
    },
    schema_overrides={"r": pl.Array(pl.Int64, 2), "l": pl.List(pl.Int64)},
)

ROW_WISE = {
    "column": A,
    "literal": A + pl.lit(3),
    "arithmetic": (A + B * 2) // 3 - A % 2,
    "comparison": (A > 1) & (B.is_null() | A.is_between(1, 3)) & A.ne_missing(3),
    "alias": (A + 1).alias("z"),
    "when": pl.when(A > 1).then(B).when(A < 0).then(1).otherwise(None),
    "cast": A.cast(pl.String),
    "fill_null": A.fill_null(0),
    "fill_null with zero": A.fill_null(strategy="zero"),
    "coalesce": pl.coalesce("a", "b", pl.lit(1)),
    "clip": A.clip(1, 3),
    "round": B.round(1),
    "power": A**2,
    "hash": A.hash(),
    "is_in a list": A.is_in([1, 2, 3]),
    "is_in a Series": A.is_in(pl.Series([1, 2]).implode()),
    "is_in strings": S.is_in(["Series", "Selector", "x"]),
    "is_in a column of lists": A.is_in(L),
    "replace": A.replace({1: 2}),
    "replace_strict": A.replace_strict({1: 2}, default=0),
    "replace_strict by Series": A.replace_strict(pl.Series([1]), pl.Series([2]), default=0),
    "horizontal": pl.sum_horizontal("a", "b") + pl.max_horizontal("a", pl.lit(3)),
    "any_horizontal": pl.any_horizontal(A > 1, B > 1),
    "cum_sum_horizontal": pl.cum_sum_horizontal("a", "b"),
    "struct": pl.struct("a", x=B + 1),
    "struct field": pl.col("st").struct.field("x"),
    "struct with_fields": pl.col("st").struct.with_fields(pl.field("x") + 1),
    "concat_list": pl.concat_list("a", "a"),
    "format": pl.format("{}-{}", "a", "s"),
    "strings": S.str.split(" ").list.len() + S.str.len_chars(),
    "contains": S.str.contains("x") | S.str.contains_any(["a", "y"]),
    "replace_many": S.str.replace_many(["x"], ["z"]),
    "to_integer": S.str.to_integer(strict=False),
    "to_datetime with a format": S.str.to_datetime("%Y", strict=False),
    "json": S.str.json_path_match("$.a"),
    "dates": T.dt.truncate("1d").dt.offset_by("1h").dt.epoch("s"),
    "weekday": T.dt.weekday(),
    "business days": pl.business_day_count("d", pl.lit(date(2024, 2, 1))),
    "duration": T + pl.duration(seconds=A),
    "datetime": pl.datetime(2024, 1, A),
    "list.sum": L.list.sum() + L.list.max(),
    "list.sort": L.list.sort().list.reverse().list.unique().list.head(2),
    "list.eval": L.list.eval(pl.element().cum_sum()),
    "list.eval with rank": L.list.eval(pl.element().rank()),
    "list.eval with len": L.list.eval(pl.element() + pl.len()),
    "list.filter": L.list.filter(pl.element() > 1),
    "list.contains": L.list.contains(A),
    "list.get": L.list.get(0, null_on_oob=True),
    "array": pl.col("r").arr.sum() + pl.col("r").arr.eval(pl.element() + 1).arr.max(),
    "int_ranges": pl.int_ranges(0, A.fill_null(0)),
    "all": pl.all().name.suffix("_x"),
    "selector": cs.numeric() * 2,
    "exclude": pl.exclude("l", "r", "st").is_null(),
    "a Python function of a value": A.map_elements(hex, return_dtype=pl.String),
    "SQL": pl.sql_expr("CASE WHEN a BETWEEN 1 AND 2 AND s LIKE 'x%' THEN b ELSE abs(a) END"),
}

LOOKS_AROUND = {
    "diff": A.diff(),
    "shift": A.shift(1),
    "cum_sum": A.cum_sum(),
    "rank": A.rank(),
    "rolling": A.rolling_mean(2),
    "rolling by time": A.sum().rolling("ts", period="2i"),
    "ewm": A.ewm_mean(span=2),
    "pct_change": A.pct_change(),
    "is_first_distinct": A.is_first_distinct(),
    "is_duplicated": A.is_duplicated(),
    "sum": A.sum(),
    "mean": B.mean(),
    "count": A.count(),
    "n_unique": A.n_unique(),
    "first": A.first(),
    "get": A.get(0),
    "len": pl.len(),
    "row numbers": pl.int_range(pl.len()),
    "over": A.sum().over("s"),
    "forward fill": A.fill_null(strategy="forward"),
    "fill with the mean": A.fill_null(strategy="mean"),
    "interpolate": A.interpolate(),
    "reverse": A.reverse(),
    "sort": A.sort(),
    "shuffle": A.shuffle(),
    "rle_id": A.rle_id(),
    "any": (A > 1).any(),
    "implode": A.implode().list.len(),
    "a field's neighbour": pl.col("st").struct.with_fields(pl.field("x").shift(1)).struct.field("x"),
    "a selected column's neighbour": cs.by_name("a").shift(1),
    "SQL count": pl.sql_expr("count(*)"),
    "SQL average": pl.sql_expr("avg(a)"),
}


@pytest.mark.parametrize("name", ROW_WISE)
@examples(6)
@given(cuts=st.lists(st.integers(0, FRAME.height), max_size=4))
def test_a_row_wise_expression_is_taken_and_gives_the_same_on_any_batches(name, cuts):
    expr = ROW_WISE[name]
    check_row_by_row([expr], "operator")
    edges = [0, *sorted(cuts), FRAME.height]
    batches = [FRAME.slice(lo, hi - lo) for lo, hi in pairwise(edges)]
    assert_frame_equal(pl.concat([batch.select(expr) for batch in batches]), FRAME.select(expr))


@pytest.mark.parametrize(
    "around",
    [
        lambda e: e,
        lambda e: e > 0,
        lambda e: e.alias("z"),
        lambda e: pl.when(e.is_null()).then(1).otherwise(A),
        lambda e: pl.coalesce(A, e),
        lambda e: pl.struct(A, z=e),
        lambda e: pl.concat_list(e, e).list.len(),
        lambda e: A.is_in([1]) & e.is_in([1]),
    ],
    ids=["alone", "compared", "named", "in a condition", "coalesced", "in a struct", "in a list", "looked up"],
)
@pytest.mark.parametrize("name", LOOKS_AROUND)
def test_an_expression_over_other_rows_is_refused_wherever_it_hides(name, around):
    with pytest.raises(DeclarationError, match="looks at other rows") as caught:
        check_row_by_row([around(LOOKS_AROUND[name])], "operator")
    assert caught.value.operator == "operator"
    assert "window" in caught.value.cure


@pytest.mark.parametrize(
    "expr",
    [A.filter(A > 1), L.explode(), A.drop_nulls(), pl.lit(pl.Series([1, 2])), A + pl.lit(pl.Series([1, 2]))],
    ids=["filter", "explode", "drop_nulls", "a Series", "plus a Series"],
)
def test_an_expression_that_changes_the_number_of_rows_is_refused(expr):
    with pytest.raises(DeclarationError, match="changes the number of rows"):
        check_row_by_row([expr])


def stream() -> hf.Stream:
    return hf.Pipeline("p").source("in", hf.source.memory(FRAME), event_time="ts", time_unit="s")


@pytest.mark.parametrize(
    "declare",
    [
        lambda s: s.filter(A.diff() > 0),
        lambda s: s.filter(A > 0, A.diff() > 0),
        lambda s: s.filter("a > avg(a)"),
        lambda s: s.select("ts", A - A.min()),
        lambda s: s.select("ts", n="count(*) + a"),
        lambda s: s.with_columns(n=A + pl.len()),
        lambda s: s.with_columns(cs.numeric().cum_sum() + 1),
        lambda s: s.key_by("a").window(hf.window.tumbling("10s")).agg(n=hf.sum(A.diff().abs())),
        lambda s: s.window(hf.window.tumbling("10s")).agg(n=hf.top_k("a", 3, by=B.rank())),
    ],
    ids=["filter", "filters", "SQL filter", "select", "SQL", "with_columns", "selector", "sum", "top_k"],
)
def test_every_operator_that_takes_expressions_looks_at_them(declare):
    with pytest.raises(DeclarationError, match="looks at other rows"):
        declare(stream())


def test_an_aggregate_may_leave_rows_out():
    stream().window(hf.window.tumbling("10s")).agg(n=hf.sum(A.filter(B > 1)))
