"""Compaction keeps the number of pieces bounded and rewrites each row a logarithmic number of times."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.state.compaction import MOST_PIECES, merge_from
from strategies import examples


def append(pieces: list[int], size: int, most: int = MOST_PIECES) -> int:
    """Add a piece and merge; returns the rows rewritten."""
    pieces.append(size)
    start = merge_from(pieces, most)
    if start is None:
        return 0
    merged = sum(pieces[start:])
    pieces[start:] = [merged]
    return merged


@examples(100)
@given(sizes=st.lists(st.integers(1, 10**6), max_size=200), most=st.integers(2, 20))
def test_there_are_never_more_pieces_than_allowed(sizes, most):
    pieces: list[int] = []
    for size in sizes:
        append(pieces, size, most)
        assert len(pieces) <= most
    assert sum(pieces) == sum(sizes), "nothing is lost"


@pytest.mark.parametrize("epochs", [100, 1_000, 20_000])
def test_rows_are_rewritten_a_logarithmic_number_of_times(epochs):
    pieces: list[int] = []
    rewritten = sum(append(pieces, 1) for _ in range(epochs))
    assert rewritten / epochs <= 2 * math.log2(epochs)


def test_a_large_old_piece_is_left_alone():
    pieces = [10**9, *[10] * MOST_PIECES]
    start = merge_from(pieces)
    assert start is not None
    assert start > 0


@given(sizes=st.lists(st.integers(1, 100), max_size=MOST_PIECES))
@examples(20)
def test_few_pieces_are_left_alone(sizes):
    assert merge_from(sizes) is None
