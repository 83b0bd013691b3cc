"""Digests of outputs: the same for the same rows in any order, others for other rows."""

from __future__ import annotations

from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.epoch.digest import OutputDigest, combined, difference, digest_of

ROWS = st.lists(
    st.tuples(
        st.integers(-(2**40), 2**40),
        st.sampled_from(["a", "b", None]),
        st.floats(-1e6, 1e6),
        st.lists(st.integers(0, 9)),
    ),
    max_size=12,
)
SCHEMA = {"n": pl.Int64, "text": pl.String, "value": pl.Float64, "many": pl.List(pl.Int64)}


def frame(rows: list[Any]) -> pl.DataFrame:
    return pl.DataFrame(rows, schema=SCHEMA, orient="row")


@settings(deadline=None)
@given(ROWS, st.randoms(), st.integers(0, 12))
def test_neither_order_nor_pieces_matter(rows: list[Any], random: Any, cut: int) -> None:
    mixed = list(rows)
    random.shuffle(mixed)
    whole = {"out": digest_of(frame(rows))}
    pieces = combined(digest_of(frame(mixed[:cut])), digest_of(frame(mixed[cut:])))
    assert difference(whole, {"out": pieces}) is None


@settings(deadline=None)
@given(ROWS.filter(bool), st.sampled_from(range(4)))
def test_another_row_is_seen(rows: list[Any], column: int) -> None:
    first = list(rows[0])
    first[column] = [first[0] + 1, (first[1] or "") + "x", first[2] + 1.0 + abs(first[2]), [*first[3], 1]][column]
    other = [tuple(first), *rows[1:]]
    found = difference({"out": digest_of(frame(rows))}, {"out": digest_of(frame(other))})
    assert found is not None
    assert "'out'" in found


def test_the_last_digits_of_floating_point_numbers_do_not_matter() -> None:
    one, other = (digest_of(pl.DataFrame({"v": values})) for values in ([0.1 + 0.2, 1e9], [0.3, 1e9]))
    assert difference({"out": one}, {"out": other}) is None


@pytest.mark.parametrize("rows", [0, 1])
def test_a_sink_that_got_nothing_hides_no_other(rows: int) -> None:
    empty = digest_of(pl.DataFrame({"n": []}, schema={"n": pl.Int64}))
    one = {"a": empty, "b": digest_of(pl.DataFrame({"n": [1]}))}
    other = {"b": digest_of(pl.DataFrame({"n": [2]}))}
    found = difference(one, other) if rows else difference(other, one)
    assert found is not None
    assert "'b'" in found


def test_values_that_change_places_between_rows_are_seen() -> None:
    one, other = (digest_of(pl.DataFrame({"k": ["a", "b", "c"], "v": v})) for v in ([1.5, 2.5, 3.5], [2.5, 1.5, 3.5]))
    found = difference({"out": one}, {"out": other})
    assert found is not None
    assert "'v'" in found
    missing = digest_of(pl.DataFrame({"k": ["a", "b", "c"], "v": [None, 1.5, 3.5]}))
    moved = digest_of(pl.DataFrame({"k": ["a", "b", "c"], "v": [1.5, None, 3.5]}))
    assert difference({"out": missing}, {"out": moved}) is not None


def test_the_last_digits_do_not_matter_beside_other_columns() -> None:
    values = [0.1 + 0.2, 1e9, -5e8], [0.3, 1e9, -5e8]
    one, other = (digest_of(pl.DataFrame({"k": [1, 2, 3], "v": column})) for column in values)
    assert difference({"out": one}, {"out": other}) is None


def test_a_digest_of_a_record_of_before_is_compared_by_what_it_has() -> None:
    rows = pl.DataFrame({"k": [1, 2], "v": [0.5, None]})
    old = OutputDigest(2, digest_of(rows).hash, {"v": (1.5, 1.5)})
    assert difference({"out": old}, {"out": digest_of(rows)}) is None
    assert difference({"out": digest_of(rows)}, {"out": old}) is None
    assert difference({"out": old}, {"out": digest_of(rows.with_columns(v=pl.lit(0.25)))}) is not None
