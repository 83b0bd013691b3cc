"""Generated rows: a function of offsets, checked against its schema."""

from __future__ import annotations

import polars as pl
import pytest
from drain import drain
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.errors import DeclarationError, OperatorError
from holdfast.source import generator

SCHEMA = {"i": pl.Int64, "even": pl.Boolean}


def numbers(start: int, stop: int) -> pl.DataFrame:
    return pl.DataFrame({"even": [i % 2 == 0 for i in range(start, stop)], "i": range(start, stop)}, schema=None)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 100), st.integers(1, 30), st.integers(1, 50), st.integers(1, 5))
def test_any_cutting_gives_the_same_rows(total: int, chunk_rows: int, rows: int, pieces: int) -> None:
    source = generator(numbers, SCHEMA, rows=total, chunk_rows=chunk_rows)
    got, _ = drain(source, rows=rows, pieces=pieces)
    assert got.rows() == [(i, i % 2 == 0) for i in range(total)]


def test_without_rows_it_never_ends() -> None:
    source = generator(numbers, SCHEMA)
    take = source.take({"offset": 10**12}, 10, 2)
    assert not take.done
    assert [piece.base for piece in take.slices] == [10**12, 10**12 + 5]


@pytest.mark.parametrize(
    ("fn", "problem"),
    [
        (lambda a, b: pl.DataFrame({"i": [1], "even": [True]}), "1 rows"),
        (lambda a, b: numbers(a, b).drop("even"), "no column 'even'"),
        (lambda a, b: numbers(a, b).cast({"i": pl.Int32}), "column 'i' as Int32 instead of Int64"),
        (lambda a, b: 5, "a int instead of a DataFrame"),
        (lambda a, b: 1 / 0, "ZeroDivisionError"),
    ],
)
def test_a_function_that_breaks_its_word_is_named(fn: object, problem: str) -> None:
    source = generator(fn, SCHEMA, rows=10)  # type: ignore[arg-type]
    with pytest.raises(OperatorError, match=problem):
        list(source.read(source.take(source.start(), 10, 1).slices[0]))


def test_a_rate_paces_delivery() -> None:
    now = [0.0]
    source = generator(numbers, SCHEMA, rows=8, rate=2.0, clock=lambda: now[0])
    take = source.take(source.start(), 100, 1)
    assert take.position["offset"] == 1
    now[0] = 2.0
    take = source.take(take.position, 100, 1)
    assert (take.position["offset"], take.done) == (5, False)
    now[0] = 100.0
    take = source.take(take.position, 100, 1)
    assert (take.position["offset"], take.done) == (8, True)


@pytest.mark.parametrize("wrong", [{"rate": 0.0}, {"rows": -1}, {"chunk_rows": 0}])
def test_wrong_settings_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(DeclarationError):
        generator(numbers, SCHEMA, **wrong)  # type: ignore[arg-type]
