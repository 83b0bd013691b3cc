"""Rows sorted by what their first columns have in one number, against Polars."""

from __future__ import annotations

import polars as pl
from hypothesis import given
from hypothesis import strategies as st
from polars.testing import assert_frame_equal

from holdfast.hidden_columns import POSITION
from holdfast.task.sorted_rows import sorted_rows
from strategies import examples

FEW = st.none() | st.integers(-2, 2)
COLUMNS = {
    "small": (pl.Int8(), FEW),
    "wide": (pl.Int64(), st.sampled_from([None, -(2**63), -1, 0, 2**63 - 1])),
    "whole": (pl.UInt64(), st.sampled_from([None, 0, 1, 2**64 - 1])),
    "large": (pl.Int64(), st.integers(2**62, 2**62 + 3)),
    "flag": (pl.Boolean(), st.none() | st.booleans()),
    "when": (pl.Datetime("us"), FEW),
    "nothing": (pl.Int32(), st.none()),
    "share": (pl.Float64(), st.none() | st.sampled_from([-1.5, 0.0, 2.0])),
    "name": (pl.String(), st.none() | st.sampled_from(["", "a", "b"])),
    "huge": (pl.Int128(), st.sampled_from([None, -(2**100), 2**100])),
}


@st.composite
def frames(draw: st.DrawFn) -> pl.DataFrame:
    names = draw(st.lists(st.sampled_from(list(COLUMNS)), min_size=1, max_size=6, unique=True))
    height = draw(st.integers(0, 12))
    columns = [
        pl.Series(name, draw(st.lists(values, min_size=height, max_size=height)), dtype=dtype)
        for name, (dtype, values) in ((name, COLUMNS[name]) for name in names)
    ]
    return pl.DataFrame(columns)


@examples(300)
@given(rows=frames())
def test_rows_are_in_the_order_of_the_columns_and_stable(rows: pl.DataFrame) -> None:
    numbered = rows.with_row_index("number")
    assert_frame_equal(sorted_rows(numbered, rows.columns), numbered.sort(rows.columns, maintain_order=True))


def test_a_position_decides_nothing() -> None:
    rows = pl.DataFrame({POSITION: [2, 1], "key": [1, 2]}, schema_overrides={POSITION: pl.UInt64})
    assert sorted_rows(rows, rows.columns)["key"].to_list() == [1, 2]
