"""Where operators are split: along the load, around hot keys, and never so that a position is owned twice or not."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.scale.splits import split
from holdfast.state.key_load import Cell, HeavyKey, LoadProfile
from holdfast.state.routing import Routing

END = 1 << 64


@st.composite
def profiles(draw: st.DrawFn) -> LoadProfile:
    """Any load: cells from one position to the whole line, heavy keys anywhere, also side by side and at the ends."""
    position = st.one_of(st.integers(0, END - 1), st.integers(0, 5), st.integers(END - 5, END - 1))
    edges = [0, *sorted(draw(st.sets(position.filter(bool), max_size=12))), END]
    rows = st.one_of(st.just(0.0), st.floats(0.1, 1e6))
    cells = tuple(Cell(lo, hi, draw(rows)) for lo, hi in pairwise(edges))
    heavy = draw(st.dictionaries(position, st.floats(1, 1e6), max_size=4))
    return LoadProfile(cells, tuple(HeavyKey(at, heavy[at], f"k={at}") for at in sorted(heavy)))


@given(profiles(), st.integers(1, 12))
def test_every_position_is_owned_by_exactly_one_partition(profile: LoadProfile, partitions: int) -> None:
    made = split(profile, partitions)
    assert len(made.bounds) == partitions
    assert made.bounds[0] == 0
    assert all(one < other for one, other in pairwise([*made.bounds, END]))
    assert sum(made.shares) == pytest.approx(1)


@given(profiles(), st.integers(1, 12))
def test_the_heaviest_partition_is_near_what_is_possible(profile: LoadProfile, partitions: int) -> None:
    total = profile.rows
    if not total:
        return
    made = split(profile, partitions)
    alone = [key for key in made.hot if key.alone]
    if len(alone) < len(made.hot):
        return  # too few partitions to isolate: nothing better than a hot key with its neighbours is possible
    rest = total - sum(key.share for key in alone) * total
    # Cells of one position cannot be cut either.
    small = [key.rows for key in profile.heavy if key.position not in {hot.position for hot in alone}]
    small += [cell.rows for cell in profile.cells if cell.hi - cell.lo <= 16]
    # A cut lies between two positions: of 17 with equal rows, the best half has nine.
    grain = max((cell.rows / (cell.hi - cell.lo) for cell in profile.cells), default=0.0)
    gaps = len(alone) + 1
    fair = rest / max(1, partitions - len(alone) - gaps + 1)
    others = [
        share * total
        for bound, share in zip(made.bounds, made.shares, strict=True)
        if bound not in {hot.position for hot in alone}
    ]
    assert max(others, default=0) <= fair + sum(sorted(small)[-2:]) + grain + 1e-3 * total


@given(profiles(), st.integers(3, 12))
def test_a_hot_key_has_an_interval_of_its_own(profile: LoadProfile, partitions: int) -> None:
    made = split(profile, partitions)
    routing = Routing(made.bounds)
    owned = {own.lo for n in range(partitions) if (own := routing.interval(n)).hi == own.lo + 1}
    assert {key.position for key in made.hot if key.alone} <= owned
    if len(made.hot) * 2 + 1 <= partitions:
        assert all(key.alone for key in made.hot)


def test_load_and_not_length_is_balanced() -> None:
    profile = LoadProfile((Cell(0, END // 4, 900.0), Cell(END // 4, END, 100.0)))
    made = split(profile, 2)
    assert made.bounds[1] == pytest.approx(END / 4 * 5 / 9, rel=1e-3)
    assert made.shares == pytest.approx((0.5, 0.5), rel=1e-3)
    assert not made.hot


def test_without_a_measurement_intervals_have_equal_lengths() -> None:
    assert split(LoadProfile(), 5).bounds == Routing.even(5).bounds


def test_neighbours_of_a_hot_key_are_split_around_it() -> None:
    at = END // 2
    profile = LoadProfile((Cell(0, END, 400.0),), (HeavyKey(at, 600.0, "k=7"),))
    made = split(profile, 5)
    assert at in made.bounds
    assert at + 1 in made.bounds
    assert sorted(made.shares) == pytest.approx([0.1, 0.1, 0.1, 0.1, 0.6], rel=1e-2)
    [hot] = made.hot
    assert str(hot) == "key k=7 (60% of the rows)"


def test_two_partitions_cannot_isolate_and_say_so() -> None:
    profile = LoadProfile((Cell(0, END, 400.0),), (HeavyKey(END // 2, 600.0, "k=7"),))
    made = split(profile, 2)
    assert [key.alone for key in made.hot] == [False]
    assert made.heaviest <= 0.81
