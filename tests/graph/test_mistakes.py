"""Mistakes that are easily made: each is refused where it is declared, by an error that says what to write instead."""

from __future__ import annotations

import polars as pl
import pytest

import holdfast as hf
from holdfast.errors import DeclarationError, HoldfastError, UnknownColumnError

FRAME = pl.DataFrame({"ts": [1, 2, 3], "name": ["x", "y", "x"], "amount": [1.0, 2.0, 3.0]})
CATEGORIES = pl.col("name").cast(pl.Categorical)


def rows_of(frame: pl.DataFrame = FRAME, **options) -> hf.Stream:
    given = {"event_time": "ts", "time_unit": "s", **options}
    return hf.Pipeline("mistakes").source("in", hf.source.memory(frame), **given)


def test_a_keyword_of_filter_is_a_condition_on_that_column():
    wanted = rows_of().filter(pl.col("amount") > 1, name="x").node
    assert FRAME.filter(wanted.predicate)["ts"].to_list() == [3]
    assert wanted.name == "filter"
    assert rows_of().filter(name="x").node.name == "filter"


def test_a_name_given_to_filter_goes_behind_it():
    rows = rows_of().drop("name")
    with pytest.raises(UnknownColumnError) as caught:
        rows.filter(pl.col("amount") > 1, name="big")
    assert ".named('big')" in caught.value.cure
    with pytest.raises(UnknownColumnError, match="unknown column 'amuont'"):
        rows.filter(amuont=1)


@pytest.mark.parametrize(
    "expr",
    [
        CATEGORIES.to_physical(),
        CATEGORIES.cat.physical() + 1,
        pl.when(pl.col("ts") > 1).then(CATEGORIES.to_physical()),
        pl.concat_list("name").list.eval(pl.element().cast(pl.Categorical).to_physical()),
    ],
)
def test_codes_of_categories_are_refused(expr):
    with pytest.raises(DeclarationError, match="differ from process to process") as caught:
        rows_of().with_columns(code=expr)
    assert "pl.Enum" in caught.value.cure


def test_codes_of_a_categorical_column_are_refused_and_those_of_an_enum_are_not():
    rows = rows_of(FRAME.with_columns(c=CATEGORIES, e=pl.col("name").cast(pl.Enum(["x", "y"]))))
    with pytest.raises(DeclarationError, match="differ from process to process"):
        rows.with_columns(code=pl.col("c").to_physical())
    made = rows.with_columns(code=pl.col("e").to_physical(), at=pl.col("ts").to_physical(), h=pl.col("c").hash())
    assert made.schema["code"].is_integer()
