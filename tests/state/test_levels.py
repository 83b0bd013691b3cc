"""Compaction keeps the number of pieces bounded and rewrites each row a logarithmic number of times."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.pstream import PUnit
from holdfast.state.levels import (
    MOST_LARGE,
    MOST_PIECES,
    SMALL_BYTES,
    TARGET_BYTES,
    Target,
    background_merge,
    inline_from,
    levels_of,
    merge_from,
    next_merge,
    splice,
)
from holdfast.state.manifest import Interval, Manifest, Piece
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


WHOLE = Interval(0, 1 << 64)
LEFT, RIGHT = Interval(0, 1 << 63), Interval(1 << 63, 1 << 64)


def piece(name: str, size: int = 1, interval: Interval = WHOLE, span: Interval = WHOLE) -> Piece:
    return Piece("t", PUnit(name, size, size, ""), interval, span)


def names(pieces) -> str:
    return "".join(piece.punit.name for piece in pieces)


def test_a_level_holds_pieces_that_do_not_overlap():
    pieces = [piece("a"), piece("b", interval=LEFT), piece("c", interval=RIGHT), piece("d", interval=LEFT), piece("e")]
    assert [names(level) for level in levels_of(pieces)] == ["a", "bc", "d", "e"]


intervals = st.tuples(st.integers(0, 7), st.integers(1, 8)).map(
    lambda pair: Interval(pair[0] << 60, min(pair[0] + pair[1], 8) << 60)
)


@examples(200)
@given(seen=st.lists(intervals, max_size=12))
def test_levels_keep_the_order_of_pieces_that_overlap(seen):
    pieces = [piece(chr(ord("a") + number), interval=interval) for number, interval in enumerate(seen)]
    levels = levels_of(pieces)
    ordered = [one for level in levels for one in level]
    assert sorted(names(ordered)) == sorted(names(pieces))
    for at, older in enumerate(ordered):
        for newer in ordered[at + 1 :]:
            if older.interval.overlaps(newer.interval):
                assert pieces.index(older) < pieces.index(newer)
    for level in levels:
        assert not any(a.interval.overlaps(b.interval) for a in level for b in level if a is not b)


@examples(200)
@given(sizes=st.lists(st.integers(1, 3 * SMALL_BYTES), max_size=60))
def test_an_epoch_and_a_merge_beside_it_never_want_the_same_pieces(sizes):
    pieces = [piece(f"{number} ", size) for number, size in enumerate(sizes)]
    start, merge = inline_from(sizes), background_merge(pieces, WHOLE)
    if len(sizes) <= 4 * MOST_PIECES and start is not None and merge is not None:
        assert not set(pieces[start:]) & set(merge.pieces)


def test_epochs_leave_large_pieces_alone_until_far_too_many_wait():
    large = [SMALL_BYTES] * 4 * MOST_PIECES
    assert inline_from(large) is None
    assert inline_from([*large, SMALL_BYTES]) is not None


def test_an_epoch_merges_little():
    merged = 0
    sizes: list[int] = []
    for size in [SMALL_BYTES - 1, 100, 1 << 20] * 100:
        sizes.append(size)
        start = inline_from(sizes)
        if start is not None:
            merged = max(merged, sum(sizes[start:]))
            sizes[start:] = [sum(sizes[start:])]
        if len(sizes) > 3 * MOST_PIECES:
            sizes = [sum(sizes)]  # beside the epochs
    assert 0 < merged <= (MOST_PIECES + 1) * SMALL_BYTES


def test_a_merge_beside_the_epochs_is_cut_into_p_units_of_bounded_size():
    pieces = [piece(str(number), TARGET_BYTES) for number in range(MOST_LARGE + 1)]
    merge = background_merge(pieces, LEFT)
    assert merge is not None
    assert merge.oldest
    assert len(merge.intervals) == MOST_LARGE + 1
    assert merge.intervals[0].lo == LEFT.lo
    assert merge.intervals[-1].hi == LEFT.hi
    assert all(a.hi == b.lo for a, b in pairwise(merge.intervals))


def test_a_piece_that_shows_little_of_its_p_unit_is_written_anew():
    shared = piece("s", 4 * SMALL_BYTES, Interval(0, 1 << 62))
    merge = background_merge([piece("base"), shared], LEFT)
    assert merge is not None
    assert names(merge.pieces) == "s"
    assert merge.intervals == (shared.interval,)
    assert not merge.oldest, "a tombstone in it may hide a row of the piece below"
    assert background_merge([piece("h", 4 * SMALL_BYTES, LEFT)], LEFT) is None, "half of it is enough"


def test_most_levels_are_merged_first():
    few = Manifest(WHOLE, tuple(piece(str(number), SMALL_BYTES) for number in range(MOST_LARGE + 1)))
    many = Manifest(WHOLE, tuple(piece(str(number), SMALL_BYTES) for number in range(MOST_LARGE + 2)))
    found = next_merge({"a": (few,), "b": (few, many)})
    assert found is not None
    assert found[0] == Target("b", 1, "t")
    assert next_merge({"a": (Manifest(),)}) is None


def test_merged_pieces_take_the_place_of_those_they_are_made_of():
    pieces = [piece(name) for name in "abcd"]
    assert names(splice(pieces, pieces[1:3], [piece("m"), piece("n")]) or ()) == "amnd"
    assert names(splice(pieces, pieces, []) or ()) == ""


def test_what_is_not_there_as_it_was_is_not_replaced():
    pieces = [piece(name) for name in "abcd"]
    new = [piece("m")]
    assert splice(pieces, [pieces[1], pieces[3]], new) is None
    assert splice(pieces[2:], pieces[1:3], new) is None
    narrower = [replace(one, interval=LEFT) for one in pieces]
    assert splice(narrower, pieces[1:3], new) is None
